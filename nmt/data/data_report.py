"""What preparing found: report.json, and a summary for the screen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import RootModel

from nmt.data.corpus import NO_LANGUAGE, SOURCE_WORDS, TARGET_WORDS, TWO_LANGUAGES, Corpus, Ids
from nmt.data.known import Known
from nmt.data.pairs import Pair
from nmt.recipe import Data
from nmt.system.errors import printable
from nmt.system.files import read_json
from nmt.system.integrity import checked, intact
from nmt.text.tokenizer import Tokenizer

REPORT = "report.json"
"""Counts of pairs read, kept and dropped, and mean lengths, by split"""
MEAN_SOURCE = "mean length of sources"
MEAN_TARGET = "mean length of targets"
BY_LENGTH = "lengths of pairs"
LENGTHS = (5, 10, 20, 30, 50, 75, 100, 150, 250)
"""Lengths of a pair's longer side, in subwords, at which the next count of `BY_LENGTH` begins"""
KNOWN = "pairs whose source training has"
KNOWN_WORDS = "share of word pairs that training has"
TOLD = (
    "dropped",
    "set aside",
    "pairs",
    "source sentences",
    "trees",
    "targets",
    "units",
    NO_LANGUAGE,
    TWO_LANGUAGES,
)
"""The summary shows figures whose names start with one of these"""


class _Report(RootModel[dict[str, dict[str, Any]]]):
    """Contents of report.json: statistics by split."""


def read_report(prepared: Path) -> dict[str, Any]:
    """Read report.json, which counts pairs read, kept and dropped; raise UserError if it is missing or damaged."""
    path = prepared / REPORT
    return checked(_Report, read_json(intact(path)), path).root


def figures_of(report: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the figures of each split, without texts."""
    found = {}
    for split, figures in report.items():
        found[split] = {name: figure for name, figure in figures.items() if name != "examples"}
    return found


def training_figures(prepared: Path) -> dict[str, Any]:
    """Return what the report says of the training split; nothing if nothing is prepared."""
    if not (prepared / REPORT).exists():
        return {}
    train: dict[str, Any] = read_report(prepared)["train"]
    return train


def mean_lengths(prepared: Path) -> tuple[float, float] | None:
    """Return the mean source and target length of the training split; None if nothing is prepared."""
    train = training_figures(prepared)
    source = train.get(MEAN_SOURCE)
    target = train.get(MEAN_TARGET)
    return (source, target) if source and target else None


def length_figures(corpus: Corpus) -> dict[str, Any]:
    """Return the mean length of each side of a split, and how many pairs have which length, by name."""
    longer = np.maximum(corpus.source_lengths, corpus.target_lengths)
    of_each = np.bincount(np.searchsorted(LENGTHS, longer, side="right"), minlength=len(LENGTHS) + 1)
    return {
        MEAN_SOURCE: _mean(corpus.source_lengths),
        MEAN_TARGET: _mean(corpus.target_lengths),
        BY_LENGTH: of_each.tolist(),
    }


def known_figures(pairs: Sequence[Pair], known: Known) -> dict[str, Any]:
    """Return how many sources of an evaluation split, and which share of their word pairs, are `known` in training."""
    if not pairs:
        return {}
    own = Known.of(pairs).word_pairs
    return {
        KNOWN: sum(pair.source in known.sources for pair in pairs),
        KNOWN_WORDS: round(len(own & known.word_pairs) / max(1, len(own)), 4),
    }


def _mean(lengths: Ids) -> float:
    return float(np.round(lengths.sum() / max(1, len(lengths)), 2))


def summary(out: Path, report: dict[str, dict[str, Any]], tokenizer: Tokenizer, data: Data) -> Iterator[str]:
    """Yield the summary of a report, line by line; `out` is the directory of the prepared data."""
    has_trees = data.task.has_trees
    train = report["train"]
    pieces = f"{len(tokenizer.source):,} pieces"
    if not tokenizer.shared:
        pieces += f" and {len(tokenizer.target):,} {'tree symbols' if has_trees else 'pieces'}"
    yield f"prepared {out}: {pieces}"
    for split, figures in report.items():
        if figures["read"]:
            yield f"  {split}: {_described(figures, has_trees)}"
    for figures in report.values():
        for reason, examples in figures["examples"].items():
            # An example begins with its place: show one, and the places of two others.
            places = ", ".join(example.partition(": ")[0] for example in examples[1:3])
            also = f"; also {places}" if places else ""
            count = "" if reason.startswith(TOLD) or reason not in figures else f"{figures[reason]:,} "
            yield f"  {count}{reason}: {printable(examples[0] + also)}"
    several = train.get("sources with several sentences")
    if several:
        yield f"  train sources with several sentences: {several / train['kept']:.0%}"
    if any(NO_LANGUAGE in figures for figures in report.values()):
        known = tokenizer.source.languages
        language = data.target if data.target in known else next(iter(known))
        name = f"{{file: pairs.tsv, target: {language}}}"
        yield f"  warning: sources without a language, such as >>{language}<<, which data sets can name: {name}"
    leaked = train.get("pairs also in valid or test")
    if leaked:
        yield f"  warning: {leaked:,} training pairs are in valid or test word for word, so scores there are too high"
    for split, figures in report.items():
        for address, path in figures.get("downloaded", {}).items():
            yield f"  {split} downloaded from {address}: {path}"
    for languages, sizes in data.taken.items():
        for split in sizes:
            files = ", ".join(str(out / name) for name in data.taken_files(split, languages))
            yield f"  {split} taken from train: {files}"


def _described(figures: Mapping[str, Any], has_trees: bool) -> str:
    """Return the line of the summary about a split."""
    symbols = "tree symbols" if has_trees else "subwords"
    words = [f"{figures[name]:,}" for name in (SOURCE_WORDS, TARGET_WORDS) if name in figures]
    notes = [
        f"{' and '.join(words)} words",
        f"{figures[MEAN_SOURCE]} subwords in, {figures[MEAN_TARGET]} {symbols} out",
    ]
    by_set = figures["kept by set"]
    if len(by_set) > 1:
        notes.append(f"by set {' + '.join(map('{:,}'.format, by_set))}")
    for name, value in figures.items():
        if name.startswith(TOLD) and value:
            notes.append(f"{value:,} {name}")
    read = f"{figures['read']:,} {'trees' if has_trees else 'pairs'}"
    return f"{figures['kept']:,} of {read}, {', '.join(notes)}"
