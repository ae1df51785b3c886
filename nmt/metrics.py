"""Corpus scores, with signatures: sacreBLEU's BLEU, chrF and TER, and the tokenised BLEU of papers.

`_metric` alone makes sacreBLEU's metrics. BLEU and TER count words, so they depend on the target language.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from nmt.system.compression import split_suffix
from nmt.system.errors import UserError
from nmt.text.language_codes import Language
from nmt.text.scripts import is_unspaced

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

# Hide the line of sacreBLEU's warning about tokenised text that recommends a parameter which nmt does not offer.
logging.getLogger("sacrebleu").addFilter(lambda record: "`force`" not in record.getMessage())

Lines = Sequence[str]
SAMPLES = 1000  # of the bootstrap; sacreBLEU's default
SEED = 12345  # likewise
COMPOUND = re.compile(r"(\S)-(\S)")  # matches do not overlap: a-b-c is split only at the first hyphen


class Moses:
    """Moses' tokenizer, for detokenised lines."""

    def __init__(self, language: str) -> None:
        """Load the rules for abbreviations and apostrophes of `language`, a code such as de.

        Raise UserError if sacremoses does not know the language or where its words end, or is not installed.
        """
        from importlib.metadata import version  # slow to import

        try:
            from sacremoses import MosesTokenizer
            from sacremoses.corpus import NonbreakingPrefixes
        except ImportError as error:
            problem = f"BLEU of Moses' words: sacremoses is not installed: {error}"
            raise UserError(problem, "pip install sacremoses") from None
        # Moses has rules for Chinese, but takes what stands between two marks for a word
        codes = set(NonbreakingPrefixes().available_langs.values())
        known = sorted(code for code in codes if not tokenizer_of(code))
        language = Language.of(language).base
        if language not in known:  # sacremoses would silently use the rules for English
            problem = f"the language of the reference, {language!r}, is none of {', '.join(known)}"
            hint = (
                "give --language CODE, or a reference whose name ends in it, such as test.de; else take --metric bleu"
            )
            raise UserError(f"BLEU of Moses' words: {problem}", hint)
        self._tokenizer = MosesTokenizer(language)
        self.signature = f"sacremoses-{version('sacremoses')}-{language}"

    def __call__(self, line: str, *, compounds: bool) -> str:
        """Return the words joined by spaces; with `compounds`, split at hyphens: `rich ##AT##-##AT## text format`.

        Unlike Moses, do not escape characters (&quot; for "): this does not change which words match.
        """
        words: str = self._tokenizer.tokenize(line, return_str=True, escape=False)
        if compounds:
            words = COMPOUND.sub(r"\1 ##AT##-##AT## \2", words)
        return words


def language_of(path: Path) -> str:
    """Return the suffix of a file name, ignoring that of compression: de for test.de.gz."""
    return Path(split_suffix(path)[0]).suffix[1:]


# Codes of languages (ISO 639) and scripts (ISO 15924) by the tokenizer of sacreBLEU that finds their words
TOKENIZERS = {
    "zh": "zh yue lzh wuu gan hak hsn cjy cn hans hant hani",
    "ja-mecab": "ja jp jpan hira kana hrkt",
    "ko-mecab": "ko kore hang",
    "char": "th lo km my shn mnw bo dz thai laoo khmr mymr tibt lana talu java bali",
}


def tokenizer_of(language: str) -> str | None:
    """Return the tokenizer in `TOKENIZERS` for a code such as zh-TW, jpn_Jpan or tha; None if words end at spaces.

    A script in the code decides: zh_Latn is written with spaces.
    """
    given = Language.of(language)
    code = given.script.lower() or given.base
    for name, codes in TOKENIZERS.items():
        if code in codes.split():
            return name
    return None


def unknown_words(language: str, references: Lines) -> str | None:
    """Return a warning if references are written without spaces, but `language` is not known to be; else None."""
    if tokenizer_of(language) or not is_unspaced(references):
        return None
    given = "their language is not given"
    if language:
        given = f"{language!r} is no language known to be"
    return f"warning: the references are written without spaces, but {given}: BLEU and TER count characters"


