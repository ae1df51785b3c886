"""Updates to micro-batches to tensors."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from nmt.data.corpus import Corpus, Ids, Rows
from nmt.text.symbols import BOS, EOS, PAD

T = TypeVar("T")


@dataclass(frozen=True)
class Batch:
    """A micro-batch; padding is 0."""

    source: Tensor | None
    """(batch, source length), each row ending in `</s>`; a language model has none"""
    target_in: Tensor
    """(batch, target length), each row beginning with `<s>`"""
    target_out: Tensor
    """(batch, target length), each row ending in `</s>`"""
    real: Tensor
    """(tokens,) cells of `target_out`, row after row, that are not padding: known here without asking the device"""

    @property
    def num_tokens(self) -> int:
        """Target tokens, `</s>` counted, padding not."""
        return self.real.numel()

    @property
    def num_cells(self) -> int:
        """Of both sides, padding counted."""
        return self.target_out.numel() + (0 if self.source is None else self.source.numel())

    def to(self, device: torch.device) -> Batch:
        """The batch on another device; from pinned memory the copy runs beside what the device computes."""
        return self._each(lambda ids: ids.to(device, non_blocking=True))

    def pin(self) -> Batch:
        """The batch in memory that a GPU can copy from by itself."""
        return self._each(Tensor.pin_memory)

    def _each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        source = None if self.source is None else change(self.source)
        return Batch(source, change(self.target_in), change(self.target_out), change(self.real))


def split_update(source_lengths: Ids, target_lengths: Ids, device_tokens: int, devices: int = 1) -> list[Rows]:
    """Cuts an update into micro-batches of at most `device_tokens` cells on either side, padding counted.

    Gives indices into the update whose lengths (pairs,) are given: equally many micro-batches for each of `devices`,
    which take them in turn; of nearly equal size, so that none is left tiny. A pair longer than `device_tokens` makes
    one alone; where there are fewer pairs than micro-batches, some are empty.
    """
    widths = np.maximum(source_lengths, target_lengths).astype(np.int64) + 1
    rounds = min(-(-int(widths.sum()) // (devices * device_tokens)), -(-len(widths) // devices))
    count = devices * max(1, rounds)
    while True:
        parts = np.array_split(np.arange(len(widths)), count)
        if all(len(part) <= 1 or widths[part].max() * len(part) <= device_tokens for part in parts):
            return parts
        count += devices


def make_batch(corpus: Corpus, rows: Rows) -> Batch:
    """Reads a micro-batch's pairs into padded tensors; of no pairs, a batch whose every target is padding."""
    if not len(rows):
        end, begin, nothing = (torch.tensor([[symbol]]) for symbol in (EOS, BOS, PAD))
        return Batch(end if corpus.has_source else None, begin, nothing, torch.empty(0, dtype=torch.int64))
    target_ids, target_lengths = corpus.targets(rows)
    target_out = _with_end(target_ids, target_lengths)
    return Batch(
        source=torch.from_numpy(_with_end(*corpus.sources(rows))) if corpus.has_source else None,
        target_in=torch.from_numpy(np.pad(target_ids, ((0, 0), (1, 0)), constant_values=BOS)),
        target_out=torch.from_numpy(target_out),
        real=torch.from_numpy(np.flatnonzero(target_out)),
    )


def _with_end(ids: Rows, lengths: Ids) -> Rows:
    ended = np.pad(ids, ((0, 0), (0, 1)), constant_values=PAD)
    ended[np.arange(len(ids)), lengths] = EOS
    return ended


def pad_ids(rows: Sequence[Ids | Sequence[int]], before: int | None = None, after: int | None = None) -> Tensor:
    """(rows, longest) int64, each row between the given symbols and padded at its end."""
    extra = (before is not None) + (after is not None)
    start = int(before is not None)
    padded = np.full((len(rows), max(map(len, rows)) + extra), PAD, dtype=np.int64)
    for line, ids in zip(padded, rows, strict=True):
        end = start + len(ids)
        line[start:end] = ids
        if before is not None:
            line[0] = before
        if after is not None:
            line[end] = after
    return torch.from_numpy(padded)


def prefetched(items: Iterator[T], ahead: int) -> Generator[T]:
    """The same items, computed by a thread that stays up to `ahead` of them in front."""
    end = object()
    pool = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
    try:
        waiting: deque[Future[T | object]] = deque(pool.submit(next, items, end) for _ in range(ahead))
        while (item := waiting.popleft().result()) is not end:
            waiting.append(pool.submit(next, items, end))
            yield item  # type: ignore[misc]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
