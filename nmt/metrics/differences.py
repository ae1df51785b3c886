"""Where the outputs of two systems differ: lines that gained and lost most, and means by length."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from nmt.metrics.metric import Metric
from nmt.metrics.words import Lines
from nmt.text.scripts import is_unspaced

LENGTHS = (0, 10, 20, 30, 50)
"""Words of a reference, or characters where words have no spaces, above which a new row of the table begins"""


@dataclass(frozen=True)
class ChangedLine:
    """A line that a system translates better or worse than a baseline."""

    number: int  # from 1
    baseline: float
    score: float
    texts: Mapping[str, str]  # source and reference, if there are any, and the outputs, by name

    @property
    def difference(self) -> float:
        """The system's score less the baseline's"""
        return self.score - self.baseline

    def as_dict(self) -> dict[str, Any]:
        """Return the values for JSON."""
        return {**vars(self), "difference": self.difference}


class Differences:
    """Scores of each line, of a system and a baseline."""

    def __init__(self, metric: Metric, systems: Mapping[str, Lines], texts: Mapping[str, Lines]) -> None:
        """Score the lines of two systems, of which the second is the baseline; `texts` are shown with them, by name."""
        self.metric = metric
        self._texts = texts
        self._scores, self._of_baseline = map(metric.line_scores, systems.values())

    def gained(self, count: int) -> list[ChangedLine]:
        """Return up to `count` lines that are better than the baseline's, the largest gain first."""
        return self._most(count, 1)

    def lost(self, count: int) -> list[ChangedLine]:
        """Return up to `count` lines that are worse than the baseline's, the largest loss first."""
        return self._most(count, -1)

    def _most(self, count: int, sign: int) -> list[ChangedLine]:
        by_row = [sign * (score - before) for before, score in zip(self._of_baseline, self._scores, strict=True)]
        rows = sorted(range(len(by_row)), key=by_row.__getitem__, reverse=True)
        found = []
        for row in rows[:count]:
            if by_row[row] > 0:
                texts = {name: lines[row] for name, lines in self._texts.items()}
                found.append(ChangedLine(row + 1, self._of_baseline[row], self._scores[row], texts))
        return found

    def by_length(self, lengths_of: Lines) -> list[dict[str, str]]:
        """Return the cells of a table: mean scores of the lines whose reference, or source, has so many words."""
        sizes = [len(_split(line)) for line in lengths_of]
        write = self.metric.written
        table = []
        for low, high in zip(LENGTHS, (*LENGTHS[1:], max(sizes) + 1), strict=True):
            rows = [row for row, size in enumerate(sizes) if low < size <= high]
            if rows:
                before = fmean(self._of_baseline[row] for row in rows)
                now = fmean(self._scores[row] for row in rows)
                words = f"{low + 1} to {high}" if high in LENGTHS else f"{low + 1} or more"
                cells = {"length": words, "lines": f"{len(rows):,}", "baseline": write(before), "system": write(now)}
                table.append(cells | {"difference": f"{now - before:+.{self.metric.decimals}f}"})
        return table


def _split(line: str) -> Sequence[str]:
    """Return the words of a line, or its characters if it has no spaces."""
    return list(line) if is_unspaced([line]) else line.split()


def marked(output: str, reference: str, start: str, end: str) -> str:
    """Put `start` and `end` around each run of words of an output that the reference lacks."""
    words = _split(output)
    space = "" if is_unspaced([output]) else " "
    parts = []
    for kind, low, high, _, _ in difflib.SequenceMatcher(None, words, _split(reference), False).get_opcodes():
        run = space.join(words[low:high])
        if run:
            parts.append(run if kind == "equal" else f"{start}{run}{end}")
    return space.join(parts)
