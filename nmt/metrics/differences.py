"""Where the outputs of two systems differ: lines that gained and lost most, and means by length and by unseen words."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from nmt.metrics.words import Lines
from nmt.text.scripts import is_unspaced

LENGTHS = (0, 10, 20, 30, 50)
"""Words of a reference, or characters where words have no spaces, above which a new row of the table begins"""
UNSEEN = (-1, 0, 1, 2)
"""The same of words that training has not seen"""


@dataclass(frozen=True)
class Change:
    """A system's score beside a baseline's."""

    baseline: float
    score: float

    @property
    def difference(self) -> float:
        """The system's score less the baseline's"""
        return self.score - self.baseline

    def as_dict(self) -> dict[str, Any]:
        """Return the values for JSON."""
        return {**vars(self), "difference": self.difference}


@dataclass(frozen=True)
class ChangedLine(Change):
    """A line that a system translates better or worse than a baseline."""

    number: int  # from 1
    texts: Mapping[str, str]  # source and reference, if there are any, and the outputs, by name


@dataclass(frozen=True)
class Means(Change):
    """Mean scores of the lines that have so many words."""

    words: str
    lines: int


@dataclass(frozen=True)
class Differences:
    """Scores of each line, of a system and a baseline, and the texts that are shown with them, by name."""

    scores: Sequence[float]
    baseline: Sequence[float]
    texts: Mapping[str, Lines]

    def gained(self, count: int) -> list[ChangedLine]:
        """Return up to `count` lines that are better than the baseline's, the largest gain first."""
        return self._most(count, 1)

    def lost(self, count: int) -> list[ChangedLine]:
        """Return up to `count` lines that are worse than the baseline's, the largest loss first."""
        return self._most(count, -1)

    def _most(self, count: int, sign: int) -> list[ChangedLine]:
        by_row = [sign * (score - before) for before, score in zip(self.baseline, self.scores, strict=True)]
        rows = sorted(range(len(by_row)), key=by_row.__getitem__, reverse=True)
        found = []
        for row in rows[:count]:
            if by_row[row] > 0:
                texts = {name: lines[row] for name, lines in self.texts.items()}
                found.append(ChangedLine(self.baseline[row], self.scores[row], row + 1, texts))
        return found

    def by_length(self, lengths_of: Lines) -> list[Means]:
        """Return means of the lines whose reference, or source, has so many words."""
        return self._by([len(_split(line)) for line in lengths_of], LENGTHS)

    def by_unseen(self, counts: Sequence[int]) -> list[Means]:
        """Return means of the lines whose source has so many words that training has not seen."""
        return self._by(counts, UNSEEN)

    def _by(self, sizes: Sequence[int], above: Sequence[int]) -> list[Means]:
        table = []
        for low, high in zip(above, (*above[1:], None), strict=True):
            rows = [row for row, size in enumerate(sizes) if size > low and (high is None or size <= high)]
            if rows:
                words = f"{low + 1} to {high}"
                if high is None:
                    words = f"{low + 1} or more"
                elif high == low + 1:
                    words = str(high)
                before = fmean(self.baseline[row] for row in rows)
                now = fmean(self.scores[row] for row in rows)
                table.append(Means(before, now, words, len(rows)))
        return table


def _split(line: str) -> Sequence[str]:
    """Return the words of a line, or its characters if it has no spaces."""
    return list(line) if is_unspaced([line]) else line.split()


def parts(output: str, reference: str) -> list[tuple[str, bool]]:
    """Return an output in parts, and of each whether the reference lacks it: runs of words, and spaces between them."""
    words = _split(output)
    space = "" if is_unspaced([output]) else " "
    found = list[tuple[str, bool]]()
    for kind, low, high, _, _ in difflib.SequenceMatcher(None, words, _split(reference), False).get_opcodes():
        if low < high:
            if found and space:
                found.append((space, False))
            found.append((space.join(words[low:high]), kind != "equal"))
    return found
