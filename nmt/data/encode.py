"""Chunks of sentence pairs to kept, encoded pairs, on threads: SentencePiece works outside Python's lock."""

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
    """What is left of a chunk, and why the rest is not."""

    dataset: int
    read: int
    sides: Sequence[Sentences]
    """Source and target, or of a language model the target alone."""
    lines: NDArray[np.int64]
    """(pairs,) where each stands in its split, counted from 1."""
    texts: list[Pair] | None
    """The text of what is left, in evaluation splits."""
    counts: Counter[str]
    """Pairs dropped, by reason; pairs and source sentences that stand in an evaluation split too."""

    def length_classes(self) -> Counter[int]:
        """Subwords of all sides: upper end of the class to sentences; above the last step each length for itself."""
        lengths = np.concatenate([side.lengths for side in self.sides])
        steps = LENGTH_STEPS[np.searchsorted(LENGTH_STEPS[:-1], lengths)]
        tops, sentences = np.unique(np.maximum(steps, lengths), return_counts=True)
        return Counter(dict(zip(tops.tolist(), sentences.tolist(), strict=True)))


@dataclass(frozen=True)
class PairEncoder:
    """Cleans, encodes and filters pairs; a chunk at a time."""

    vocabularies: Sequence[AnyVocabulary]
    """One for each side of the pairs."""
    max_length: int
    max_ratio: float
    evaluation: frozenset[Pair]
    """Pairs of valid and test, to be looked for in train."""
    keep_all: bool
    """Evaluation splits lose nothing, so that they stay aligned and comparable, and keep their text."""
    unit: str = "pairs"
    """What pairs are called in the counts."""

    @cached_property
    def _evaluation_sources(self) -> frozenset[str]:
        return frozenset(pair[0] for pair in self.evaluation)

    def encode(self, chunk: Chunk) -> EncodedChunk:
        """May run on several threads at once."""
        counts: Counter[str] = Counter()
        lines, pairs = [], []
        for line, pair in enumerate(chunk.pairs, chunk.first):
            if not self.keep_all and not all(pair):
                counts["dropped as empty"] += 1
            elif not self.keep_all and "\ufffd" in "".join(pair):
                counts["dropped as not UTF-8"] += 1
            else:
                lines.append(line)
                pairs.append(pair)
        known = self._evaluation_sources
        for pair in [pair for pair in pairs if pair[0] in known]:
            both = pair in self.evaluation
            counts[f"{self.unit} also in valid or test" if both else "source sentences also in valid or test"] += 1
        columns = zip(*pairs, strict=True) if pairs else [()] * len(self.vocabularies)
        sides = [_encode_all(*side) for side in zip(self.vocabularies, columns, strict=True)]
        if reason := self.vocabularies[-1].UNSEEN:
            counts[reason] = sides[-1].with_symbol(UNK)
        numbers = np.array(lines, dtype=np.int64)
        if self.keep_all:
            return EncodedChunk(chunk.dataset, len(chunk.pairs), sides, numbers, pairs, +counts)
        shorter, longer = (extreme.reduce([side.lengths for side in sides]) for extreme in (np.minimum, np.maximum))
        fits = longer <= self.max_length
        kept = fits & (longer <= self.max_ratio * shorter)
        counts["dropped as too long"] = len(fits) - int(fits.sum())
        counts["dropped for their length ratio"] = int(fits.sum() - kept.sum())
        if not kept.all():
            sides, numbers = [side.only(kept) for side in sides], numbers[kept]
        return EncodedChunk(chunk.dataset, len(chunk.pairs), sides, numbers, None, +counts)


def _encode_all(vocabulary: AnyVocabulary, texts: Sequence[str]) -> Sentences:
    rows = vocabulary.encode_all(texts)
    lengths = np.fromiter(map(len, rows), np.int32, len(rows))
    return Sentences(np.fromiter(chain.from_iterable(rows), np.int32, int(lengths.sum())), lengths)


def encode_chunks(encoder: PairEncoder, chunks: Iterable[Chunk], threads: int) -> Iterator[EncodedChunk]:
    """Encodes chunks on `threads` threads, and gives them in order."""
    pool = ThreadPoolExecutor(threads)
    waiting: deque[Future[EncodedChunk]] = deque()
    collecting = gc.isenabled()
    gc.disable()  # millions of lists and none in a cycle: walking them took 8% of the time
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
