"""What the decoder remembers between the steps of a search: keys and values, an argument and never an attribute.

The hypotheses of a sentence share their beginnings, so they form a tree. The keys and values of a position are stored
once, in a place, and a mask says which places a hypothesis sees. When a search replaces hypotheses, only the mask
changes; no keys or values move. A place that no hypothesis descends from any more is free for a new position. The order
of places means nothing to attention, because the position's encoding is part of the input. Hypotheses are queries to
the keys of their sentence, in self-attention as in cross-attention.

Rows are sentences. A row from the end takes the place of one that leaves, so the first n rows of every buffer are the
ones that matter. Shapes: n rows, k hypotheses of each, h heads, c places, s source length.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import CDLL
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from nmt.native import functions_for

HIDDEN = -1e9  # added to a score of attention, it leaves a weight of 0; unlike -inf, sums of it are numbers
ALIGNED = 8  # on a GPU the number of places is a multiple of this: attention copies a bias whose rows are not

CPU = torch.device("cpu")
ROOM = 16  # buffers have multiples of this, except of rows; C kernels read places in groups of 4

Rows = TypeVar("Rows", Tensor, NDArray[Any])


# --- rows that come and go ---------------------------------------------------------------------------------------


class Removal:
    """Rows that leave a batch; rows from its end take their places, so that those which stay are the first `count`."""

    def __init__(self, leaving: Sequence[int], rows: int, device: torch.device = CPU) -> None:
        """The rows `leaving`, in ascending order, leave a batch of `rows` rows, whose tensors are on a device."""
        self.leaving, self.count, self.device = leaving, rows - len(leaving), device
        gone = set(leaving)
        self.holes = [row for row in leaving if row < self.count]
        self.last = [row for row in range(self.count, rows) if row not in gone]
        """Rows that stay, one for each hole."""

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


# --- between host and device --------------------------------------------------------------------------------------

# The host waits only where it reads what a GPU has computed; on a CPU nothing is copied.


def reads_late(device: torch.device) -> bool:
    """Whether the host reads what a device has found one step later, while the device computes the next step.

    A CPU would gain nothing by it and waste the step in which a sentence is done but has not left.
    """
    return device.type != "cpu"


def upload(values: Tensor | NDArray[Any] | Sequence[Any], device: torch.device) -> Tensor:
    """Values of the host as a tensor on a device."""
    tensor = torch.as_tensor(values)
    if device.type == "cuda":
        tensor = tensor.pin_memory()  # from other memory the host would copy while it waits
    return tensor.to(device, non_blocking=True)


class Download:
    """Tensors of a device on their way to the host, as they are now."""

    def __init__(self, *tensors: Tensor) -> None:
        self._copies = [tensor.to("cpu", non_blocking=True) for tensor in tensors]
        self._there: torch.cuda.Event | None = None
        if tensors[0].is_cuda:
            self._there = torch.cuda.Event()
            self._there.record(torch.cuda.current_stream(tensors[0].device))

    def read(self) -> list[Tensor]:
        """The tensors on the host, which waits until they are there."""
        if self._there is not None:
            self._there.synchronize()
        return self._copies


# --- keys and values ----------------------------------------------------------------------------------------------


def hidden(dtype: torch.dtype) -> float:
    """HIDDEN, or what stands for it in a type whose numbers do not reach that far, such as fp16."""
    return max(HIDDEN, torch.finfo(dtype).min / 2)


class Ancestry:
    """Which places each hypothesis sees: its own and those of its ancestors. The caches of an ensemble share it."""

    def __init__(self, beam: int, device: torch.device, window: int | None = None) -> None:
        """With a `window`, a hypothesis sees only its last `window` positions, and the places of older ones are free.

        For an ensemble, `window` is that of the model that sees most.
        """
        self.beam = beam
        self.window = window
        self.count = 0
        """How many rows there are."""
        self.rows = torch.empty((0, 1), dtype=torch.int64, device=device)
        """(n, 1): their numbers."""
        self.extent = 0
        """No hypothesis sees a place from this one on. On a GPU it is a bound, for which the host waits for nothing."""
        self._bound = 0  # on a GPU, the same before it is aligned
        self.seen = torch.zeros((), dtype=torch.int64, device=device)
        """(): on a GPU, the extent as of the last `extend`, which the host may read later; see `limit`."""
        self.places = torch.empty((0, beam), dtype=torch.int64, device=device)
        """(n, k): where the positions of this step are written."""
        self.parents = self.places
        """(n, k): which hypothesis of the step before each hypothesis follows."""
        self.positions = torch.empty((0, 1), dtype=torch.int64, device=device)
        """(n, 1): the position of its outputs that each row is at."""
        self.lengths = np.empty(0, dtype=np.int64)
        """(n,): how many positions the outputs of each row have; known to the host."""
        self.late = reads_late(device)
        """Whether the host reads `seen` late instead of waiting for it."""
        self._bias = torch.zeros((0, beam, ROOM), device=device)  # (rows, k, c): 0 at places that are seen, else HIDDEN
        self._steps = 0
        self._written = torch.zeros((0, ROOM), dtype=torch.int64, device=device)  # (rows, c): in which step

    def admit(self, count: int) -> None:
        """Adds rows whose hypotheses are empty."""
        start, end = self.count, self.count + count
        if end > len(self._bias) and not self.late:  # the rows that saw the last places may have left
            seen = self._bias[:start, :, : self.extent].eq(0.0).flatten(0, 1).any(0).nonzero()
            self.extent = int(seen[-1]) + 1 if len(seen) else 0
        self._bias = with_room(self._bias, 0, end, beside=(2, self.extent))
        self._bias[start:end] = HIDDEN
        self._written = with_room(self._written, 0, end)
        self.positions = F.pad(self.positions, (0, 0, 0, count), value=-1)
        self.lengths = np.append(self.lengths, np.zeros(count, dtype=np.int64))
        self._count(end)

    def leave(self, removal: Removal) -> None:
        """Removes rows."""
        removal.move(self._bias, self._written)
        self.positions, self.lengths = removal.keep(self.positions), removal.keep(self.lengths)
        self._count(removal.count)

    def _count(self, count: int) -> None:
        self.count, self.rows = count, torch.arange(count, device=self.rows.device)[:, None]

    def extend(self, parents: Tensor) -> None:
        """Lets each hypothesis follow the one of its row that `parents` (n, k) names, in a place of its own."""
        self._steps += 1
        self.parents = parents
        if functions := functions_for(self._bias):
            self._extend_by(functions)
        else:
            self._extend()
        self.positions, self.lengths = self.positions + 1, self.lengths + 1

    def limit(self, extent: int) -> None:
        """Tells, on a GPU, what the host has read: no hypothesis sees a place from `extent` on."""
        self._bound = min(self._bound, extent)
        self.extent = -(-self._bound // ALIGNED) * ALIGNED

    def _extend(self) -> None:
        before = self._bias[: self.count, :, : self.extent]
        bias = before.gather(1, self.parents[:, :, None].expand(-1, -1, self.extent))
        if self.window is not None:
            bias.masked_fill_(self._older_than(self.window), HIDDEN)
        before.copy_(bias)
        # The first free places: sorted by number, with taken places after all others.
        taken = F.pad(bias.amax(1) - HIDDEN, (0, self.beam))  # (n, extent + k): 0 where free
        numbers = torch.arange(taken.size(1), dtype=torch.float32, device=taken.device)
        self.places = (numbers + taken).topk(self.beam, largest=False).indices
        highest = torch.maximum(self.places.amax(), (taken.amax(0).clamp_max_(1.0) * numbers).amax().long())
        self.seen = highest + 1
        if self.late:
            self._bound += self.beam
            self.limit(self._bound)
        else:
            self.extent = int(self.seen)
        self._make_room(self.extent)
        self._bias[: self.count].scatter_(2, self.places[:, :, None], 0.0)
        self._written[: self.count].scatter_(1, self.places, self._steps)

    def _extend_by(self, functions: CDLL) -> None:
        """As `_extend`, in C."""
        self._make_room(self.extent + self.beam)
        bias, written, parents = self._bias, self._written, self.parents.contiguous()
        self.places, before = torch.empty_like(parents), bias.new_empty((self.beam, self.extent))
        forgotten = self._steps - self.window if self.window is not None else -1
        self.extent = functions.nmt_extend(
            *(self.count, self.beam, self.extent, parents.data_ptr(), bias.data_ptr(), bias.stride(0), bias.stride(1)),
            *(written.data_ptr(), written.stride(0), forgotten, self._steps, before.data_ptr(), self.places.data_ptr()),
        )

    def _make_room(self, places: int) -> None:
        self._bias = with_room(self._bias, 2, places, HIDDEN, beside=(0, self.count))
        self._written = with_room(self._written, 1, places)

    def bias(self, dtype: torch.dtype, window: int | None = None) -> Tensor:
        """(n, 1, k, extent) to add to attention's scores: 0 at places that are seen, `hidden` elsewhere.

        A model's `window` hides what another model of its ensemble still sees.
        """
        bias = self._bias[: self.count, :, : self.extent]
        if window is not None and window != self.window:
            bias = bias.masked_fill(self._older_than(window), HIDDEN)
        if hidden(dtype) > HIDDEN:
            bias = bias.clamp_min(hidden(dtype))
        return bias[:, None].to(dtype)

    def _older_than(self, window: int) -> Tensor:
        """(n, 1, extent): the places written before the last `window` steps; every step extends every row."""
        return self._written[: self.count, None, : self.extent] <= self._steps - window


class KVCache:
    """Keys and values of one decoder for the rows of an ancestry; those of cross-attention are stored per sentence."""

    def __init__(self, ancestry: Ancestry, window: int | None = None) -> None:
        """`window` is the model's; the ancestry's must not be smaller."""
        self.ancestry = ancestry
        self.window = window
        self.lengths = np.empty(0, dtype=np.int64)
        """(n,): of each row's source."""
        self.longest = 0
        """Length of the longest source."""
        self.layers: list[LayerCache] = []
        self._words = ancestry.places  # (n, k): begun in each hypothesis, for models that count them
        self.bias: Tensor
        """(n, 1, k, extent): which places each hypothesis sees, as of the last `advance`."""
        self._memory_bias: Tensor

    @property
    def memory_bias(self) -> Tensor:
        """(n, 1, 1, s): 0 at the words of each row's source, `hidden` at padding."""
        return self._memory_bias[: len(self.lengths), :, :, : self.longest]

    def admit(self, memory: Sequence[Sequence[Tensor]], lengths: Sequence[int]) -> None:
        """Adds sentences: for each layer keys (m, h, s, d_k) and values (m, h, s, d_v) of sources of true `lengths`."""
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
        """Removes rows."""
        for layer in self.layers:
            layer.leave(removal)
        removal.move(self._memory_bias)
        self._words, self.lengths = removal.keep(self._words), removal.keep(self.lengths)
        self.longest = int(self.lengths.max(initial=0))

    def count_words(self, begins: Tensor) -> Tensor:
        """Words begun in each hypothesis, (n, k), to which `begins` (n, k) adds those of the newest symbols."""
        self._words = self._words.gather(1, self.ancestry.parents) + begins
        return self._words

    def advance(self) -> None:
        """Prepares for the positions by which the ancestry was last extended."""
        self.bias = self.ancestry.bias(self._memory_bias.dtype, self.window)


