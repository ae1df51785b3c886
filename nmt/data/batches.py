"""Which pairs make an update, and the tensors of a micro-batch (section 5.1).

The plan of an epoch is a pure function of the lengths, the seed and the epoch's number: nothing to save, and a
resumed run continues it at any update.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmt.data.corpus import Corpus, Ids
from nmt.text.tokenizer import BOS, EOS, PAD

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """A micro-batch; padding is 0."""

    source: Tensor
    """(batch, source length), each row ending in `</s>`"""
    target_in: Tensor
    """(batch, target length), each row beginning with `<s>`"""
    target_out: Tensor
    """(batch, target length), each row ending in `</s>`"""
    num_tokens: int
    """Target tokens, `</s>` counted, padding not"""

    def to(self, device: torch.device) -> Batch:
        """The batch on another device."""
        return Batch(self.source.to(device), self.target_in.to(device), self.target_out.to(device), self.num_tokens)


@dataclass(frozen=True)
class Plan:
    """The updates of one epoch: every pair exactly once."""

    order: Rows
    """(pairs,) rows of the corpus by length"""
    bounds: Rows
    """(updates, 2) begin and end of each update in `order`, shuffled"""

    def __len__(self) -> int:
        return len(self.bounds)

    def rows(self, update: int) -> Rows:
        """Rows of one update, similar in length."""
        begin, end = self.bounds[update]
        return self.order[begin:end]


def plan_epoch(source_lengths: Ids, target_lengths: Ids, batch_tokens: int, seed: int, epoch: int) -> Plan:
    """Buckets by approximate length: neither side of an update has more than `batch_tokens` tokens.

    Lengths (pairs,) count subwords without `</s>`, tokens count it. Pairs are sorted by the longer side and, among
    equals, by which side that is and how much longer, up and down in turn, so that neighbours differ little on both
    sides (3.4% padding where sorting by one side and then the other leaves 8.7%, benchmarks/RESULTS.md); ties fall
    at random in every epoch, and so does the order of updates.
    """
    random = np.random.default_rng((seed, epoch))
    order = random.permutation(len(target_lengths))
    source, target = source_lengths[order].astype(np.int64) + 1, target_lengths[order].astype(np.int64) + 1
    longer, difference = np.maximum(source, target), source - target
    span = 2 * int(longer.max(initial=0)) + 1
    key = longer * span + np.where(longer % 2 == 0, difference, -difference)
    by_length = np.argsort(key, kind="stable")
    order = order[by_length]
    cuts = _cuts(source[by_length], target[by_length], batch_tokens)
    bounds = np.stack((cuts[:-1], cuts[1:]), axis=1)
    random.shuffle(bounds)
    return Plan(order, bounds)


def _cuts(source: NDArray[np.int64], target: NDArray[np.int64], batch_tokens: int) -> Rows:
    """Where updates begin, and the end: as many pairs each as `batch_tokens` allows on both sides."""
    source_sums, target_sums = np.cumsum(source), np.cumsum(target)
    cuts, begin = [0], 0
    while begin < len(source):
        before = (source_sums[begin - 1], target_sums[begin - 1]) if begin else (0, 0)
        ends = (
            np.searchsorted(source_sums, before[0] + batch_tokens, side="right"),
            np.searchsorted(target_sums, before[1] + batch_tokens, side="right"),
        )
        begin = max(int(min(ends)), begin + 1)
        cuts.append(begin)
    return np.array(cuts, dtype=np.int64)


def split_update(rows: Rows, source_lengths: Ids, target_lengths: Ids, device_tokens: int) -> list[Rows]:
    """Cuts an update into micro-batches of at most `device_tokens` cells on either side, padding counted."""
    widths = np.maximum(source_lengths[rows], target_lengths[rows]) + 1
    for count in range(1, len(rows) + 1):
        parts = np.array_split(np.arange(len(rows)), count)  # of equal size, so that none is left tiny
        if all(widths[part].max() * len(part) <= device_tokens or len(part) == 1 for part in parts):
            return [rows[part] for part in parts]
    return []


def make_batch(corpus: Corpus, rows: Rows) -> Batch:
    """Reads a micro-batch's pairs into padded tensors."""
    sources = [corpus.source(int(row)) for row in rows]
    targets = [corpus.target(int(row)) for row in rows]
    return Batch(
        source=pad_ids(sources, after=EOS),
        target_in=pad_ids(targets, before=BOS),
        target_out=pad_ids(targets, after=EOS),
        num_tokens=sum(map(len, targets)) + len(targets),
    )


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
