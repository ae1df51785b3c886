"""What preparing found: report.json, the overlap of evaluation splits with training, and a summary for the screen."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import RootModel

from nmt.data.corpus import NO_SOURCE, SIDES, Corpus, Sentences
from nmt.recipe import Data
from nmt.system.errors import UserError, printable
from nmt.system.files import read_json
from nmt.system.integrity import checked, intact
from nmt.text.lines import stripped
from nmt.text.tokenizer import Tokenizer

REPORT = "report.json"
"""Counts of pairs read, kept and dropped, and lengths, by split"""
OVERLAP = "overlap.json"
"""For each line of an evaluation split, the fraction of its n-grams that occur in training"""
LENGTH_STEP = 10
"""Width of a length class, in subwords"""
RANGES = 12
"""Maximum ranges of lengths that are shown"""
WORDS = 4
"""Words of an n-gram"""
NEAR = 0.5
"""Minimum fraction of a source's n-grams, also in training, that makes it near to the training data"""

LARGEST = np.uint64(2**64 - 1)


class _Report(RootModel[dict[str, dict[str, Any]]]):
    """Contents of report.json: statistics by split."""


def read_report(prepared: Path) -> dict[str, Any]:
    """Read report.json, which counts pairs read, kept and dropped; raise UserError if it is missing or damaged."""
    return checked(_Report, read_json(intact(prepared / REPORT)), prepared / REPORT).root


