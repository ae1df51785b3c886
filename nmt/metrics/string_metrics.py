"""sacreBLEU's BLEU, chrF and TER, and the tokenised BLEU of papers.

BLEU and TER count words, so they depend on the target language.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from nmt.metrics.metric import Counts, Metric, check_lengths
from nmt.metrics.words import Lines, Moses, tokenizer_of
from nmt.text.scripts import is_unspaced

# Hide the line of sacreBLEU's warning about tokenised text that recommends a parameter which nmt does not offer.
logging.getLogger("sacrebleu").addFilter(lambda record: "`force`" not in record.getMessage())

METRICS = ("bleu", "chrf", "ter", "tokenised", "paper")
OF_WORDS = ("tokenised", "paper")  # metrics on the words of Moses' tokenizer
LABELS = {"bleu": "BLEU", "chrf": "chrF2", "ter": "TER", "tokenised": "BLEU-tokenised", "paper": "BLEU-2017"}
NOTES = {
    "tokenised": "for comparison with figures on words that Moses cut only",
    "paper": "for comparison with 2017 figures only",
}


@dataclass(frozen=True)
class Score:
    """A corpus score and how it was computed."""

    score: float  # 0 to 100; TER can exceed 100
    signature: str  # sacreBLEU's


class StringMetric(Metric):
    """A metric of sacreBLEU with its references."""

    def __init__(
        self,
        name: str,
        references: Sequence[Lines],
        language: str = "",
        lowercase: bool = False,
        moses: Moses | None = None,
    ) -> None:
        """Cut the references into words as their language, a code, needs it.

        `lowercase` ignores case. The metrics in `OF_WORDS` need `moses`.
        """
        self.label = LABELS[name]
        self.note = NOTES.get(name, "")
        self.lower_is_better = name == "ter"
        self.studied_as = "" if lowercase else name
        # 13a is the default of sacreBLEU.
        tokenizer = tokenizer_of(language) or ("char" if is_unspaced(references[0]) else "13a")
        self._metric = _of_sacrebleu(name, tokenizer, lowercase, moses)
        self._metric._ref_cache = self._metric._cache_references(references)  # for later calls, which pass None

    @property
    def signature(self) -> str:
        """sacreBLEU's signature"""
        return str(self._metric.get_signature())

    def counts(self, hypotheses: Lines) -> Counts:
        """Count, for example, the n-grams of each line that a reference has."""
        found: Counts = self._metric._extract_corpus_statistics(hypotheses, None)
        return found

    def score(self, sums: Sequence[float]) -> float:
        """Return the score that follows from the sums of counts, (n,)."""
        return float(self._metric._compute_score_from_stats(sums).score)


def score(
    hypotheses: Lines, references: Sequence[Lines], metrics: Sequence[str], language: str = ""
) -> dict[str, Score]:
    """Score detokenised, cased hypotheses against one or more references by each of `metrics`.

    `language` is the code of the references' language. Raise UserError if there are no lines, or if line counts differ.
    """
    texts = {"the hypothesis": hypotheses}
    for number, reference in enumerate(references, 1):
        texts[f"reference {number}"] = reference
    check_lengths(texts)
    scores = {}
    for name in metrics:
        metric = StringMetric(name, references, language)
        scores[name] = Score(metric.corpus_score(hypotheses), metric.signature)
    return scores


def _of_sacrebleu(name: str, tokenizer: str, lowercase: bool, moses: Moses | None) -> Any:
    """Return sacreBLEU's metric, which cuts text by the tokenizer of this name."""
    from sacrebleu.metrics import BLEU, CHRF, TER

    metric: Any
    if name == "chrf":
        return CHRF(lowercase=lowercase)  # spaces do not count
    if name == "ter":  # case-insensitive by default. Of what has no spaces, sacreBLEU itself cuts only Chinese
        metric = TER(normalized=tokenizer == "zh", asian_support=tokenizer == "zh")
        if tokenizer in ("ja-mecab", "char"):
            cut = metric.tokenizer
            metric.tokenizer = lambda line: cut(" ".join(line))
            metric.tokenizer_signature = "tercom-char"
        return metric
    if name == "bleu":
        metric = BLEU(lowercase, tokenize="char")
        with suppress(RuntimeError, AssertionError):  # MeCab is not installed, or has another dictionary
            metric = BLEU(lowercase, tokenize=tokenizer)
        return metric
    assert moses is not None, f"the metric {name} counts the words of Moses"
    # the settings of multi-bleu.perl
    metric = BLEU(lowercase, tokenize="none", smooth_method="none", force=True)
    metric.tokenizer = partial(moses, compounds=name == "paper")
    metric.tokenizer_signature = moses.signature + "-compounds" * (name == "paper")
    return metric
