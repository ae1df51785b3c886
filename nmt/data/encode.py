"""Cleans and encodes sentence pairs in chunks, on threads: SentencePiece works outside Python's global lock."""

from __future__ import annotations

import gc
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.data.pairs import Pair
from nmt.text.symbols import UNK
from nmt.text.tokenizer import AnyVocabulary

Ids = NDArray[np.int32]

LENGTH_STEPS = np.array([5, 10, 20, 30, 40, 60, 80, 120, 160, 256, 512, 1024])  # upper ends of the histogram's classes


class Chunk(NamedTuple):
    """Neighbouring pairs of one data set: the unit of work."""

    dataset: int
    """Which data set of its split, counted from 0."""
    first: int
    """Where the first pair stands in its split, counted from 1."""
    pairs: list[Pair]
    """Without whitespace around."""


class Sentences(NamedTuple):
    """Encoded sentences, end to end."""

    ids: Ids
    """(subwords,)"""
    lengths: Ids
    """(sentences,) subwords of each."""

    def only(self, kept: NDArray[np.bool_]) -> Sentences:
        """Those for which `kept` (sentences,) is true."""
        return Sentences(self.ids[np.repeat(kept, self.lengths)], self.lengths[kept])

    def with_symbol(self, index: int) -> int:
        """How many of them hold an id."""
        return len(np.unique(np.repeat(np.arange(len(self.lengths)), self.lengths)[self.ids == index]))


@dataclass(frozen=True)
class EncodedChunk:
    """The pairs that were kept of a chunk, encoded, and why others were dropped."""

    dataset: int
    read: int
    sides: Sequence[Sentences]
    """Source and target, or of a language model the target alone."""
    lines: NDArray[np.int64]
    """(pairs,) position of each in its split, counted from 1."""
    texts: list[Pair] | None
    """The text of these pairs, in evaluation splits."""
    counts: Counter[str]
    """Dropped pairs, by reason; and pairs and source sentences that are also in an evaluation split."""

    def length_classes(self) -> Counter[int]:
        """Histogram of lengths in subwords, over all sides: sentences by the upper end of their class.

        Above the last of `LENGTH_STEPS` each length is a class.
        """
        lengths = np.concatenate([side.lengths for side in self.sides])
        steps = LENGTH_STEPS[np.searchsorted(LENGTH_STEPS[:-1], lengths)]
        tops, sentences = np.unique(np.maximum(steps, lengths), return_counts=True)
        return Counter(dict(zip(tops.tolist(), sentences.tolist(), strict=True)))


@dataclass(frozen=True)
class PairEncoder:
    """Cleans, encodes and filters pairs, one chunk at a time."""

    vocabularies: Sequence[AnyVocabulary]
    """One for each side of the pairs."""
    max_length: int
    max_ratio: float
    evaluation: frozenset[Pair]
    """Pairs of valid and test, which are looked for in train."""
    keep_all: bool
    """Evaluation splits lose nothing, so that they stay aligned and comparable, and keep their text."""
    unit: str = "pairs"
    """What pairs are called in the counts."""

    @cached_property
    def _evaluation_sources(self) -> frozenset[str]:
        return frozenset(pair[0] for pair in self.evaluation)

    def encode(self, chunk: Chunk) -> EncodedChunk:
        """Encodes a chunk; several threads may do so at once."""
        counts: Counter[str] = Counter()
        lines, pairs = self._usable(chunk, counts)
        self._count_leaks(pairs, counts)
        columns = zip(*pairs, strict=True) if pairs else [()] * len(self.vocabularies)
        sides = [_encode_all(*side) for side in zip(self.vocabularies, columns, strict=True)]
        if reason := self.vocabularies[-1].UNSEEN:
            counts[reason] = sides[-1].with_symbol(UNK)
        if not self.keep_all and not (kept := self._fitting(sides, counts)).all():
            sides, lines = [side.only(kept) for side in sides], lines[kept]
        return EncodedChunk(chunk.dataset, len(chunk.pairs), sides, lines, pairs if self.keep_all else None, +counts)

    def _usable(self, chunk: Chunk, counts: Counter[str]) -> tuple[NDArray[np.int64], list[Pair]]:
        """Positions (pairs,) and pairs without those that are empty or not UTF-8, which it counts as dropped."""
        lines, pairs = [], []
        for line, pair in enumerate(chunk.pairs, chunk.first):
            if not self.keep_all and not all(pair):
                counts["dropped as empty"] += 1
            elif not self.keep_all and "\ufffd" in "".join(pair):
                counts["dropped as not UTF-8"] += 1
            else:
                lines.append(line)
                pairs.append(pair)
        return np.array(lines, dtype=np.int64), pairs

    def _count_leaks(self, pairs: Sequence[Pair], counts: Counter[str]) -> None:
        """Counts pairs that are also in an evaluation split, and other pairs whose source is."""
        known = self._evaluation_sources
        for pair in [pair for pair in pairs if pair[0] in known]:
            both = pair in self.evaluation
            counts[f"{self.unit} also in valid or test" if both else "source sentences also in valid or test"] += 1

    def _fitting(self, sides: Sequence[Sentences], counts: Counter[str]) -> NDArray[np.bool_]:
        """Which pairs (pairs,) are within the limits on lengths; counts the others as dropped."""
        shorter, longer = (extreme.reduce([side.lengths for side in sides]) for extreme in (np.minimum, np.maximum))
        fits = longer <= self.max_length
        kept: NDArray[np.bool_] = fits & (longer <= self.max_ratio * shorter)
        counts["dropped as too long"] = len(fits) - int(fits.sum())
        counts["dropped for their length ratio"] = int(fits.sum() - kept.sum())
        return kept


def _encode_all(vocabulary: AnyVocabulary, texts: Sequence[str]) -> Sentences:
    rows = vocabulary.encode_all(texts)
    lengths = np.fromiter(map(len, rows), np.int32, len(rows))
    return Sentences(np.fromiter(chain.from_iterable(rows), np.int32, int(lengths.sum())), lengths)


def encode_chunks(encoder: PairEncoder, chunks: Iterable[Chunk], threads: int) -> Iterator[EncodedChunk]:
    """Encodes chunks on `threads` threads, and yields them in order."""
    pool = ThreadPoolExecutor(threads)
    waiting: deque[Future[EncodedChunk]] = deque()
    collecting = gc.isenabled()
    gc.disable()  # there are millions of lists and no cycles: visiting them took 8% of the time
    try:
        for chunk in chunks:  # a bounded queue, so that a large corpus is not read ahead into memory
            waiting.append(pool.submit(encoder.encode, chunk))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
        if collecting:
            gc.enable()