METRICS = ("bleu", "chrf", "ter", "tokenised", "paper")
OF_WORDS = ("tokenised", "paper")  # metrics on the words of Moses' tokenizer
LABELS = {"bleu": "BLEU", "chrf": "chrF2", "ter": "TER", "tokenised": "BLEU-tokenised", "paper": "BLEU-2017"}
NOTES = {
    "tokenised": "for comparison with figures on words that Moses cut only",
    "paper": "for comparison with 2017 figures only",
}
COMPARED = (
    "score (mean ± half of the 95% interval over bootstrap samples of the lines); p: how often two equally good "
    "systems would differ by more"
)


@dataclass(frozen=True)
class Estimate:
    """A corpus score and its distribution over bootstrap samples of the lines."""

    score: float
    mean: float  # over the samples
    ci: float  # half-width of the 95% confidence interval

    def __str__(self) -> str:
        return f"{self.score:.2f} ({self.mean:.2f} ± {self.ci:.2f})"


@dataclass(frozen=True)
class Comparison:
    """The result of sacreBLEU's paired bootstrap test of a system against a baseline."""

    system: Estimate
    baseline: Estimate
    p_value: float  # probability of a larger difference between equally good systems; 1 if the scores are equal


@dataclass(frozen=True)
class Score:
    """A corpus score and how it was computed."""

    score: float  # 0 to 100; TER can exceed 100
    signature: str  # sacreBLEU's
    comparison: Comparison | None = None


def score(
    hypotheses: Lines,
    references: Sequence[Lines],
    metrics: Sequence[str],
    baseline: Lines | None = None,
    moses: Moses | None = None,
    lowercase: bool = False,
    language: str = "",
) -> dict[str, Score]:
    """Score detokenised, cased hypotheses against one or more references by each of `metrics`.

    With `baseline`, another system's output for the same lines, compare each score with the baseline's. The metrics in
    `OF_WORDS` need `moses`. `lowercase` ignores case. `language` is the code of the references' language, for BLEU and
    TER. Raise UserError if there are no lines, or if line counts differ.
    """
    others = {}  # than the hypotheses
    if baseline is not None:
        others["the baseline"] = baseline
    for number, reference in enumerate(references, 1):
        others[f"reference {number}" if len(references) > 1 else "reference"] = reference
    for which, lines in others.items():
        if len(lines) != len(hypotheses):
            problem = f"the hypothesis has {len(hypotheses):,} lines and {which} has {len(lines):,}"
            hint = (
                "give both the same number of lines; line N of one translates the same sentence as line N of the other"
            )
            raise UserError(problem, hint)
    if not hypotheses:
        hint = "name files with a sentence on each line; HYP may come from stdin"
        raise UserError("nothing to score: hypothesis and reference have no lines", hint)
    made = {name: _metric(name, language, lowercase, references, moses) for name in metrics}
    if baseline is not None:
        return {name: _compare(hypotheses, baseline, metric) for name, metric in made.items()}
    scores = {}
    for name, metric in made.items():
        total = metric.corpus_score(hypotheses, None)
        scores[name] = Score(float(total.score), str(metric.get_signature()))
    return scores


def score_interval(
    name: str, hypotheses: Lines, references: Sequence[Lines], lowercase: bool = False, language: str = ""
) -> tuple[float, float]:
    """Return the bounds of the 95% confidence interval of a score, as `score` computes it."""
    metric = _metric(name, language, lowercase, references)
    counts = metric._extract_corpus_statistics(hypotheses, None)
    return interval(counts, lambda sums: float(metric._compute_score_from_stats(sums).score))


def interval(counts: Sequence[Sequence[int]], score: Callable[[list[int]], float]) -> tuple[float, float]:
    """Return the bounds of a score's 95% confidence interval over bootstrap samples of the lines.

    `counts` are (lines, n); `score` maps a sample's sums (n,) to its score. Samples are drawn one by one, because all
    of them together would take 1,000 times the memory of `counts`.
    """
    import numpy as np

    of_lines = np.array(counts)
    random = np.random.default_rng(SEED)
    scores = []
    for _ in range(SAMPLES):
        sample = random.integers(len(of_lines), size=len(of_lines))  # indices of lines
        sums = of_lines[sample].sum(0)  # (n,)
        scores.append(score(sums.tolist()))
    low, high = np.percentile(scores, (2.5, 97.5))
    return float(low), float(high)


