"""Chunks of sentence pairs to kept, encoded pairs; runs in worker processes, so it imports little."""

from __future__ import annotations

import multiprocessing
import signal
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from nmt.data.pairs import Pair
from nmt.errors import UserError
from nmt.text.tokenizer import Tokenizer, Vocabulary

LENGTH_STEPS = (5, 10, 20, 30, 40, 60, 80, 120, 160, 256, 512, 1024)  # upper ends of the histogram's classes


@dataclass
class EncodedChunk:
    """What is left of a chunk, and why the rest is not."""

    source: list[NDArray[np.int32]] = field(default_factory=list)
    target: list[NDArray[np.int32]] = field(default_factory=list)
    texts: list[Pair] = field(default_factory=list)
    """The text of what is left, in evaluation splits."""
    lines: list[int] = field(default_factory=list)
    """Where each pair stood in its split, counted from 1."""
    read: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    """Pairs dropped, by reason; pairs and source sentences that stand in an evaluation split too."""
    lengths: Counter[int] = field(default_factory=Counter)
    """Subwords of both sides: upper end of the class to sentences."""


@dataclass(frozen=True)
class PairEncoder:
    """Cleans, encodes and filters pairs; a chunk at a time."""

    vocabularies: tuple[bytes, ...]
    """Serialised tokenizer: one model, or source's and target's."""
    max_length: int
    max_ratio: float
    evaluation: frozenset[Pair]
    """Pairs of valid and test, to be looked for in train."""
    keep_all: bool
    """Evaluation splits lose nothing, so that they stay aligned and comparable, and keep their text."""

    @cached_property
    def _evaluation_sources(self) -> frozenset[str]:
        return frozenset(source for source, _ in self.evaluation)

    def tokenizer(self) -> Tokenizer:
        """The tokenizer, made anew: it does not travel between processes."""
        models = [Vocabulary(serialized, "tokenizer") for serialized in self.vocabularies]
        return Tokenizer(models[0], models[-1])

    def encode(self, tokenizer: Tokenizer, chunk: tuple[int, list[Pair]]) -> EncodedChunk:
        """`chunk` is the number of its first line and its pairs."""
        first, pairs = chunk
        result = EncodedChunk(read=len(pairs))
        clean = []
        for line, (source, target) in enumerate(pairs, first):
            source, target = source.strip(), target.strip()
            if not self.keep_all and (reason := _unusable(source, target)):
                result.counts[reason] += 1
                continue
            if (source, target) in self.evaluation:
                result.counts["pairs also in valid or test"] += 1
            elif source in self._evaluation_sources:
                result.counts["source sentences also in valid or test"] += 1
            clean.append((line, source, target))
        source_ids = tokenizer.source.encode_all([source for _, source, _ in clean])
        target_ids = tokenizer.target.encode_all([target for _, _, target in clean])
        for (line, source, target), source_id, target_id in zip(clean, source_ids, target_ids, strict=True):
            if not self.keep_all and (reason := self._misfit(len(source_id), len(target_id))):
                result.counts[reason] += 1
                continue
            result.lines.append(line)
            result.source.append(np.array(source_id, dtype=np.int32))
            result.target.append(np.array(target_id, dtype=np.int32))
            if self.keep_all:
                result.texts.append((source, target))
            for length in (len(source_id), len(target_id)):
                result.lengths[next((step for step in LENGTH_STEPS if length <= step), length)] += 1
        return result

    def _misfit(self, source_length: int, target_length: int) -> str | None:
        if max(source_length, target_length) > self.max_length:
            return "dropped as too long"
        if max(source_length, target_length) > self.max_ratio * min(source_length, target_length):
            return "dropped for their length ratio"
        return None


def _unusable(source: str, target: str) -> str | None:
    if not source or not target:
        return "dropped as empty"
    if "\ufffd" in source or "\ufffd" in target:
        return "dropped as not UTF-8"
    return None


_tokenizer: Tokenizer | None = None  # of this worker process
_encoder: PairEncoder | None = None


def encode_chunks(
    encoder: PairEncoder, chunks: Iterable[tuple[int, list[Pair]]], workers: int
) -> Iterator[EncodedChunk]:
    """Encodes chunks in order, in `workers` processes where there are more than one."""
    if workers == 1:
        tokenizer = encoder.tokenizer()
        yield from (encoder.encode(tokenizer, chunk) for chunk in chunks)
        return
    context = multiprocessing.get_context("spawn")  # not forked: the parent may run threads by now
    with ProcessPoolExecutor(workers, context, _start_worker, (encoder,)) as pool:
        waiting: deque[Future[EncodedChunk]] = deque()
        try:
            for chunk in chunks:  # a bounded queue, so that a large corpus is not read ahead into memory
                waiting.append(pool.submit(_encode_in_worker, chunk))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool:
            raise UserError("a worker process died while encoding", "out of memory? try --threads 1") from None
        finally:
            pool.shutdown(cancel_futures=True)


def _start_worker(encoder: PairEncoder) -> None:
    global _encoder, _tokenizer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    _encoder, _tokenizer = encoder, encoder.tokenizer()


def _encode_in_worker(chunk: tuple[int, list[Pair]]) -> EncodedChunk:
    assert _encoder is not None
    assert _tokenizer is not None
    return _encoder.encode(_tokenizer, chunk)
