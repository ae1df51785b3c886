"""Batches of sentences as tensors: padded to one length, or packed end to end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmt.text.vocabulary import PAD


class Sequences(NamedTuple):
    """Places of sequences that are laid end to end in a row of tokens."""

    bounds: Tensor
    """(sequences + 1,) int32: where each sequence begins, and where the last one ends"""
    positions: Tensor
    """(1, tokens) position of each token in its sequence"""
    longest: int
    """No sequence has more tokens."""

    def each(self, change: Callable[[Tensor], Tensor]) -> Sequences:
        """Apply a function to both tensors."""
        return Sequences(change(self.bounds), change(self.positions), self.longest)


class Packing(NamedTuple):
    """Places of the sequences in a packed batch, as many on both sides."""

    source: Sequences | None
    """None for a language model"""
    target: Sequences


@dataclass(frozen=True)
class Batch:
    """A micro-batch: a row for each pair, padded with 0; or packed, all pairs in a single row."""

    source: Tensor | None
    """(batch, source length), each row ending in `</s>`; a language model has none"""
    target_in: Tensor
    """(batch, target length), each row beginning with `<s>`"""
    target_out: Tensor
    """(batch, target length), each row ending in `</s>`"""
    real: Tensor
    """(tokens,) indices into the flattened `target_out` of what is not padding: known here without asking the device"""
    packing: Packing | None = None
    """None if the batch is padded"""

    @property
    def num_tokens(self) -> int:
        """Target tokens, with `</s>`, without padding and filler."""
        return self.real.numel()

    @property
    def num_cells(self) -> int:
        """Symbols of both sides, with padding and filler."""
        return self.target_out.numel() + (0 if self.source is None else self.source.numel())

    def to(self, device: torch.device) -> Batch:
        """Copy the batch to a device; from pinned memory, asynchronously."""
        return self._each(lambda ids: ids.to(device, non_blocking=True))

    def pin(self) -> Batch:
        """Copy the batch to pinned memory."""
        return self._each(Tensor.pin_memory)

    def hold(self, stream: torch.cuda.Stream) -> None:
        """Keep the memory of the batch until a stream other than the one that copied it has used it."""
        self._each(lambda ids: ids.record_stream(stream) or ids)  # type: ignore[func-returns-value]

    def _each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        source = None if self.source is None else change(self.source)
        packing = self.packing
        if packing is not None:
            packing = Packing(packing.source and packing.source.each(change), packing.target.each(change))
        return Batch(source, change(self.target_in), change(self.target_out), change(self.real), packing)


def pad_ids(
    rows: Sequence[Sequence[int] | NDArray[np.int32]], before: int | None = None, after: int | None = None
) -> Tensor:
    """Return (rows, longest) int64: each row between the given symbols, padded at its end."""
    first, last = ([] if symbol is None else [symbol] for symbol in (before, after))
    padded = np.full((len(rows), len(first) + max(map(len, rows)) + len(last)), PAD, dtype=np.int64)
    for line, ids in zip(padded, rows, strict=True):
        line[: len(first) + len(ids) + len(last)] = [*first, *ids, *last]
    return torch.from_numpy(padded)


def in_batches(sizes: Sequence[tuple[int, ...]], tokens: int) -> Iterator[list[int]]:
    """Yield batches of indices of `sizes`, the largest first, of at most `tokens` when padded, or of a single index.

    The first number of a size is its width when padded; the others only order those of equal width.
    """
    order = sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True)
    while order:
        count = max(1, tokens // sizes[order[0]][0])
        yield order[:count]
        order = order[count:]
