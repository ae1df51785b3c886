"""BLEU, chrF and TER of translations, by sacreBLEU; a score never goes without its signature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nmt.errors import UserError

METRICS = ("bleu", "chrf", "ter")
LABELS = {"bleu": "BLEU", "chrf": "chrF2", "ter": "TER"}


@dataclass(frozen=True)
class Score:
    """A corpus score and how it was computed."""

    score: float
    """0 to 100, TER possibly more"""
    signature: str
    """sacreBLEU's"""


def score(hypotheses: Sequence[str], references: Sequence[Sequence[str]], metrics: Sequence[str]) -> dict[str, Score]:
    """Scores hypotheses against one or more references of equal length, detokenised and cased.

    Raises UserError naming both counts where lengths differ, or where there is nothing to score.
    """
    for number, reference in enumerate(references, 1):
        if len(reference) != len(hypotheses):
            which = f" {number}" if len(references) > 1 else ""
            raise UserError(
                f"the hypothesis has {len(hypotheses):,} lines and reference{which} has {len(reference):,}",
                "line N of one must translate the same sentence as line N of the other",
            )
    if not hypotheses:
        raise UserError("nothing to score: hypothesis and reference have no lines")
    return {name: _score(name, hypotheses, references) for name in metrics}


def _score(name: str, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Score:
    from sacrebleu.metrics import BLEU, CHRF, TER

    metric = {"bleu": BLEU, "chrf": CHRF, "ter": TER}[name]()
    result = metric.corpus_score(list(hypotheses), [list(reference) for reference in references])
    return Score(float(result.score), str(metric.get_signature()))
