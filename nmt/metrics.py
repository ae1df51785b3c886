"""Corpus scores, with signatures: sacreBLEU's BLEU, chrF and TER, and the tokenised BLEU of papers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nmt.system.compression import split_suffix
from nmt.system.errors import UserError

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

SAMPLES, SEED = 1000, 12345  # of the bootstrap, as sacreBLEU has them
COMPOUND = re.compile(r"(\S)-(\S)")  # matches do not overlap: a-b-c is split only at the first hyphen


class Moses:
    """Moses' tokenizer, for detokenised lines."""

    def __init__(self, language: str) -> None:
        """Load the rules for abbreviations and apostrophes of `language`, a code such as de.

        Raise UserError if sacremoses does not know the language or is not installed.
        """
        from importlib.metadata import version  # slow to import

        try:
            from sacremoses import MosesTokenizer
            from sacremoses.corpus import NonbreakingPrefixes
        except ImportError as error:
            raise UserError(
                f"BLEU of Moses' words: sacremoses is not installed: {error}", "pip install sacremoses"
            ) from None
        known = sorted(set(NonbreakingPrefixes().available_langs.values()))
        if language not in known:  # sacremoses would silently use the rules for English
            raise UserError(
                f"BLEU of Moses' words: the language of the reference, {language!r}, is none of {', '.join(known)}",
                "give --language CODE, or a reference whose name ends in it, such as test.de",
            )
        self._tokenizer = MosesTokenizer(language)
        self.signature = f"sacremoses-{version('sacremoses')}-{language}"

    def __call__(self, line: str, *, compounds: bool) -> str:
        """Return the words joined by spaces; with `compounds`, split at hyphens: `rich ##AT##-##AT## text format`.

        Unlike Moses, do not escape characters (&quot; for "): this does not change which words match.
        """
        words: str = self._tokenizer.tokenize(line, return_str=True, escape=False)
        return COMPOUND.sub(r"\1 ##AT##-##AT## \2", words) if compounds else words


def language_of(path: Path) -> str:
    """Return the suffix of a file name, ignoring that of compression: de for test.de.gz."""
    return Path(split_suffix(path)[0]).suffix[1:]


METRICS = ("bleu", "chrf", "ter", "tokenised", "paper")
OF_WORDS = ("tokenised", "paper")  # metrics on words, which need Moses' tokenizer
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
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    metrics: Sequence[str],
    baseline: Sequence[str] | None = None,
    moses: Moses | None = None,
    lowercase: bool = False,
) -> dict[str, Score]:
    """Score detokenised, cased hypotheses against one or more references by each of `metrics`.

    With `baseline`, another system's output for the same lines, compare each score with the baseline's. The metrics in
    `OF_WORDS` need `moses`. `lowercase` ignores case. Raise UserError if there are no lines, or if line counts differ.
    """
    others = {} if baseline is None else {"the baseline": baseline}
    for number, reference in enumerate(references, 1):
        others[f"reference {number}" if len(references) > 1 else "reference"] = reference
    for which, lines in others.items():
        if len(lines) != len(hypotheses):
            raise UserError(
                f"the hypothesis has {len(hypotheses):,} lines and {which} has {len(lines):,}",
                "give both the same number of lines; line N of one translates the same sentence as line N of the other",
            )
    if not hypotheses:
        raise UserError(
            "nothing to score: hypothesis and reference have no lines",
            "name files with a sentence on each line; HYP may come from stdin",
        )
    systems = [hypotheses] if baseline is None else [hypotheses, baseline]
    return {name: _score(name, systems, references, moses, lowercase) for name in metrics}


def bleu_interval(
    references: Sequence[str], hypotheses: Sequence[str], *more_references: Sequence[str], lowercase: bool = False
) -> tuple[float, float]:
    """Return the bounds of the 95% confidence interval of BLEU."""
    from sacrebleu.metrics import BLEU

    metric = BLEU(lowercase)
    lines = zip(hypotheses, references, *more_references, strict=True)
    each = (metric.corpus_score([line], [[reference] for reference in of_line]) for line, *of_line in lines)
    counts = [(*one.counts, *one.totals, one.sys_len, one.ref_len) for one in each]
    orders = metric.max_ngram_order

    def bleu(sums: list[int]) -> float:
        *ngrams, length, reference_length = sums
        matched, total = ngrams[:orders], ngrams[orders:]
        return float(BLEU.compute_bleu(matched, total, length, reference_length, metric.smooth_method).score)

    return interval(counts, bleu)


