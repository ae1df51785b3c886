"""What became of the data in preparation, from its report.json: read, kept, dropped and why, overlaps, lengths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nmt.data.encode import LENGTH_STEPS
from nmt.report.record import LENGTHS, RunRecord


def content(records: Sequence[RunRecord]) -> Mapping[str, Any] | None:
    """The tables and histograms of the data of each run; runs on the same data share one."""
    sets: list[tuple[Mapping[str, Any], list[RunRecord]]] = []
    for record in records:
        same = next((runs for data, runs in sets if data == record.data), None)
        if same is not None:
            same.append(record)
        elif record.data:
            sets.append((record.data, [record]))
    shown = [
        {
            "name": " and ".join(dict.fromkeys(record.recipe.data.name or record.recipe.name for record in runs)),
            "splits": _splits(data),
            "rows": list(table_rows(data)),
            "leaked": _leaked(data),
            "histograms": {split: length_classes(figures.get(LENGTHS, {})) for split, figures in _splits(data).items()},
        }
        for data, runs in sets
    ]
    return {"sets": shown} if shown else None


def table_rows(data: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Yield what is told, and a text for each split: read, kept and dropped, why, then overlaps and mean lengths."""
    splits = list(_splits(data).values())
    yield "Read", [f"{figures['read']:,}" for figures in splits]
    yield "Kept", [f"{figures['kept']:,}" for figures in splits]
    if any(len(figures.get("kept by set", ())) > 1 for figures in splits):
        yield (
            "Kept of each set",
            [" + ".join(f"{one:,}" for one in figures.get("kept by set", ())) for figures in splits],
        )
    yield "Dropped", [_count(figures["read"] - figures["kept"], figures["read"]) for figures in splits]
    counted = dict.fromkeys(name for figures in splits for name in figures if _is_count(name, figures))
    for name in sorted(counted, key=lambda name: not name.startswith("dropped")):
        yield _sentence_case(name), [_count(figures.get(name, 0), figures["read"]) for figures in splits]
    means = dict.fromkeys(name for figures in splits for name in figures if name.startswith("mean "))
    for name in means:
        yield _sentence_case(name), [f"{figures[name]:.2f}" if name in figures else "" for figures in splits]


def _splits(data: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The splits that something was read of."""
    return {name: figures for name, figures in data.items() if isinstance(figures, dict) and figures.get("read")}


def _is_count(name: str, figures: Mapping[str, Any]) -> bool:
    """Whether it is a number of pairs that were dropped, or in which something was found."""
    return isinstance(figures[name], int) and name not in ("read", "kept")


def _count(count: int, whole: int) -> str:
    """A count with its share of what was read."""
    share = 100 * count / whole
    return f"{count:,} ({share:.2f}%)" if share >= 0.01 else f"{count:,} (< 0.01%)" if count else "0"


def _sentence_case(name: str) -> str:
    return name[0].upper() + name[1:]


def _leaked(data: Mapping[str, Any]) -> int:
    """Training examples that are in valid or test word for word."""
    counts = data.get("train", {}).items()
    return sum(n for name, n in counts if name.endswith("also in valid or test") and not name.startswith("source"))


@dataclass(frozen=True)
class LengthClass:
    """Sentences whose lengths in subwords are within a range."""

    name: str
    sentences: int
    share: float
    """Of the sentences in the largest class, 0 to 1"""


def length_classes(counts: Mapping[str, int]) -> list[LengthClass]:
    """The classes of a histogram, from the numbers of sentences by the longest length of their class.

    Empty classes between others are included. Lengths beyond the last of `LENGTH_STEPS` make one class.
    """
    tops = {int(top): count for top, count in counts.items()}
    if not tops:
        return []
    steps: list[int] = LENGTH_STEPS.tolist()
    used = [step for step, before in zip(steps, [0, *steps], strict=False) if before < max(tops)]
    found = {f"{before + 1:,}–{step:,}": tops.get(step, 0) for step, before in zip(used, [0, *used], strict=False)}
    if longer := sum(count for top, count in tops.items() if top > steps[-1]):
        found[f"over {steps[-1]:,}"] = longer
    return [LengthClass(name, count, count / max(found.values())) for name, count in found.items()]
