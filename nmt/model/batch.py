"""Batches of token ids: padded to a common length, or packed end to end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

PADDING = 0  # the id beyond the end of a sequence


class Sequences(NamedTuple):
    """Boundaries of sequences packed end to end into one row."""

    bounds: Tensor
    """(sequences + 1,) int32 cumulative lengths, beginning with 0"""
    positions: Tensor
    """(1, tokens) position of each token within its sequence"""
    longest: int
    """Upper bound on the sequence lengths"""

    def map(self, function: Callable[[Tensor], Tensor]) -> Sequences:
        """Apply `function` to both tensors."""
        return Sequences(function(self.bounds), function(self.positions), self.longest)


class Packing(NamedTuple):
    """Sequences of a packed batch, equally many on both sides; a language model has no source."""

    source: Sequences | None
    target: Sequences


@dataclass(frozen=True)
class Batch:
    """A micro-batch of pairs: padded with one pair per row, or packed into a single row described by `packing`."""

    source: Tensor | None
    """(batch, source length), each row ending in `</s>`; None for a language model"""
    target_in: Tensor
    """(batch, target length), each row beginning with `<s>`"""
    target_out: Tensor
    """(batch, target length), each row ending in `</s>`"""
    real: Tensor
    """(tokens,) indices of non-padding tokens in the flattened `target_out`; finding them on a GPU would need a sync"""
    packing: Packing | None = None

    @property
    def num_tokens(self) -> int:
        """Number of target tokens, including `</s>` but not padding."""
        return self.real.numel()

    @property
    def num_cells(self) -> int:
        """Number of tokens on both sides, including padding."""
        return self.target_out.numel() + (0 if self.source is None else self.source.numel())

    def to(self, device: torch.device) -> Batch:
        """Copy the batch to `device`, asynchronously from pinned memory."""
        return self._map(lambda ids: ids.to(device, non_blocking=True))

    def pin(self) -> Batch:
        """Copy the batch to pinned memory."""
        return self._map(Tensor.pin_memory)

    def hold(self, stream: torch.cuda.Stream) -> None:
        """Keep the allocator from reusing the batch's memory before `stream` has used it."""
        self._map(lambda ids: ids.record_stream(stream) or ids)  # type: ignore[func-returns-value]

    def _map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        source = None if self.source is None else function(self.source)
        packing = self.packing
        if packing is not None:
            packing = Packing(packing.source and packing.source.map(function), packing.target.map(function))
        return Batch(source, function(self.target_in), function(self.target_out), function(self.real), packing)


def pad_ids(
    rows: Sequence[Sequence[int] | NDArray[np.int32]], before: int | None = None, after: int | None = None
) -> Tensor:
    """Pad rows of ids to (rows, longest) int64, adding the symbols `before` and `after` to each if given."""
    first, last = ([] if symbol is None else [symbol] for symbol in (before, after))
    padded = np.full((len(rows), len(first) + max(map(len, rows)) + len(last)), PADDING, dtype=np.int64)
    for line, ids in zip(padded, rows, strict=True):
        line[: len(first) + len(ids) + len(last)] = [*first, *ids, *last]
    return torch.from_numpy(padded)


def in_batches(sizes: Sequence[tuple[int, ...]], tokens: int) -> Iterator[list[int]]:
    """Yield batches of indices into `sizes`, largest first, each of at most `tokens` padded tokens or a single index.

    The first number of a size is its padded width; the others break ties.
    """
    order = sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True)
    while order:
        count = max(1, tokens // sizes[order[0]][0])
        yield order[:count]
        order = order[count:]
