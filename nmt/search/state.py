"""The state of a search as values: rows that come and go, the tree of hypotheses, and their keys and values.

A sentence's hypotheses share prefixes, so they form a tree. The keys and values of a position are stored once, in a
slot called a place, and a mask selects the places that each hypothesis attends to. When a search replaces hypotheses,
only the mask changes; keys and values do not move. A place is free again once no hypothesis attends to it. The order of
places is irrelevant, because the inputs contain positional encodings. In both attentions, a sentence's hypotheses are
queries to the same keys.

Every tensor that a step reads or writes is named here, or is a model's weight. `Ancestry` and the states of rules are
*rows*: tensors with a row for each sentence, which a step replaces by others. `KVCache` is written in place, and
has room for more rows. When a sentence leaves, a row from the end takes its index, so the first n rows are in use.

Shapes: n rows (sentences), k hypotheses per row, h heads, c places, s source length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from nmt.search.choosing import Beams
from nmt.system.device import upload

HIDDEN = -1e9  # attention bias that makes the weight 0; unlike -inf, it cannot lead to NaN
CPU = torch.device("cpu")
ROOM = 16  # dimensions other than rows grow to multiples of this; C kernels read places in groups of 4

Array = TypeVar("Array", Tensor, NDArray[Any])
Rows = TypeVar("Rows", bound=tuple[Any, ...])
"""A NamedTuple of tensors with a row for each sentence, or of other such tuples"""


# --- the state --------------------------------------------------------------------------------------------------------


class Ancestry(NamedTuple):
    """The places that each hypothesis attends to: its own and its ancestors'. An ensemble's models share them."""

    positions: Tensor
    """(n, 1) of the newest symbols, -1 before the first"""
    places: Tensor
    """(n, k) of the keys and values of the newest symbols"""
    bias: Tensor
    """(n, k, c), 0 at visible places, else HIDDEN"""
    source_bias: Tensor
    """(n, 1, s), 0 at tokens of the source, else HIDDEN"""
    words: tuple[Tensor, ...]
    """(n, k) of each model, how many words have begun in each hypothesis, for `positions: words`"""
    ages: NDArray[np.int64]
    """(n,) symbols of each sentence's outputs so far, on the host"""
    source_lengths: NDArray[np.int64]
    """(n,) with `</s>`, on the host"""

    @property
    def end(self) -> int:
        """An upper bound on output positions."""
        return int(self.ages.max(initial=0))

    @property
    def longest(self) -> int:
        """The length of the longest source."""
        return int(self.source_lengths.max(initial=0))


class LayerCache(NamedTuple):
    """A decoder layer's keys and values; there may be more rows and places than are in use."""

    keys: Tensor
    """(rows, h, places, d_k) of hypotheses"""
    values: Tensor
    """(rows, h, places, d_v) of hypotheses"""
    memory_keys: Tensor
    """(rows, h, s, d_k) of sources"""
    memory_values: Tensor
    """(rows, h, s, d_v) of sources"""


Caches = tuple[LayerCache, ...]
"""Of each layer of a decoder"""
KeysValues = tuple[Tensor, Tensor]
"""Keys (n, h, s, d_k) and values (n, h, s, d_v) of sources, in a layer"""


class KVCache(NamedTuple):
    """Keys and values of all hypotheses, by model and layer, which a step changes in place."""

    extent: int
    """Number of places up to the last visible one"""
    caches: tuple[Caches, ...]
    """Of each model; empty before the first sentence"""


class Past(NamedTuple):
    """Hypotheses and their keys and values."""

    rows: Any
    """`Ancestry`, or its counterpart of another way to take steps"""
    memory: Any


def with_newest(past: Past, places: Tensor, bias: Tensor, extent: int) -> Past:
    """Return a past whose hypotheses have one more symbol, at `places` (n, k), after which `bias` and `extent` hold."""
    rows: Ancestry = past.rows
    rows = rows._replace(positions=rows.positions + 1, places=places, bias=bias, ages=rows.ages + 1)
    return Past(rows, past.memory._replace(extent=extent))


class State(NamedTuple):
    """All that a step of a search reads or writes, but for the models' weights."""

    beams: Beams
    links: Tensor
    """(n, positions, k), the link of each hypothesis at each position"""
    rules: tuple[Any, ...]
    """The state of each constraint"""
    penalties: Tensor
    """(at least the largest cap + 1,), `length_penalty` by length"""
    past: Past


class Newest(NamedTuple):
    """The newest symbol of each hypothesis."""

    parents: Tensor
    """(n, k), which of the hypotheses before each one extends"""
    symbols: Tensor
    """(n, k)"""
    positions: Tensor
    """(n, 1), of the symbols in their outputs"""
    end: int
    """An upper bound on positions"""


# --- rows that come and go ---------------------------------------------------------------------------------------


class Removal:
    """Removal of rows from a batch: rows from its end fill the holes, so the remaining rows are the first `count`."""

    def __init__(self, leaving: Sequence[int], rows: int, device: torch.device = CPU) -> None:
        """Plan the removal of the rows `leaving`, in ascending order, from a batch of `rows` on `device`."""
        self.leaving = leaving
        self.count = rows - len(leaving)
        self.device = device
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

    def move(self, *buffers: Array) -> None:
        """Fill the holes of each buffer in place; the buffers keep their size."""
        if self.holes:
            for buffer in buffers:
                last, holes = self._moves if isinstance(buffer, Tensor) else self.moves.numpy()
                buffer[holes] = buffer[last]

    def keep(self, rows: Array) -> Array:
        """Fill the holes in place, and return a view of the remaining rows."""
        self.move(rows)
        return rows[: self.count]

    def remaining(self, rows: Rows) -> Rows:
        """Return `keep` of each of a state's rows."""
        return mapped(self.keep, rows)


