"""What preparing found, as a page: how much data there is, what is left out and why, and what looks wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from nmt.data.corpus import HELD_OUT, REPEATED, SOURCE_WORDS, TARGET_WORDS
from nmt.data.data_report import BY_LENGTH, KNOWN, KNOWN_WORDS, LENGTHS, MEAN_SOURCE, MEAN_TARGET
from nmt.recipe import Data
from nmt.report.page import render
from nmt.system.files import whole_file

PAGE = "data.html"
DROPPED = "dropped "
Figures = Mapping[str, Any]
"""The section of report.json about a split"""


class _Kind(NamedTuple):
    """Pairs of a split of which the same is said."""

    split: str
    title: str
    pairs: int | None
    """Their number; None if the title has it"""
    examples: list[tuple[str, ...]]
    """The place of each, and its texts"""


def write_look(report: Mapping[str, Figures], data: Data, folder: Path) -> Path:
    """Write the page about the prepared data in `folder`, and return its path.

    Raise UserError if it cannot be written.
    """
    path = folder / PAGE
    splits = {split: figures for split, figures in report.items() if figures["read"]}
    kinds = [kind for split, figures in splits.items() for kind in _kinds(split, figures)]
    html = render(
        "first_look.html",
        ["colours", "page", "first_look"],
        title=f"Data: {data.name}",
        data=data,
        splits={split: _described(figures) for split, figures in splits.items()},
        dropped=[kind for kind in kinds if kind.title.startswith(DROPPED)],
        odd=[kind for kind in kinds if not kind.title.startswith(DROPPED)],
        set_aside=splits["train"].get(HELD_OUT, 0),
        known={split: _known(figures) for split, figures in splits.items() if KNOWN in figures},
        lengths=_lengths(splits["train"]),
    )
    with whole_file(path) as stream:
        stream.write(html.encode())
    return path


def _described(figures: Figures) -> dict[str, str]:
    """Return what the page's table says of a split, by column."""
    return {
        "Pairs read": f"{figures['read']:,}",
        "Used": f"{figures['kept']:,}",
        "Words of sources": _number(figures, SOURCE_WORDS),
        "Words of targets": _number(figures, TARGET_WORDS),
        "Subwords a source": f"{figures[MEAN_SOURCE]:.1f}",
        "Subwords a target": f"{figures[MEAN_TARGET]:.1f}",
    }


def _number(figures: Figures, name: str) -> str:
    """Return a figure as the page shows it; a dash for one that a split does not have, as trees no words of targets."""
    return f"{figures[name]:,}" if name in figures else "–"


def _known(figures: Figures) -> dict[str, str]:
    """Return what training knows of an evaluation split, by column."""
    return {
        "Sources": f"{figures['read']:,}",
        "In training": f"{figures[KNOWN]:,}",
        "Word pairs in training": f"{figures[KNOWN_WORDS]:.0%}",
    }


def _kinds(split: str, figures: Figures) -> Iterator[_Kind]:
    """Yield what examples of a split show; repeated pairs of an evaluation split are no fault."""
    for reason, examples in figures["examples"].items():
        if reason != REPEATED or split == "train":
            yield _Kind(split, reason, figures.get(reason), list(map(_split_up, examples)))


def _split_up(example: str) -> tuple[str, ...]:
    """Return the place of an example and its texts."""
    place, _, texts = example.partition(": ")
    return place, *texts.split(" ||| ", 1)


def _lengths(figures: Figures) -> list[tuple[str, int, float]]:
    """Return ranges of lengths, how many training pairs each has, and the share of the most frequent's; none of data
    that was prepared before these were counted.
    """
    counts = figures.get(BY_LENGTH, ())
    if not counts:
        return []
    bounds = [1, *LENGTHS]
    names = [f"{first} to {last - 1}" for first, last in zip(bounds, LENGTHS, strict=False)]
    names.append(f"{LENGTHS[-1]} and more")
    highest = max(1, *counts)
    rows = [(name, count, count / highest) for name, count in zip(names, counts, strict=True)]
    while rows and not rows[-1][1]:
        rows.pop()
    return rows
