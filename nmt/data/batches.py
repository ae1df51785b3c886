"""Cuts updates into micro-batches, and turns these into tensors ahead of time: padded, or packed end to end.

Packed, a micro-batch has no masks, hardly any padding, and tensors of few shapes. Few shapes allow a GPU's work to be
recorded once for each of them. A batch of constant size would leave 8% of it empty, because the shorter side of an
update has 15% fewer tokens than the other on average (benchmarks/packing.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from nmt.batch import Batch, Packing, Sequences
from nmt.data.corpus import Corpus, Ids, Rows
from nmt.text.symbols import BOS, EOS, PAD

T = TypeVar("T")
SIZES = 16  # numbers of tokens that a side of a micro-batch can have; more of them mean less filler and more shapes
ALIGNED = 8  # numbers of tokens are multiples of it, which kernels need to be fast
BLOCK = 128  # queries or keys that a kernel of packed attention takes at a time


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


# --- packed ---------------------------------------------------------------------------------------------------


def deal_update(source_lengths: Ids, target_lengths: Ids, device_tokens: int, devices: int = 1) -> list[Rows]:
    """Deals the pairs of an update to micro-batches of at most `device_tokens` tokens on either side.

    As `split_update`, but without padding. Pairs are dealt like cards, and since neighbours are similar in length, all
    micro-batches have nearly equally many tokens on both sides.
    """
    sides = np.stack((source_lengths, target_lengths)).astype(np.int64) + 1
    pairs = sides.shape[1]
    count = devices * max(1, -(-int(sides.sum(1).max()) // (devices * device_tokens)))
    while True:
        parts = [np.arange(first, pairs, count) for first in range(count)]
        if all(len(part) <= 1 or sides[:, part].sum(1).max() <= device_tokens for part in parts):
            return parts
        count += devices


@dataclass(frozen=True)
class Packer:
    """Packs micro-batches. Each side is filled up to one of about `SIZES` sizes, with sequences that no pair sees."""

    share: int
    """Tokens of an update on either side, divided by the number of devices"""
    longest: int
    """Tokens of the longest sentence"""

    def pack(self, batch: Batch, device_tokens: int) -> Batch:
        """The pairs of a padded batch of at most `device_tokens` tokens on either side."""
        share = min(self.share, device_tokens)
        most = max(1, min(self.longest, BLOCK) - 1)  # tokens of a sequence of filler, beside the one that each has
        step = _up(-(-(share + 1) * most // (SIZES * most - 1)), ALIGNED)  # then `SIZES` steps hold a share and fillers
        fillers = -(-step // most)
        real = batch.target_in != PAD
        target_in, target = self._side(batch.target_in, real, step, fillers)
        target_out = torch.zeros_like(target_in)
        target_out[0, : int(real.sum())] = batch.target_out[real]
        source, sources = None, None
        if batch.source is not None:
            source, sources = self._side(batch.source, batch.source != PAD, step, fillers)
        known = torch.arange(batch.num_tokens)  # those of a batch without pairs are none
        return Batch(source, target_in, target_out, known, Packing(sources, target))

    def _side(self, ids: Tensor, real: Tensor, step: int, fillers: int) -> tuple[Tensor, Sequences]:
        """A row (1, tokens) of one side's ids and filler. Each filler has a token, so no softmax is over nothing."""
        tokens = int(real.sum())
        size = _up(tokens + fillers, step)
        row = torch.full((1, size), PAD)
        row[0, :tokens] = ids[real]
        filler = torch.arange(fillers + 1) * (size - tokens) // fillers
        count = len(ids) + fillers
        lengths = torch.zeros(_few(count), dtype=torch.int64)  # those of the last are 0, and they change nothing
        lengths[:count] = torch.cat((real.sum(1), filler.diff()))
        ends = lengths.cumsum(0)
        positions = torch.arange(size) - (ends - lengths).repeat_interleave(lengths)
        bounds = torch.cat((torch.zeros(1, dtype=torch.int64), ends)).int()
        longest = min(_up(int(lengths.max()), BLOCK), self.longest)
        return row, Sequences(bounds, positions[None], longest)


def largest_batch(corpus: Corpus, tokens: int) -> Batch:
    """A padded batch of so many tokens on each side, in as many pairs as can have so few: memory grows with both."""
    lengths = np.maximum(corpus.source_lengths, corpus.target_lengths)
    shortest = np.sort(lengths).cumsum(dtype=np.int64) + np.arange(1, len(lengths) + 1)
    pairs = max(1, int(np.searchsorted(shortest, tokens, side="right")))
    width = min(int(lengths.max()) + 1, -(-tokens // pairs))
    ids = torch.ones(-(-tokens // width), width, dtype=torch.int64)
    return Batch(ids if corpus.has_source else None, ids, ids, torch.arange(ids.numel()))


def _up(number: int, step: int) -> int:
    """The next multiple of `step`."""
    return -(-number // step) * step


def _few(number: int) -> int:
    """The next number with three significant bits."""
    return _up(number, 1 << max(0, number.bit_length() - 3))
