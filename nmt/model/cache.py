"""The key-value cache of a search: an argument of the decoder, never an attribute of the model.

A sentence's hypotheses share prefixes, so they form a tree. The keys and values of a position are stored once, in a
slot called a place, and a mask selects the places that each hypothesis attends to. When a search replaces hypotheses,
only the mask changes; keys and values do not move. A place is free again once no hypothesis attends to it. The order of
places is irrelevant, because the inputs contain positional encodings. In both attentions, a sentence's hypotheses are
queries to the same keys.

Rows are sentences. When one leaves, a row from the end takes its index, so the first n rows of every buffer are in use.
Shapes: n rows, k hypotheses per row, h heads, c places, s source length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, TypeVar
from weakref import proxy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from nmt.system.device import Download, upload

HIDDEN = -1e9  # attention bias that makes the weight 0; unlike -inf, it cannot lead to NaN
CPU = torch.device("cpu")
ROOM = 16  # dimensions other than rows grow to multiples of this; C kernels read places in groups of 4

Rows = TypeVar("Rows", Tensor, NDArray[Any])


# --- rows that come and go ---------------------------------------------------------------------------------------


class Removal:
    """Removal of rows from a batch: rows from its end fill the holes, so the remaining rows are the first `count`."""

    def __init__(self, leaving: Sequence[int], rows: int, device: torch.device = CPU) -> None:
        """Plan the removal of the rows `leaving`, in ascending order, from a batch of `rows` on `device`."""
        self.leaving, self.count, self.device = leaving, rows - len(leaving), device
        gone = set(leaving)
        self.holes = [row for row in leaving if row < self.count]
        self.last = [row for row in range(self.count, rows) if row not in gone]  # rows that move into the holes

    @cached_property
    def moves(self) -> Tensor:
        """`last` and `holes` as a tensor (2, holes) on the host."""
        return torch.tensor((self.last, self.holes), dtype=torch.int64)

    @cached_property
    def _moves(self) -> tuple[Tensor, Tensor]:
        """`moves` on the device, uploaded once for all buffers."""
        last, holes = upload(self.moves, self.device)
        return last, holes

    def move(self, *buffers: Rows) -> None:
        """Fill the holes of each buffer in place; the buffers keep their size."""
        if self.holes:
            for buffer in buffers:
                last, holes = self._moves if isinstance(buffer, Tensor) else self.moves.numpy()
                buffer[holes] = buffer[last]

    def keep(self, rows: Rows) -> Rows:
        """Fill the holes in place, and return a view of the remaining rows."""
        self.move(rows)
        return rows[: self.count]


def with_room(buffer: Tensor, dim: int, size: int, fill: float = 0.0, beside: tuple[int, int] | None = None) -> Tensor:
    """Return `buffer` if its size along `dim` is at least `size`, else a larger copy.

    `beside` is another dimension and its size in use. If that is less than half, the copy is cut to it; otherwise
    memory would grow to the peak rows times the peak places. New elements are set to `fill`, because attention
    multiplies hidden values by 0, and 0 times infinity is NaN.
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
    """Round `size` up to a multiple of ROOM, except for rows (`dim` 0), each of which may take gigabytes."""
    return -(-size // ROOM) * ROOM if dim else size


# --- keys and values ----------------------------------------------------------------------------------------------


def hidden(dtype: torch.dtype) -> float:
    """Return HIDDEN, or its replacement for a dtype with a smaller range, such as fp16."""
    return max(HIDDEN, torch.finfo(dtype).min / 2)


class Ancestry:
    """The places that each hypothesis attends to: its own and its ancestors'. An ensemble's caches share one."""

    late = False  # whether the host learns one step late which rows are finished

    def __init__(self, beam: int, device: torch.device) -> None:
        """Start without rows."""
        self.beam = beam
        self.count = 0  # number of rows
        self.rows = torch.empty((0, 1), dtype=torch.int64, device=device)  # (n, 1): row indices
        self.extent = 0  # number of places up to the last visible one
        self.places = torch.empty((0, beam), dtype=torch.int64, device=device)  # (n, k): of the newest positions
        self.parents = self.places  # (n, k): each hypothesis's parent among the previous step's hypotheses
        self.positions = torch.empty((0, 1), dtype=torch.int64, device=device)  # (n, 1): current output position
        self.lengths = np.empty(0, dtype=np.int64)  # (n,): output length of each row, on the host
        self._bias = torch.zeros((0, beam, ROOM), device=device)  # (rows, k, c): 0 at visible places, else HIDDEN

    @property
    def end(self) -> int:
        """An upper bound on output positions."""
        return int(self.lengths.max(initial=0))

    @property
    def room(self) -> int:
        """The number of rows for which buffers must have room."""
        return self.count

    def cache(self) -> KVCache:
        """Return a model's cache."""
        return KVCache(self)

    def admit(self, count: int, lengths: Sequence[int] = (), longest: int = 0) -> None:
        """Add `count` rows of empty hypotheses.

        `lengths` of their sources and `longest`, the length of their longest possible output, only matter on a GPU.
        """
        start, end = self.count, self.count + count
        if end > len(self._bias):
            self._measure()
        self._bias = with_room(self._bias, 0, end, beside=(2, self.extent))
        self._bias[start:end] = HIDDEN
        self.positions = F.pad(self.positions, (0, 0, 0, count), value=-1)
        self.lengths = np.append(self.lengths, np.zeros(count, dtype=np.int64))
        self._set_count(end)

    def leave(self, removal: Removal) -> None:
        """Remove the rows that leave the batch."""
        removal.move(self._bias)
        self.positions, self.lengths = removal.keep(self.positions), removal.keep(self.lengths)
        self._set_count(removal.count)

    def _set_count(self, count: int) -> None:
        self.count, self.rows = count, torch.arange(count, device=self.rows.device)[:, None]

    def take(self, step: Callable[[], Tensor], owners: Sequence[Any], rules: Sequence[Any]) -> Tensor:
        """Take a step of a search, which returns (n,), whether each row is finished; return that for `finished`.

        `owners` and `rules` are all that it changes beside the ancestry.
        """
        return step()

    def finished(self, report: Download | None) -> list[int]:
        """Return the finished rows, given what `take` returned; none if that is not yet known."""
        return report.read()[0].nonzero()[:, 0].tolist() if report else []

    def extend(self, parents: Tensor, alive: Tensor | None = None) -> None:
        """Replace hypotheses by those that `parents` (n, k) selects, and give each a place for its next position.

        Hypotheses that are not `alive` (n, k) may be forgotten.
        """
        self.parents = parents
        self._extend()
        self.positions, self.lengths = self.positions + 1, self.lengths + 1

    def move_places(self, removal: Removal, buffer: Tensor, used: int) -> None:
        """Fill the holes in a buffer of keys or values (rows, h, places, d); its first `used` places are in use."""
        removal.move(buffer[:, :, :used])

    def _measure(self) -> None:
        """Find `extent` anew: rows that used the last places may have left."""
        seen = self._bias[: self.count, :, : self.extent].eq(0.0).flatten(0, 1).any(0).nonzero()
        self.extent = int(seen[-1]) + 1 if len(seen) else 0

    def _extend(self) -> None:
        before = self._bias[: self.count, :, : self.extent]
        bias = before.gather(1, self.parents[:, :, None].expand(-1, -1, self.extent))
        before.copy_(bias)
        # Choose the first free places by sorting: taken places come after all free ones.
        taken = F.pad(bias.amax(1) - HIDDEN, (0, self.beam))  # (n, extent + k): 0 where free
        numbers = torch.arange(taken.size(1), dtype=torch.float32, device=taken.device)
        self.places = (numbers + taken).topk(self.beam, largest=False).indices
        highest = torch.maximum(self.places.amax(), (taken.amax(0).clamp_max_(1.0) * numbers).amax().long())
        self.extent = int(highest) + 1
        self._make_room(self.extent)
        self._bias[: self.count].scatter_(2, self.places[:, :, None], 0.0)

    def _make_room(self, places: int) -> None:
        self._bias = with_room(self._bias, 2, places, HIDDEN, beside=(0, self.count))

    def bias(self, dtype: torch.dtype) -> Tensor:
        """Return the attention bias (n, 1, k, extent): 0 at visible places, `hidden` elsewhere."""
        bias = self._bias[: self.count, :, : self.extent]
        if hidden(dtype) > HIDDEN:
            bias = bias.clamp_min(hidden(dtype))
        return bias[:, None].to(dtype)


class KVCache:
    """One decoder's keys and values for the rows of an ancestry; those of cross-attention are stored per sentence."""

    replaced: tuple[str, ...] = ("_words",)  # tensors, a row of each for every sentence, that a step replaces

    def __init__(self, ancestry: Ancestry) -> None:
        """Start without rows."""
        self.ancestry = ancestry
        self.lengths = np.empty(0, dtype=np.int64)  # (n,): source lengths
        self.longest = 0  # longest source length
        self.layers: list[LayerCache] = []
        self._words = ancestry.places  # (n, k): words begun in each hypothesis, for `positions: words`
        self.bias: Tensor  # (n, 1, k, extent): `Ancestry.bias` as of the last `advance`
        self._memory_bias: Tensor

    @property
    def memory_bias(self) -> Tensor:
        """Cross-attention bias (n, 1, 1, s): 0 at source tokens, `hidden` at padding."""
        return self._memory_bias[: len(self.lengths), :, :, : self.longest]

    def admit(self, memory: Sequence[Sequence[Tensor]], lengths: Sequence[int]) -> None:
        """Add m sources of unpadded `lengths`; `memory` is each layer's keys (m, h, s, d_k), values (m, h, s, d_v)."""
        if not self.layers:
            self.layers = [LayerCache(self, states) for states in memory]
            self._memory_bias = memory[0][0].new_empty((0, 1, 1, ROOM))
        start, end = len(self.lengths), len(self.lengths) + len(lengths)
        self._words = F.pad(self._words, (0, 0, 0, len(lengths)))
        for layer, states in zip(self.layers, memory, strict=True):
            layer.admit(states, start)
        bias = with_room(self._memory_bias, 0, end)
        self._memory_bias = bias = with_room(bias, 3, max(lengths), fill=hidden(bias.dtype))
        padding = torch.arange(bias.size(3), device=bias.device) >= upload(lengths, bias.device)[:, None]
        bias[start:end, 0, 0] = bias.new_zeros(padding.shape).masked_fill_(padding, hidden(bias.dtype))
        self.lengths = np.append(self.lengths, lengths)
        self.longest = max(self.longest, *lengths)

    def leave(self, removal: Removal) -> None:
        """Remove the rows that leave the batch."""
        for layer in self.layers:
            layer.leave(removal)
        removal.move(self._memory_bias)
        self._words, self.lengths = removal.keep(self._words), removal.keep(self.lengths)
        self.longest = int(self.lengths.max(initial=0))

    def count_words(self, begins: Tensor) -> Tensor:
        """Update and return word counts (n, k); `begins` (n, k) is true where the newest symbol begins a word."""
        self._words = self._words.gather(1, self.ancestry.parents) + begins
        return self._words

    def advance(self) -> None:
        """Update `bias` after the ancestry has been extended."""
        self.bias = self.ancestry.bias(self._memory_bias.dtype)


class LayerCache:
    """One layer's keys and values."""

    def __init__(self, cache: KVCache, memory: Sequence[Tensor]) -> None:
        """Create empty buffers with the heads, widths, dtype and device of `memory` (keys, values)."""
        self._cache = proxy(cache)  # with a cycle, only the garbage collector would free the buffers
        self._memory, self._own = (
            [states.new_empty((0, states.size(1), ROOM, states.size(3))) for states in memory] for _ in range(2)
        )

    def admit(self, memory: Sequence[Tensor], start: int) -> None:
        """Add the keys and values of sources as rows from `start` on."""
        longest, extent = self._cache.longest, self._cache.ancestry.extent
        end, width = start + len(memory[0]), memory[0].size(2)
        for index, states in enumerate(memory):
            buffer = with_room(self._memory[index], 0, end, beside=(2, longest))
            self._memory[index] = buffer = with_room(buffer, 2, width, beside=(0, end))
            buffer[start:end, :, :width] = states
            self._own[index] = with_room(self._own[index], 0, end, beside=(2, extent))

    def leave(self, removal: Removal) -> None:
        """Remove the rows that leave the batch."""
        for buffers, used in ((self._memory, self._cache.longest), (self._own, self._cache.ancestry.extent)):
            for buffer in buffers:
                self._cache.ancestry.move_places(removal, buffer, used)

    def memory(self) -> list[Tensor]:
        """Return the sources' keys (n, h, s, d_k) and values (n, h, s, d_v)."""
        count, longest = len(self._cache.lengths), self._cache.longest
        return [buffer[:count, :, :longest] for buffer in self._memory]

    def buffers(self, places: int = 0) -> list[Tensor]:
        """Return the buffers of `with_places`, followed by those of `memory` at full size."""
        return self.with_places(places) + self._memory

    def append(self, *states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Store the newest keys and values (n, h, k, d); return all of them (n, h, extent, d), and `KVCache.bias`."""
        ancestry = self._cache.ancestry
        count, extent = ancestry.count, ancestry.extent
        for buffer, new in zip(self.with_places(), states, strict=True):
            buffer.transpose(1, 2)[ancestry.rows, ancestry.places] = new.transpose(1, 2)
        keys, values = (buffer[:count, :, :extent] for buffer in self._own)
        return keys, values, self._cache.bias

    def with_places(self, places: int = 0) -> list[Tensor]:
        """Return keys (rows, h, places, d_k) and values (rows, h, places, d_v).

        They are grown to hold the ancestry's extent, and at least `places`.
        """
        ancestry = self._cache.ancestry
        extent = max(ancestry.extent, places)
        self._own = [with_room(buffer, 2, extent, beside=(0, ancestry.count)) for buffer in self._own]
        return self._own
