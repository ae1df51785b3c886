"""What preparing found: report.json, and a summary for the screen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import RootModel

from nmt.data.corpus import NO_LANGUAGE, SIDES, TWO_LANGUAGES, Corpus
from nmt.recipe import Data
from nmt.system.errors import printable
from nmt.system.files import read_json
from nmt.system.integrity import checked, intact
from nmt.text.tokenizer import Tokenizer

REPORT = "report.json"
"""Counts of pairs read, kept and dropped, and mean lengths, by split"""


class _Report(RootModel[dict[str, dict[str, Any]]]):
    """Contents of report.json: statistics by split."""


def read_report(prepared: Path) -> dict[str, Any]:
    """Read report.json, which counts pairs read, kept and dropped; raise UserError if it is missing or damaged."""
    return checked(_Report, read_json(intact(prepared / REPORT)), prepared / REPORT).root


def figures_of(report: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the figures of each split, without texts."""
    return {split: {k: f for k, f in figures.items() if k != "examples"} for split, figures in report.items()}


def training_pairs(prepared: Path) -> int | None:
    """Return the number of training pairs kept; None if nothing is prepared."""
    return int(read_report(prepared)["train"]["kept"]) if (prepared / REPORT).exists() else None


def mean_lengths(prepared: Path) -> tuple[float, float] | None:
    """Return the mean source and target length of the training split; None if nothing is prepared."""
    train = read_report(prepared)["train"] if (prepared / REPORT).exists() else {}
    source, target = (train.get(f"mean length of {side}s") for side in SIDES)
    return (source, target) if source and target else None


def length_figures(corpus: Corpus) -> dict[str, float]:
    """Return the mean length of each side of a split, by name."""
    sides = zip(SIDES, (corpus.source_lengths, corpus.target_lengths), strict=True)
    return {f"mean length of {side}s": float(np.round(n.sum() / max(1, len(n)), 2)) for side, n in sides}


def summary(out: Path, report: dict[str, dict[str, Any]], tokenizer: Tokenizer, data: Data) -> Iterator[str]:
    """Yield the summary of a report, line by line; `out` is the directory of the prepared data."""
    task, train = data.task, report["train"]
    pieces = f"{len(tokenizer.source):,} pieces"
    if not tokenizer.shared:
        pieces += f" and {len(tokenizer.target):,} {'tree symbols' if task.has_trees else 'pieces'}"
    yield f"prepared {out}: {pieces}"
    told = (
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
    for split, figures in report.items():
        if not figures["read"]:
            continue
        symbols = "tree symbols" if task.has_trees else "subwords"
        source, target = (figures[f"mean length of {side}s"] for side in SIDES)
        notes = [f"{source} subwords in, {target} {symbols} out"]
        if len(figures["kept by set"]) > 1:
            notes.append(f"by set {' + '.join(f'{kept:,}' for kept in figures['kept by set'])}")
        notes += [f"{value:,} {name}" for name, value in figures.items() if name.startswith(told)]
        read = f"{figures['read']:,} {'trees' if task.has_trees else 'pairs'}"
        yield f"  {split}: {figures['kept']:,} of {read}, {', '.join(notes)}"
    for reason, examples in chain.from_iterable(figures["examples"].items() for figures in report.values()):
        places = ", ".join(example.partition(": ")[0] for example in examples[1:])
        also = f"; also {places}" if places else ""
        yield f"  {reason}: {printable(examples[0] + also)}"
    if several := train.get("sources with several sentences"):
        yield f"  train sources with several sentences: {several / train['kept']:.0%}"
    if any(NO_LANGUAGE in figures for figures in report.values()):
        known = tokenizer.source.languages
        language = data.target if data.target in known else next(iter(known))
        name = f"{{file: pairs.tsv, target: {language}}}"
        yield f"  warning: sources without a language, such as >>{language}<<, which data sets can name: {name}"
    if leaked := train.get("pairs also in valid or test"):
        yield f"  warning: {leaked:,} training pairs are in valid or test word for word, so scores there are too high"
    for split, figures in report.items():
        for address, path in figures.get("downloaded", {}).items():
            yield f"  {split} downloaded from {address}: {path}"
    for languages, sizes in data.taken.items():
        for split in sizes:
            files = ", ".join(str(out / name) for name in data.taken_files(split, languages))
            yield f"  {split} taken from train: {files}"
