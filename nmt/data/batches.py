"""Cuts updates into micro-batches, and turns these into tensors ahead of time."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import torch

from nmt.batch import Batch
from nmt.data.corpus import Corpus, Ids, Rows
from nmt.text.symbols import BOS, EOS, PAD

T = TypeVar("T")


def split_update(source_lengths: Ids, target_lengths: Ids, device_tokens: int, devices: int = 1) -> list[Rows]:
    """Cuts an update into micro-batches of at most `device_tokens` cells on either side, including padding.

    Lengths (pairs,) are those of the update, and micro-batches are indices into it. Each of `devices` gets equally
    many, in turn, of nearly equal size so that none is left tiny. A pair longer than `device_tokens` makes a
    micro-batch of its own; with fewer pairs than micro-batches, some are empty.
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
    """Reads pairs into padded tensors; without any pairs, makes a batch in which every target is padding."""
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


def prefetched(items: Iterator[T], ahead: int) -> Generator[T]:
    """Yields the same items, computed in a thread that works up to `ahead` items in advance."""
    end = object()
    pool = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
    try:
        waiting: deque[Future[T | object]] = deque(pool.submit(next, items, end) for _ in range(ahead))
        while (item := waiting.popleft().result()) is not end:
            waiting.append(pool.submit(next, items, end))
            yield item  # type: ignore[misc]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
