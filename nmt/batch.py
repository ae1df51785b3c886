"""Sentences as tensors: ids padded to one length, as models take them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmt.text.symbols import PAD


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
    """(tokens,) indices into the flattened `target_out` of what is not padding: known here without asking the device"""

    @property
    def num_tokens(self) -> int:
        """Target tokens, `</s>` counted, padding not."""
        return self.real.numel()

    @property
    def num_cells(self) -> int:
        """Symbols of both sides, padding counted."""
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


def pad_ids(
    rows: Sequence[Sequence[int] | NDArray[np.int32]], before: int | None = None, after: int | None = None
) -> Tensor:
    """(rows, longest) int64, each row between the given symbols and padded at its end."""
    first, last = ([] if symbol is None else [symbol] for symbol in (before, after))
    padded = np.full((len(rows), len(first) + max(map(len, rows)) + len(last)), PAD, dtype=np.int64)
    for line, ids in zip(padded, rows, strict=True):
        line[: len(first) + len(ids) + len(last)] = [*first, *ids, *last]
    return torch.from_numpy(padded)


def in_batches(sizes: Sequence[tuple[int, ...]], tokens: int) -> Iterator[list[int]]:
    """Indices of `sizes`, the largest first, in batches of at most `tokens` when padded, or of a single one.

    The first number of a size is its width when padded; the others only put equally wide ones in order.
    """
    order = sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True)
    while order:
        count = max(1, tokens // sizes[order[0]][0])
        yield order[:count]
        order = order[count:]