def mapped(change: Callable[[Any], Any], state: Rows) -> Rows:
    """Return a state with each of its tensors and arrays changed; numbers stay as they are."""

    def of(part: Any) -> Any:
        if isinstance(part, (Tensor, np.ndarray)):
            return change(part)
        if isinstance(part, tuple):
            return mapped(change, part)
        return part

    return _like(state, [of(part) for part in state])


def _like(state: Rows, parts: Sequence[Any]) -> Rows:
    """Return a state of the same type that consists of `parts`."""
    if type(state) is tuple:  # not a NamedTuple
        return type(state)(parts)
    return type(state)(*parts)


def tensors_of(state: Any) -> Iterator[Tensor]:
    """Yield the tensors of a state, in order."""
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, tuple):
        for part in state:
            yield from tensors_of(part)


def joined(before: Rows, new: Rows, padding: float = 0) -> Rows:
    """Return the rows of two states, one after the other; of other parts, such as an upper bound, return the new one.

    Where other dimensions of two tensors differ, the smaller one is filled up with `padding`.
    """

    def of(one: Any, other: Any) -> Any:
        if isinstance(one, Tensor):
            return torch.cat(_equal_sizes(one, other, padding))
        if isinstance(one, np.ndarray):
            return np.concatenate((one, other))
        if isinstance(one, tuple):
            return joined(one, other, padding)
        return other

    return _like(before, [of(one, other) for one, other in zip(before, new, strict=True)])


def _equal_sizes(one: Tensor, other: Tensor, padding: float) -> list[Tensor]:
    """Fill up two tensors so that all their dimensions but the first are equal."""
    sizes = [max(pair) for pair in zip(one.shape[1:], other.shape[1:], strict=True)]
    return [_filled_up(each, sizes, padding) for each in (one, other)]


def _filled_up(rows: Tensor, sizes: Sequence[int], padding: float) -> Tensor:
    """Fill up the dimensions after the first to `sizes`."""
    pads: list[int] = []  # before and after the elements of a dimension, the last dimension first
    for dim in range(rows.dim() - 1, 0, -1):
        pads += [0, sizes[dim - 1] - rows.size(dim)]
    if not any(pads):
        return rows
    return F.pad(rows, pads, value=padding)


def with_room(buffer: Tensor, dim: int, size: int, fill: float = 0.0, beside: tuple[int, int] | None = None) -> Tensor:
    """Return `buffer` if its size along `dim` is at least `size`, else a larger copy.

    `beside` is another dimension and its size in use. If that is less than half, the copy is cut to it; otherwise
    memory would grow to the peak rows times the peak places. New elements are set to `fill`, because attention
    multiplies hidden values by 0, and 0 times infinity is NaN.
    """
    if size <= buffer.size(dim):
        return buffer
    if beside is not None:
        other, used = beside
        if 2 * used < buffer.size(other):
            kept = min(_with_margin(other, used), buffer.size(other))
            buffer = buffer.narrow(other, 0, kept)
    filled = buffer.size(dim)
    shape = list(buffer.shape)
    shape[dim] = _with_margin(dim, max(size, filled * 3 // 2))
    larger = buffer.new_full(shape, fill)
    larger.narrow(dim, 0, filled).copy_(buffer)
    return larger


def _with_margin(dim: int, size: int) -> int:
    """Round `size` up to a multiple of ROOM, except for rows (`dim` 0), each of which may take gigabytes."""
    if dim == 0:
        return size
    return -(-size // ROOM) * ROOM


def hidden(dtype: torch.dtype) -> float:
    """Return HIDDEN, or its replacement for a dtype with a smaller range, such as fp16."""
    return max(HIDDEN, torch.finfo(dtype).min / 2)


# --- keys and values --------------------------------------------------------------------------------------------------


def with_places(caches: Caches, rows: int, places: int) -> Caches:
    """Return caches that have room for so many places of hypotheses in the first `rows`; the same ones if they have."""
    if places <= min(caches[0].keys.size(2), caches[0].values.size(2)):
        return caches
    larger = []
    for cache in caches:
        keys = with_room(cache.keys, 2, places, beside=(0, rows))
        values = with_room(cache.values, 2, places, beside=(0, rows))
        larger.append(cache._replace(keys=keys, values=values))
    return tuple(larger)


def used_places(bias: Tensor) -> int:
    """Return the number of places up to the last that a hypothesis sees: rows that saw others may have left."""
    seen = bias.eq(0.0).flatten(0, 1).any(0).nonzero()
    return int(seen[-1]) + 1 if len(seen) else 0


def no_cache(source: KeysValues) -> LayerCache:
    """Return a cache without rows, for keys and values like those of `source`."""
    keys, values = (states.new_empty((0, states.size(1), ROOM, states.size(3))) for states in source)
    return LayerCache(keys, values, keys, values)


def with_sources(cache: LayerCache, source: KeysValues, before: Ancestry, extent: int) -> LayerCache:
    """Return a cache with the keys and values of more sources, as the rows after those that there are."""
    start = len(before.places)
    end = start + len(source[0])
    width = source[0].size(2)
    own = [with_room(buffer, 0, end, beside=(2, extent)) for buffer in (cache.keys, cache.values)]
    memory = []
    for buffer, states in zip((cache.memory_keys, cache.memory_values), source, strict=True):
        long = with_room(buffer, 0, end, beside=(2, before.longest))
        wide = with_room(long, 2, width, beside=(0, end))
        wide[start:end, :, :width] = states
        memory.append(wide)
    return LayerCache(*own, *memory)
