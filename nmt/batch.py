"""Sentences as tensors: ids padded to one length, as models take them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


def pad_ids(
    rows: Sequence[Sequence[int] | NDArray[np.int32]], before: int | None = None, after: int | None = None
) -> Tensor:
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