class LayerCache:
    """Keys and values of one layer."""

    def __init__(self, cache: KVCache, memory: Sequence[Tensor]) -> None:
        """Empty; heads, widths, type and device are those of `memory`, keys and values."""
        self._cache = cache
        self._memory, self._own = (
            [states.new_empty((0, states.size(1), ROOM, states.size(3))) for states in memory] for _ in range(2)
        )

    def admit(self, memory: Sequence[Tensor], start: int) -> None:
        """Adds keys and values of sources as rows from `start` on."""
        longest, extent = self._cache.longest, self._cache.ancestry.extent
        end, width = start + len(memory[0]), memory[0].size(2)
        for index, states in enumerate(memory):
            buffer = with_room(self._memory[index], 0, end, beside=(2, longest))
            self._memory[index] = buffer = with_room(buffer, 2, width, beside=(0, end))
            buffer[start:end, :, :width] = states
            self._own[index] = with_room(self._own[index], 0, end, beside=(2, extent))

    def leave(self, removal: Removal) -> None:
        """Removes rows."""
        for buffers, used in ((self._memory, self._cache.longest), (self._own, self._cache.ancestry.extent)):
            for buffer in buffers:
                _move(removal, buffer, used)

    def memory(self) -> list[Tensor]:
        """Keys (n, h, s, d_k) and values (n, h, s, d_v) of the sources."""
        count, longest = len(self._cache.lengths), self._cache.longest
        return [buffer[:count, :, :longest] for buffer in self._memory]

    def append(self, *states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Takes the newest keys and values (n, h, k, d); returns those of all places, (n, h, extent, d), and the bias.

        The bias is that of `KVCache.bias`.
        """
        ancestry = self._cache.ancestry
        count, extent = ancestry.count, ancestry.extent
        for buffer, new in zip(self.with_places(), states, strict=True):
            buffer.transpose(1, 2)[ancestry.rows, ancestry.places] = new.transpose(1, 2)
        keys, values = (buffer[:count, :, :extent] for buffer in self._own)
        return keys, values, self._cache.bias

    def with_places(self) -> list[Tensor]:
        """Keys (rows, h, places, d_k) and values (rows, h, places, d_v), with room for all places."""
        ancestry = self._cache.ancestry
        self._own = [with_room(buffer, 2, ancestry.extent, beside=(0, ancestry.count)) for buffer in self._own]
        return self._own


def _move(removal: Removal, buffer: Tensor, used: int) -> None:
    """Overwrites the holes in a buffer of keys or values (rows, h, places, d), whose first `used` places matter."""
    if (functions := functions_for(buffer)) is None:
        removal.move(buffer[:, :, :used])
    elif removal.holes:
        last, holes = removal.moves
        functions.nmt_move_rows(
            *(len(holes), last.data_ptr(), holes.data_ptr(), buffer.size(1), used),
            *(buffer.data_ptr(), *buffer.stride()[:3]),
        )