def interval(counts: Sequence[Sequence[int]], score: Callable[[list[int]], float]) -> tuple[float, float]:
    """Return the bounds of a score's 95% confidence interval over bootstrap samples of the lines.

    `counts` are (lines, n); `score` maps a sample's sums (n,) to its score. Samples are drawn one by one, because all
    of them together would take 1,000 times the memory of `counts`.
    """
    import numpy as np

    of_lines, random = np.array(counts), np.random.default_rng(SEED)
    samples = (random.integers(len(of_lines), size=len(of_lines)) for _ in range(SAMPLES))
    low, high = np.percentile([score(of_lines[sample].sum(0).tolist()) for sample in samples], (2.5, 97.5))
    return float(low), float(high)


def sentence_chrf(references: Sequence[str], hypotheses: Sequence[str]) -> list[float]:
    """Return each hypothesis's sentence-level chrF2, 0 to 100."""
    from sacrebleu.metrics import CHRF

    metric = CHRF()
    pairs = zip(references, hypotheses, strict=True)
    return [float(metric.sentence_score(hypothesis, [reference]).score) for reference, hypothesis in pairs]


def as_dict(scores: Mapping[str, Score]) -> dict[str, Any]:
    """Return all figures by metric, ready for JSON."""
    found: dict[str, Any] = {}
    for name, result in scores.items():
        found[name] = {"score": result.score, "signature": result.signature}
        if name in NOTES:
            found[name]["note"] = NOTES[name]
        if one := result.comparison:
            found[name] |= {"mean": one.system.mean, "ci": one.system.ci}
            found[name] |= {"baseline": vars(one.baseline), "p_value": one.p_value}
    return found


def report(scores: Mapping[str, Score]) -> str:
    """Format each metric's score, and its signature on the next line; `COMPARED` explains a comparison's figures."""
    lines = []
    for name, result in scores.items():
        figures = f"{result.score:.2f}"
        if one := result.comparison:
            both = [f"{of.score:.2f} ({of.mean:.2f} ± {of.ci:.2f})" for of in (one.system, one.baseline)]
            difference = one.system.score - one.baseline.score
            figures = f"{both[0]}, baseline {both[1]}: {difference:+.2f}, p = {one.p_value:.3f}"
        note = f"  ({NOTES[name]})" if name in NOTES else ""
        lines += [f"{LABELS[name]} {figures}{note}", f"  {result.signature}"]
    return "\n".join(lines)


def _score(
    name: str,
    systems: Sequence[Sequence[str]],
    references: Sequence[Sequence[str]],
    moses: Moses | None,
    lowercase: bool,
) -> Score:
    """Score the first system; if there is a second, compare the two."""
    from sacrebleu.metrics import BLEU, CHRF, TER

    metric: Metric
    if name in OF_WORDS:
        assert moses is not None, f"the metric {name} counts the words of Moses"
        compounds = name == "paper"

        def words(line: str) -> str:
            # Lowercase before tokenising, as Multi30k's published tokens do.
            return moses(line.lower() if lowercase else line, compounds=compounds)

        systems, references = ([list(map(words, lines)) for lines in texts] for texts in (systems, references))
        # the settings of multi-bleu.perl
        metric = BLEU(lowercase, tokenize="none", smooth_method="none", force=True, references=references)
        metric.tokenizer_signature = moses.signature + "-compounds" * compounds
    elif name == "ter":
        metric = TER(references=references)  # case-insensitive by default
    else:
        metric = {"bleu": BLEU, "chrf": CHRF}[name](lowercase=lowercase, references=references)
    if len(systems) > 1:
        return _compare(systems[0], systems[1], metric)
    result = metric.corpus_score(systems[0], None)  # None: the references given to the metric
    return Score(float(result.score), str(metric.get_signature()))


def _compare(hypotheses: Sequence[str], baseline: Sequence[str], metric: Metric) -> Score:
    from sacrebleu.significance import PairedTest

    named = [("baseline", baseline), ("system", hypotheses)]  # PairedTest takes the first as the baseline
    test: Any = PairedTest(named, {"": metric}, None, test_type="bs")  # Any: its figures are typed as optional
    signatures, results = test()
    ((label, signature),) = signatures.items()
    other, one = (Estimate(float(of.score), float(of.mean), float(of.ci)) for of in results[label])
    # sacreBLEU calls the difference between identical outputs significant.
    p_value = 1.0 if one.score == other.score else float(results[label][1].p_value)
    return Score(one.score, str(signature), Comparison(one, other, p_value))
