"""How good the trees of a parser are, by label and by the length of sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from nmt.metrics.brackets import Matches, Sums, score_brackets
from nmt.report.charts import labels
from nmt.report.record import RunRecord
from nmt.text.tree import MalformedTree, Tree, parse_tree

LENGTHS = (10, 20, 30, 40)
"""Upper ends of the ranges of lengths, in words"""


def content(records: Sequence[RunRecord]) -> Mapping[str, Any] | None:
    """The tables of every parser that has trees."""
    runs = [
        {"name": name, "scores": scores, "tables": tables(scores)}
        for name, record in zip(labels(records), records, strict=True)
        if (scores := score_trees(record))
    ]
    return {"runs": runs} if runs else None


class Row(NamedTuple):
    """Constituents of one kind, in a table."""

    name: str
    figures: tuple[float, float, float]
    """F1, precision and recall, 0 to 100"""
    counts: Sequence[int]


Table = tuple[str, str, Sequence[str], Sequence[Row]]
"""Title, head of the names, heads of the counts, rows"""


def tables(scores: TreeScores) -> list[Table]:
    """The scores by length, where failures count as missed, and by label, over the sentences that have a tree."""
    lengths = [
        Row(name, (sums.f1_all, sums.precision, sums.recall_all), (sums.sentences, sums.skips + sums.errors))
        for name, sums in scores.by_length.items()
    ]
    by_label = [
        Row(name, (one.f1, one.precision, one.recall), (one.gold, one.test, one.matched))
        for name, one in scores.by_label.items()
    ]
    return [
        ("By the length of sentences, failures missed", "Words", ("Sentences", "Failures"), lengths),
        ("By label, without failures", "Label", ("Reference", "Output", "Matched"), by_label),
    ]


@dataclass(frozen=True)
class TreeScores:
    """Scores of the trees of a checkpoint, by the rules of `nmt.metrics.brackets`."""

    step: int
    total: Sums
    by_length: Mapping[str, Sums]
    """By the range that the number of words is in"""

    @property
    def by_label(self) -> Mapping[str, Matches]:
        """Of sentences that have a tree; by frequency in the gold."""
        return self.total.labels


def score_trees(record: RunRecord) -> TreeScores | None:
    """Score the trees of a parser's last checkpoint; None if there are none, and for other models."""
    if not record.recipe.kind.has_trees or not record.dev_outputs:
        return None
    last = record.dev_outputs[-1]
    ranges: dict[int, list[tuple[Tree, Tree | None]]] = {}
    for source, reference, output in zip(record.sources, record.references, last.outputs, strict=True):
        if gold := _tree(reference):
            words = source.count(" ") + 1
            ranges.setdefault(sum(words > top for top in LENGTHS), []).append((gold, _tree(output)))
    by_length = {_name(place): _score(ranges[place]) for place in sorted(ranges)}
    return TreeScores(last.step, _sum(list(by_length.values())), by_length) if by_length else None


def _tree(line: str) -> Tree | None:
    """Read a tree; None if the line is blank or no tree."""
    try:
        return parse_tree(line)
    except MalformedTree:
        return None


def _name(place: int) -> str:
    first = LENGTHS[place - 1] + 1 if place else 1
    return f"{first}–{LENGTHS[place]}" if place < len(LENGTHS) else f"{first} and more"


def _score(pairs: Sequence[tuple[Tree, Tree | None]]) -> Sums:
    return score_brackets((gold for gold, _ in pairs), (found for _, found in pairs))


def _sum(parts: Sequence[Sums]) -> Sums:
    total = Sums()
    for field in fields(Sums):
        for part in parts:
            setattr(total, field.name, getattr(total, field.name) + getattr(part, field.name))
    return total
