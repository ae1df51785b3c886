"""What every metric of translations does: it counts something of each line, and a score follows from the sums."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from nmt.metrics.words import Lines
from nmt.system.errors import UserError, counted

Counts = Sequence[Sequence[float]]
"""What a metric counts of each line: (lines, n)"""


class Metric(ABC):
    """A metric that has read all it compares with, such as references."""

    label: str
    note = ""
    """What its figures are for, if for one thing only"""
    decimals = 2
    points = 1
    """Points of 100 in a difference of 1"""
    lower_is_better = False
    studied_as = ""
    """Key in `nmt.metrics.agreement.CURVES`, if there is one"""

    @property
    @abstractmethod
    def signature(self) -> str:
        """How scores are computed; only scores of one signature can be compared"""

    @abstractmethod
    def counts(self, hypotheses: Lines) -> Counts:
        """Count something of each line."""

    @abstractmethod
    def score(self, sums: Sequence[float]) -> float:
        """Return the score that follows from the sums of counts, (n,)."""

    def corpus_score(self, hypotheses: Lines) -> float:
        """Score all lines together."""
        return self.score([sum(column) for column in zip(*self.counts(hypotheses), strict=True)])

    def line_scores(self, hypotheses: Lines) -> list[float]:
        """Score each line."""
        return [self.score(counts) for counts in self.counts(hypotheses)]

    def written(self, score: float) -> str:
        """Format a score."""
        return f"{score:.{self.decimals}f}"

    def as_dict(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return figures for JSON, with the signature, and the note if there is one."""
        about = {"signature": self.signature}
        if self.note:
            about["note"] = self.note
        return {**values, **about}


def check_lengths(texts: Mapping[str, Lines]) -> None:
    """Raise UserError, with the names of the texts, if they have no lines or different numbers of lines."""
    (first, lines), *others = texts.items()
    for name, other in others:
        if len(other) != len(lines):
            problem = f"{first} has {counted(len(lines), 'line')} and {name} has {len(other):,}"
            hint = (
                "give both the same number of lines; line N of one translates the same sentence as line N of the other"
            )
            raise UserError(problem, hint)
    if not lines:
        hint = "name files with a sentence on each line; HYP may come from stdin"
        have = "have" if others else "has"
        raise UserError(f"nothing to score: {' and '.join(texts)} {have} no lines", hint)
