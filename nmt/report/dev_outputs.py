"""Checkpoints' outputs on the development set: sentences with their references, and scores by their length.

To keep the page small, an output shared by several checkpoints is stored once, and a sentence's outputs are adjacent,
which helps deflate. The page inflates the outputs, and compares only those on display with the references.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from statistics import fmean
from typing import Any

from nmt.parsing.brackets import DELETED, BracketCounts, score_brackets
from nmt.parsing.tree import MalformedTree, Tree, parse_tree
from nmt.report.record import RunRecord, labels
from nmt.text.lines import count_words

RANGES = (10, 20, 30, 40)  # upper bounds of sentence length, in words, by which scores are grouped

# --- sentences ----------------------------------------------------------------------------------------------------


def packed_sentences(records: Sequence[RunRecord]) -> Mapping[str, Any] | None:
    """Compress dev outputs for `sentences.js`, and name the units it compares; return None without outputs."""
    shown = [record for record in records if record.dev_outputs]
    if not shown:
        return None
    parts = sorted({"constituents" if record.task.has_trees else "words" for record in shown})
    plain = json.dumps(sentences(shown), ensure_ascii=False, separators=(",", ":"))
    packed = base64.b64encode(zlib.compress(plain.encode("utf-8", "replace"))).decode("ascii")
    return {"packed": packed, "parts": " or ".join(parts)}


def sentences(records: Sequence[RunRecord]) -> dict[str, Any]:
    """Return the distinct development sets, and the outputs of each run's checkpoints."""
    sets: dict[tuple[tuple[str, ...], tuple[str, ...]], int] = {}
    runs = []
    for name, record in zip(labels(records), records, strict=True):
        texts = tuple(record.sources), tuple(record.references)
        runs.append({"set": sets.setdefault(texts, len(sets)), "name": name, **_run(record)})
    return {
        "sets": [{"sources": sources, "references": references} for sources, references in sets],
        "runs": runs,
        "unscored": sorted(DELETED),
    }


def _run(record: RunRecord) -> dict[str, Any]:
    task, data = record.task, record.recipe.data
    scored = zip(record.validated["step"], record.validated["score"], strict=True)
    dev_scores = {int(step): _rounded(float(score), 2) for step, score in scored}
    steps = [checkpoint.step for checkpoint in record.dev_outputs]
    return {
        "languages": [data.source, data.source if task.has_trees else data.target],
        "trees": task.has_trees,
        "metric": task.label,
        "measure": "F1" if task.has_trees else "chrF",
        "steps": steps,
        "devScores": [dev_scores.get(step) for step in steps],
        "sentences": [_sentence(record, number) for number in range(len(record.sources))],
    }


def _sentence(record: RunRecord, number: int) -> list[list[Any]]:
    """Return a sentence's distinct outputs, their scores, and the index of each checkpoint's output."""
    scores: dict[str, float | None] = {}
    for checkpoint in record.dev_outputs:
        scores.setdefault(checkpoint.outputs[number], _rounded(checkpoint.scores[number], 1))
    place = {output: index for index, output in enumerate(scores)}
    given = [place[checkpoint.outputs[number]] for checkpoint in record.dev_outputs]
    return [list(scores), list(scores.values()), given]


def _rounded(figure: float, digits: int) -> float | None:
    """Round a number; return None if it is not finite, which JSON cannot hold."""
    return round(figure, digits) if math.isfinite(figure) else None


# --- scores by length ---------------------------------------------------------------------------------------------


Row = tuple[str, Sequence[float], Sequence[int]]
"""Name of a length range or label; scores, 0 to 100; counts"""
Table = tuple[str, str, Sequence[str], Sequence[str], Sequence[Row]]
"""Title; headings of the names, the scores and the counts; rows"""


def length_tables(records: Sequence[RunRecord]) -> Mapping[str, Any] | None:
    """Return a table of all translators, and those of each parser with trees; None without outputs."""
    parsers = [
        {"name": name, "step": record.dev_outputs[-1].step, "total": scores[0], "tables": tables(*scores)}
        for name, record in zip(labels(records), records, strict=True)
        if (scores := score_trees(record))
    ]
    translators = chrf_by_length(records)
    return {"translators": translators, "parsers": parsers} if translators or parsers else None


def chrf_by_length(records: Sequence[RunRecord]) -> Table | None:
    """Return the mean chrF of each translator's last checkpoint by length of the source; None without outputs.

    In scripts without spaces, the length is in characters.
    """
    scores: dict[tuple[int, str], list[float]] = {}
    for name, record in zip(labels(records), records, strict=True):
        if record.dev_outputs and not record.task.has_trees:
            for source, score in zip(record.sources, record.dev_outputs[-1].scores, strict=True):
                place = _range(count_words(source))
                scores.setdefault((place, f", {name}" if len(records) > 1 else ""), []).append(score)
    rows = [
        (_range_name(place) + name, (fmean(each),), (len(each),))
        for (place, name), each in sorted(scores.items(), key=lambda item: item[0][0])  # runs keep their order
    ]
    title = "Mean chrF at the last checkpoint, by the length of sources"
    return (title, "Words", ("chrF",), ("Sentences",), rows) if rows else None


def tables(total: BracketCounts, by_length: Mapping[str, BracketCounts]) -> list[Table]:
    """Return two tables: scores by length, where failures count as missed, and scores by label, without failures."""
    lengths = [
        (name, (each.f1, each.precision, each.recall), (counts.sentences, counts.skips + counts.errors))
        for name, counts in by_length.items()
        for each in [counts.with_failures]
    ]
    by_label = [
        (name, (one.f1, one.precision, one.recall), (one.gold, one.test, one.matched))
        for name, one in total.labels.items()
    ]
    heads = ("F1", "Precision", "Recall")
    return [
        ("By the length of sentences, failures missed", "Words", heads, ("Sentences", "Failures"), lengths),
        ("By label, without failures", "Label", heads, ("Reference", "Output", "Matched"), by_label),
    ]


def score_trees(record: RunRecord) -> tuple[BracketCounts, Mapping[str, BracketCounts]] | None:
    """Score the trees of a parser's last checkpoint, in all and by range of sentence lengths.

    Return None for other models, or without trees.
    """
    if not record.task.has_trees or not record.dev_outputs:
        return None
    ranges: dict[int, list[tuple[Tree, Tree | None]]] = {}
    outputs = record.dev_outputs[-1].outputs
    for source, reference, output in zip(record.sources, record.references, outputs, strict=True):
        if gold := _tree(reference):
            ranges.setdefault(_range(source.count(" ") + 1), []).append((gold, _tree(output)))
    if not ranges:
        return None
    by_length = {_range_name(place): score_brackets(*zip(*ranges[place], strict=True)) for place in sorted(ranges)}
    total = score_brackets(*zip(*(pair for pairs in ranges.values() for pair in pairs), strict=True))
    return total, by_length


def _tree(line: str) -> Tree | None:
    """Parse a tree; return None for a blank or malformed line."""
    with suppress(MalformedTree):
        return parse_tree(line)
    return None


def _range(words: int) -> int:
    return sum(words > top for top in RANGES)


def _range_name(place: int) -> str:
    first = RANGES[place - 1] + 1 if place else 1
    return f"{first}–{RANGES[place]}" if place < len(RANGES) else f"{first} and more"