def figures_of(report: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the figures of each split, without texts and characters."""
    texts = ("examples", "spelled as bytes")
    return {split: {k: figure for k, figure in figures.items() if k not in texts} for split, figures in report.items()}


def training_pairs(prepared: Path) -> int | None:
    """Return the number of training pairs kept; None if nothing is prepared."""
    return int(read_report(prepared)["train"]["kept"]) if (prepared / REPORT).exists() else None


def mean_lengths(prepared: Path) -> tuple[float, float] | None:
    """Return the mean source and target length of the training split; None if nothing is prepared.

    A language model's source length is NO_SOURCE.
    """
    train = read_report(prepared)["train"] if (prepared / REPORT).exists() else {}
    source, target = train.get("mean length of sources", NO_SOURCE), train.get("mean length of targets")
    return (source, target) if source and target else None


class Overlap:
    """The n-grams of words that evaluation sources share with the training sources.

    A source with fewer words than an n-gram counts as one n-gram, which only an equal source shares.
    """

    def __init__(self, starts: Sequence[bool], sources: Sentences) -> None:
        """Look for the n-grams of evaluation `sources`; `starts` tells whether each symbol begins a word."""
        self._starts = np.array(starts)
        self._grams, self._owners = self._ngrams(sources)
        self._known = np.unique(np.append(self._grams, LARGEST))  # so that each n-gram has a place
        self._seen = np.zeros(len(self._known), bool)
        self._count = len(sources.lengths)

    def add(self, sources: Sentences) -> None:
        """Note the n-grams that occur in training sources."""
        grams, _ = self._ngrams(sources)
        places = np.searchsorted(self._known, grams)
        self._seen[places[self._known[places] == grams]] = True

    def shares(self) -> NDArray[np.float64]:
        """Return the fraction of each evaluation source's n-grams that occur in training: (sources,)."""
        seen = self._seen[np.searchsorted(self._known, self._grams)]
        totals = np.bincount(self._owners, minlength=self._count)
        shares: NDArray[np.float64] = np.bincount(self._owners, seen, minlength=self._count) / totals.clip(min=1)
        return shares

    def _ngrams(self, sentences: Sentences) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """Return the hash of each n-gram, and the number of its sentence: (n-grams,) each."""
        rows = np.repeat(np.arange(len(sentences.lengths)), sentences.lengths)
        is_first = np.diff(rows, prepend=-1) > 0  # of a sentence
        first = np.flatnonzero(self._starts[sentences.ids] | is_first)  # of a word
        within = np.arange(len(rows)) - np.repeat(first, np.diff(first, append=len(rows)))
        words = np.add.reduceat(_mixed(sentences.ids.astype(np.uint64) + _mixed(within.astype(np.uint64))), first)
        owners = rows[first]
        hashes, count = np.zeros_like(words), len(words)
        following, theirs = np.pad(words, (0, WORDS)), np.pad(owners, (0, WORDS), constant_values=-1)
        for place in range(WORDS):  # 0 stands for words beyond the end of a sentence
            is_inside = theirs[place : place + count] == owners
            hashes = _mixed(hashes + np.where(is_inside, following[place : place + count], np.uint64(0)))
        kept = is_inside | is_first[first]
        return hashes[kept], owners[kept]


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scramble 64-bit integers (the finaliser of SplitMix64), modulo 2^64."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


class _Shares(RootModel[dict[str, list[float]]]):
    """Contents of overlap.json: for each line of an evaluation split, the fraction of its n-grams in training."""


def near_lines(prepared: Path, references: Sequence[str]) -> list[bool]:
    """Return which lines of an evaluation split, given by its references, are near to the training data.

    Raise UserError if the references are not those of a split of the prepared data.
    """
    shares = checked(_Shares, read_json(intact(prepared / OVERLAP)), prepared / OVERLAP).root
    lines = [stripped(line) for line in references]
    for split, found in shares.items():
        if len(found) == len(lines) and Corpus(intact(prepared / f"{split}.arrow")).texts()[1] == lines:
            return [share >= NEAR for share in found]
    problem = f"{prepared}: REF is not the target side of {' or '.join(shares)} there"
    raise UserError(problem, "give the test set that the data was prepared with, or leave out --prepared")


def length_figures(corpus: Corpus) -> dict[str, Any]:
    """Return the mean length of each side of a split, and its sentences by length class, keyed by the upper bound."""
    means, classes = {}, {}
    for side, lengths in zip(SIDES, (corpus.source_lengths, corpus.target_lengths), strict=True):
        if side == "target" or corpus.has_source:
            means[f"mean length of {side}s"] = float(np.round(lengths.sum() / max(1, len(lengths)), 2))
            counts = np.bincount(np.maximum(1, -(-lengths // LENGTH_STEP))).tolist()
            classes[side] = {str(LENGTH_STEP * number): count for number, count in enumerate(counts) if count}
    return {**means, "lengths": classes}


def length_ranges(classes: Mapping[str, int]) -> dict[str, int]:
    """Return the number of sentences in at most `RANGES` ranges of equal width, and beyond them, by label.

    `classes` are the sentences by the upper bound of their length class, as report.json has them. The ranges hold at
    least 99% of the sentences.
    """
    counts = {int(top): count for top, count in classes.items()}
    tops = sorted(counts)
    shares = accumulate(counts[top] for top in tops)
    usual = next((top for top, share in zip(tops, shares, strict=True) if share >= 0.99 * sum(counts.values())), 0)
    width = LENGTH_STEP * max(1, math.ceil(usual / (LENGTH_STEP * RANGES)))
    ends = range(width, usual + width, width)
    found = {f"{end - width + 1:,}–{end:,}": sum(counts.get(end - less, 0) for less in range(width)) for end in ends}
    longer = sum(count for top, count in counts.items() if ends and top > ends[-1])
    return found | ({f"over {ends[-1]:,}": longer} if longer else {})


def summary(out: Path, report: dict[str, dict[str, Any]], tokenizer: Tokenizer, data: Data) -> Iterator[str]:
    """Yield the summary of a report, line by line; `out` is the directory of the prepared data."""
    task, unit, train = data.task, data.task.unit, report["train"]
    pieces = f"{len(tokenizer.source):,} pieces"
    if not tokenizer.shared:
        pieces += f" and {len(tokenizer.target):,} {'tree symbols' if task.has_trees else 'pieces'}"
    yield f"prepared {out}: {pieces}"
    told = ("dropped", "set aside", unit, "source sentences", "trees", "targets", "identifiers", "traces")
    for split, figures in report.items():
        if not figures["read"]:
            continue
        symbols = "tree symbols" if task.has_trees else "subwords"
        source, target = figures.get("mean length of sources"), figures["mean length of targets"]
        notes = [f"{target} subwords each" if not task.has_source else f"{source} subwords in, {target} {symbols} out"]
        if len(figures["kept by set"]) > 1:
            notes.append(f"by set {' + '.join(f'{kept:,}' for kept in figures['kept by set'])}")
        notes += [f"{value:,} {name}" for name, value in figures.items() if name.startswith(told)]
        if near := figures.get("near to training"):
            notes.append(f"{near:,} near to training")
        read = f"{figures['read']:,} {'trees' if task.has_trees else unit}"
        yield f"  {split}: {figures['kept']:,} of {read}, {', '.join(notes)}"
    for reason, examples in chain.from_iterable(figures["examples"].items() for figures in report.values()):
        yield f"  {reason}: {printable(examples[0])}"
    for side, classes in train["lengths"].items():
        listed = ", ".join(f"{length}: {count:,}" for length, count in length_ranges(classes).items())
        yield f"  train {side}s by length: {listed}"
    if report["test"].get("near to training", 0) * 10 > report["test"]["read"]:
        apart = f"nmt score --prepared {out} scores these lines separately"
        yield f"  near to training: at least half of a source's {WORDS}-grams occur in train; {apart}"
    if several := train.get("sources with several sentences"):
        yield f"  train sources with several sentences: {several / train['kept']:.0%}"
    if characters := train["spelled as bytes"]["characters"]:
        most = train["spelled as bytes"]["most often"]
        shown = {c if c.isprintable() else f"U+{ord(c):04X}": count for c, count in most.items()}
        listed = ", ".join(f"'{character}' {count:,}" for character, count in [*shown.items()][:10])
        yield f"  train characters spelled as bytes: {characters:,}, of which most often {listed}"
    if leaked := train.get(f"{unit} also in valid or test"):
        yield f"  warning: {leaked:,} training {unit} are in valid or test word for word, so scores there are too high"
    for languages, sizes in data.taken.items():
        for split in sizes:
            files = ", ".join(str(out / name) for name in data.taken_files(split, languages))
            yield f"  {split} taken from train: {files}"
