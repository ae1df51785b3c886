"""Rows of a batch that come and go: buffers that grow, and rows that take the places of those that leave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self, TypeVar

import torch
from numpy.typing import NDArray
from torch import Tensor

from nmt.model.transfer import upload

CPU = torch.device("cpu")
ROOM = 16  # buffers have multiples of this, except of rows; C kernels read places in groups of 4

Rows = TypeVar("Rows", Tensor, NDArray[Any])


@dataclass(frozen=True)
class Removal:
    """Rows that leave a batch; rows from its end take their places, so that those which stay are the first `count`."""

    leaving: Sequence[int]
    """In ascending order."""
    holes: Sequence[int]
    """Rows below `count` that leave."""
    last: Sequence[int]
    """Rows from `count` on that stay, one for each hole."""
    count: int
    device: torch.device
    """Where the tensors are whose rows leave."""

    @classmethod
    def of(cls, leaving: Sequence[int], rows: int, device: torch.device = CPU) -> Self:
        """The rows `leaving`, in ascending order, leave a batch of `rows` rows."""
        count, gone = rows - len(leaving), set(leaving)
        last = [row for row in range(count, rows) if row not in gone]
        return cls(leaving, [row for row in leaving if row < count], last, count, device)

    @cached_property
    def moves(self) -> Tensor:
        """(2, holes) on the host: `last` and `holes`."""
        return torch.tensor((self.last, self.holes), dtype=torch.int64)

    @cached_property
    def _moves(self) -> tuple[Tensor, Tensor]:
        """The same on the device; they are uploaded once for all buffers."""
        last, holes = upload(self.moves, self.device)
        return last, holes

    def move(self, *buffers: Rows) -> None:
        """Overwrites the holes in buffers, in place; the buffers keep their size."""
        if self.holes:
            for buffer in buffers:
                last, holes = self._moves if isinstance(buffer, Tensor) else self.moves.numpy()
                buffer[holes] = buffer[last]

    def keep(self, rows: Rows) -> Rows:
        """The rows that stay; `rows` itself is overwritten."""
        self.move(rows)
        return rows[: self.count]


def with_room(buffer: Tensor, dim: int, size: int, fill: float = 0.0, beside: tuple[int, int] | None = None) -> Tensor:
    """A buffer with at least `size` along `dim`: the same one if it is large enough, else a larger copy.

    `beside` is another dimension and how much of it is used. If less than half is used, the copy has no more than that:
    the most rows there ever were, each with the most places one ever had, would be many times what is needed. New room
    is set to `fill`, because attention multiplies what it does not see by 0, and 0 times infinity is not a number.
    """
    if size <= buffer.size(dim):
        return buffer
    if beside is not None and 2 * beside[1] < buffer.size(beside[0]):
        buffer = buffer.narrow(beside[0], 0, min(_with_margin(*beside), buffer.size(beside[0])))
    shape, filled = list(buffer.shape), buffer.size(dim)
    shape[dim] = _with_margin(dim, max(size, filled * 3 // 2))
    larger = buffer.new_full(shape, fill)
    larger.narrow(dim, 0, filled).copy_(buffer)
    return larger


def _with_margin(dim: int, size: int) -> int:
    """A multiple of ROOM, except of rows, each of which may take gigabytes."""
    return -(-size // ROOM) * ROOM if dim else size