def sentence_chrf(references: Lines, hypotheses: Lines) -> list[float]:
    """Return each hypothesis's sentence-level chrF2, 0 to 100."""
    metric = _metric("chrf")
    pairs = zip(references, hypotheses, strict=True)
    return [float(metric.sentence_score(hypothesis, [reference]).score) for reference, hypothesis in pairs]


def as_dict(scores: Mapping[str, Score]) -> dict[str, Any]:
    """Return all figures by metric, ready for JSON."""
    found: dict[str, Any] = {}
    for name, result in scores.items():
        found[name] = {"score": result.score, "signature": result.signature}
        if name in NOTES:
            found[name]["note"] = NOTES[name]
        one = result.comparison
        if one:
            found[name] |= {"mean": one.system.mean, "ci": one.system.ci}
            found[name] |= {"baseline": vars(one.baseline), "p_value": one.p_value}
    return found


def report(scores: Mapping[str, Score]) -> str:
    """Format each metric's score, and its signature on the next line; `COMPARED` explains a comparison's figures."""
    lines = []
    for name, result in scores.items():
        figures = f"{result.score:.2f}"
        one = result.comparison
        if one:
            difference = one.system.score - one.baseline.score
            figures = f"{one.system}, baseline {one.baseline}: {difference:+.2f}, p = {one.p_value:.3f}"
        note = f"  ({NOTES[name]})" if name in NOTES else ""
        lines += [f"{LABELS[name]} {figures}{note}", f"  {result.signature}"]
    return "\n".join(lines)


def _metric(
    name: str,
    language: str = "",
    lowercase: bool = False,
    references: Sequence[Lines] | None = None,
    moses: Moses | None = None,
) -> Metric:
    """Return sacreBLEU's metric with the references, if given, cut into words as their language needs."""
    from sacrebleu.metrics import BLEU, CHRF, TER

    metric: Any
    # 13a is the default of sacreBLEU.
    tokenizer = tokenizer_of(language) or ("char" if references and is_unspaced(references[0]) else "13a")
    if name == "chrf":
        metric = CHRF(lowercase=lowercase)  # spaces do not count
    elif name == "ter":  # case-insensitive by default. Of what has no spaces, sacreBLEU itself cuts only Chinese
        metric = TER(normalized=tokenizer == "zh", asian_support=tokenizer == "zh")
        if tokenizer in ("ja-mecab", "char"):
            cut = metric.tokenizer
            metric.tokenizer = lambda line: cut(" ".join(line))
            metric.tokenizer_signature = "tercom-char"
    elif name == "bleu":
        metric = BLEU(lowercase, tokenize="char")
        with suppress(RuntimeError, AssertionError):  # MeCab is not installed, or has another dictionary
            metric = BLEU(lowercase, tokenize=tokenizer)
    else:
        assert moses is not None, f"the metric {name} counts the words of Moses"
        # the settings of multi-bleu.perl
        metric = BLEU(lowercase, tokenize="none", smooth_method="none", force=True)
        metric.tokenizer = partial(moses, compounds=name == "paper")
        metric.tokenizer_signature = moses.signature + "-compounds" * (name == "paper")
    if references is not None:  # for all later calls, which pass None
        metric._ref_cache = metric._cache_references(references)
    return cast("Metric", metric)


def _compare(hypotheses: Lines, baseline: Lines, metric: Metric) -> Score:
    from sacrebleu.significance import PairedTest

    named = [("baseline", baseline), ("system", hypotheses)]  # PairedTest takes the first as the baseline
    test: Any = PairedTest(named, {"": metric}, None, test_type="bs")  # Any: its figures are typed as optional
    signatures, results = test()
    ((label, signature),) = signatures.items()
    other, one = (Estimate(float(of.score), float(of.mean), float(of.ci)) for of in results[label])
    p_value = 1.0  # sacreBLEU calls the difference between identical outputs significant
    if one.score != other.score:
        p_value = float(results[label][1].p_value)
    return Score(one.score, str(signature), Comparison(one, other, p_value))
