"""Batches of token ids: padded to a common length, or packed end to end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

PADDING = 0  # the id beyond the end of a sequence
ALIGNED = 64  # bytes: in a joined buffer, each tensor begins at a multiple of this


class Groups(NamedTuple):
    """Groups of whole consecutive sequences, each so short on both sides that its attention fits one tile of scores."""

    bounds: Tensor
    """(groups + 1,) int32 index of each group's first token, then the number of tokens"""
    segments: Tensor
    """(tokens,) int32 index of each token's sequence"""
    tile: int
    """Upper bound on the tokens of a group on either side"""


class Sequences(NamedTuple):
    """Boundaries of sequences packed end to end into one row."""

    bounds: Tensor
    """(sequences + 1,) int32 cumulative lengths, beginning with 0"""
    positions: Tensor
    """(1, tokens) position of each token within its sequence"""
    longest: int
    """Upper bound on the sequence lengths"""
    groups: Groups | None = None


class Packing(NamedTuple):
    """Sequences of a packed batch, equally many on both sides, in equal groups."""

    source: Sequences
    target: Sequences


@dataclass(frozen=True)
class Batch:
    """A micro-batch of pairs: padded with one pair per row, or packed into a single row described by `packing`."""

    source: Tensor
    """(batch, source length), each row ending in `</s>`"""
    target_in: Tensor
    """(batch, target length), each row beginning with `<s>`"""
    target_out: Tensor
    """(batch, target length), each row ending in `</s>`"""
    real: Tensor | None
    """(tokens,) indices of non-padding tokens in the flattened `target_out`; None if packed. The host computes them: a
    GPU could not without a sync"""
    packing: Packing | None = None
    buffer: Tensor | None = None
    """(bytes,) uint8 that all tensors are views of, once they are `joined`"""

    @property
    def num_cells(self) -> int:
        """Number of tokens on both sides, including padding."""
        return self.target_out.numel() + self.source.numel()

    def to(self, device: torch.device) -> Batch:
        """Copy the batch to `device`, asynchronously from pinned memory."""
        return self._copied(lambda ids: ids.to(device, non_blocking=True))

    def joined(self, pinned: bool) -> Batch:
        """Copy the batch into one buffer, `pinned` or not, so that a GPU gets it in one transfer."""
        tensors = self._tensors()
        size = sum(map(_aligned_bytes, tensors))
        joined = self._within(torch.zeros(size, dtype=torch.uint8, pin_memory=pinned))
        for own, ids in zip(joined._tensors(), tensors, strict=True):
            own.copy_(ids)
        return joined

    def hold(self, stream: torch.cuda.Stream) -> None:
        """Keep the allocator from reusing the batch's memory before `stream` has used it."""
        for part in self._parts():
            part.record_stream(stream)

    def shape(self) -> tuple[object, ...]:
        """Return what a CUDA graph of the batch depends on: the shapes of all tensors, and all numbers.

        `target_out` has the shape of `target_in`; only packed batches have graphs, and these have no `real`.
        """
        return tuple(_mapped(field, Tensor.size) for field in (self.source, self.target_in, self.packing))

    def clone(self) -> Batch:
        """Copy the batch on its device."""
        return self._copied(Tensor.clone)

    def copy_(self, other: Batch) -> None:
        """Overwrite the tensors with those of `other`, which has the same shape and is joined if this batch is."""
        for own, part in zip(self._parts(), other._parts(), strict=True):
            own.copy_(part)

    def _parts(self) -> list[Tensor]:
        """Return all memory of the batch: its buffer, or else its tensors."""
        if self.buffer is None:
            return self._tensors()
        return [self.buffer]

    def _tensors(self) -> list[Tensor]:
        """Return all tensors but the buffer, in the order of the fields."""
        found = list[Tensor]()

        def note(ids: Tensor) -> Tensor:
            found.append(ids)
            return ids

        self._map(note)
        return found

    def _copied(self, copy: Callable[[Tensor], Tensor]) -> Batch:
        """Return a batch in memory that `copy` has made: of the whole buffer, or else of each tensor."""
        if self.buffer is None:
            return self._map(copy)
        return self._within(copy(self.buffer))

    def _within(self, buffer: Tensor) -> Batch:
        """Return a batch of tensors of the same shapes, which are views of `buffer`."""
        begin = 0

        def view(ids: Tensor) -> Tensor:
            nonlocal begin
            part = buffer[begin : begin + ids.nbytes].view(ids.dtype).view(ids.shape)
            begin += _aligned_bytes(ids)
            return part

        return replace(self._map(view), buffer=buffer)

    def _map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        """Apply `function` to each tensor; the result has no buffer."""
        fields = (self.source, self.target_in, self.target_out, self.real, self.packing)
        return Batch(*(_mapped(field, function) for field in fields))


def _aligned_bytes(ids: Tensor) -> int:
    """Return a tensor's bytes, rounded up so that the next one in a buffer is aligned for a GPU's widest loads."""
    return -(-ids.nbytes // ALIGNED) * ALIGNED


def _mapped(field: Any, function: Callable[[Tensor], object]) -> Any:
    """Apply `function` to a tensor, or to all tensors of a named tuple."""
    if isinstance(field, Tensor):
        return function(field)
    if isinstance(field, tuple):
        return type(field)(*(_mapped(part, function) for part in field))
    return field


def pad_ids(
    rows: Sequence[Sequence[int] | NDArray[np.int32]], before: int | None = None, after: int | None = None
) -> Tensor:
    """Pad rows of ids to (rows, longest) int64, adding the symbols `before` and `after` to each if given."""
    first = [] if before is None else [before]
    last = [] if after is None else [after]
    added = len(first) + len(last)
    padded = np.full((len(rows), max(map(len, rows)) + added), PADDING, dtype=np.int64)
    for line, ids in zip(padded, rows, strict=True):
        line[: len(ids) + added] = [*first, *ids, *last]
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
