"""What the decoder remembers between the steps of a search: keys and values, an argument and never an attribute.

The hypotheses of a sentence share their beginnings: they form a tree. Keys and values of a position stand where they
were written, once, and a mask says which of them a hypothesis sees. A search that replaces hypotheses changes the mask
and moves no keys or values; a place from which no hypothesis descends any more is free for a new position. In which
place a position stands is nothing to attention, since its encoding is in the input. Hypotheses are queries to the
keys of their sentence, in self-attention as in cross-attention.

Rows are sentences. Those that leave are overwritten by rows from the end, so that the first `count` rows of every
buffer are the ones that matter. Shapes: n rows, k hypotheses of each, h heads, c places, s source length.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

ROOM = 16  # buffers grow to multiples of this, except by rows
HIDDEN = -1e9  # added to attention's scores, leaves nothing of a weight; unlike -inf it can be reckoned with


class Tree:
    """Which places each hypothesis sees; shared by the caches of an ensemble."""

    def __init__(self, beam: int, device: torch.device, window: int | None = None) -> None:
        """With a `window`, no hypothesis sees more than its last so many positions, and the places of others are free.

        Of an ensemble it is that of the model which sees most.
        """
        self.beam = beam
        self.window = window
        self.count = 0
        """Rows."""
        self.extent = 0
        """Places from this one on are seen by nobody."""
        self.places = torch.empty((0, beam), dtype=torch.int64, device=device)
        """(n, k): where this step's positions are written."""
        self.parents = self.places
        """(n, k): whom this step's hypotheses follow."""
        self.positions = np.empty(0, dtype=np.int64)
        """(n,): which position of its outputs each row is at."""
        self._bias = torch.zeros((0, beam, ROOM), device=device)  # (rows, k, c): 0 at places that are seen, else HIDDEN
        self._steps = 0
        self._written = torch.zeros((0, ROOM), dtype=torch.int64, device=device)  # (rows, c): at which of the steps

    def admit(self, count: int) -> None:
        """Adds rows whose hypotheses are empty."""
        if self.count + count > len(self._bias):  # who saw the last places may have left since the last step
            seen = self._bias[: self.count, :, : self.extent].eq(0.0).flatten(0, 1).any(0).nonzero()
            self.extent = int(seen[-1]) + 1 if len(seen) else 0
        self._bias = with_room(self._bias, 0, self.count + count, self.count, beside=(2, self.extent))
        self._bias[self.count : self.count + count] = HIDDEN
        self._written = with_room(self._written, 0, self.count + count, self.count)
        self.positions = np.append(self.positions, np.full(count, -1))
        self.count += count

    def leave(self, holes: Sequence[int], last: Sequence[int], count: int) -> None:
        """Overwrites rows `holes` by rows `last` and keeps the first `count`."""
        move_rows((self._bias, self._written), holes, last)
        self.positions[holes] = self.positions[last]
        self.positions = self.positions[:count]
        self.count = count

    def extend(self, parents: Tensor) -> None:
        """Lets each hypothesis follow the one of its row that `parents` (n, k) names, in a place of its own."""
        self._steps += 1
        self.parents = parents
        before = self._bias[: self.count, :, : self.extent]
        bias = before.gather(1, parents[:, :, None].expand(-1, -1, self.extent))
        if self.window is not None:
            bias.masked_fill_(self._older_than(self.window), HIDDEN)
        before.copy_(bias)
        # The first places that nobody sees: numbers are small, those of taken places are beyond all others.
        taken = F.pad(bias.amax(1) - HIDDEN, (0, self.beam))  # (n, extent + k): 0 where free
        numbers = torch.arange(taken.size(1), dtype=torch.float32, device=taken.device)
        self.places = (numbers + taken).topk(self.beam, largest=False).indices
        highest = torch.maximum(self.places.amax(), (taken.amax(0).clamp_max_(1.0) * numbers).amax())
        self.extent = int(highest) + 1  # a CPU-GPU sync point
        self._bias = with_room(self._bias, 2, self.extent, self._bias.size(2), HIDDEN, beside=(0, self.count))
        self._bias[: self.count].scatter_(2, self.places[:, :, None], 0.0)
        self._written = with_room(self._written, 1, self.extent, self._written.size(1))
        self._written[: self.count].scatter_(1, self.places, self._steps)
        self.positions = self.positions + 1

    def bias(self, dtype: torch.dtype, window: int | None = None) -> Tensor:
        """(n, 1, k, extent) to add to attention's scores: 0 at places that are seen, HIDDEN elsewhere.

        A model's `window` hides what another of its ensemble still sees.
        """
        bias = self._bias[: self.count, :, : self.extent]
        if window is not None and window != self.window:
            bias = bias.masked_fill(self._older_than(window), HIDDEN)
        return bias[:, None].to(dtype)

    def _older_than(self, window: int) -> Tensor:
        """(n, 1, extent): the places written before the last `window` steps, at each of which a row is extended."""
        return self._written[: self.count, None, : self.extent] <= self._steps - window


class KVCache:
    """Keys and values of one decoder for the rows of a tree; cross-attention's stand there once per sentence."""

    def __init__(self, tree: Tree, window: int | None = None) -> None:
        """`window` is the model's, which the tree's must not be below."""
        self.tree = tree
        self.window = window
        self.lengths: list[int] = []
        """Of each row's source."""
        self.layers: list[LayerCache] = []
        self._words = tree.places  # (n, k): begun in each hypothesis, where they are counted
        self.bias: Tensor
        """(n, 1, k, extent): what hypotheses see of each other, as of the last `advance`."""
        self._memory_bias: Tensor

    def admit(self, memory: Sequence[Sequence[Tensor]], lengths: Sequence[int]) -> None:
        """Adds sentences: for each layer keys (m, h, s, d_k) and values (m, h, s, d_v) of sources of true `lengths`."""
        if not self.layers:
            self.layers = [LayerCache(self, states) for states in memory]
            self._memory_bias = memory[0][0].new_empty((0, 1, 1, ROOM))
        start, end, width = len(self.lengths), len(self.lengths) + len(lengths), max(lengths)
        self._words = F.pad(self._words, (0, 0, 0, len(lengths)))
        for layer, states in zip(self.layers, memory, strict=True):
            layer.admit(states, start)
        bias = with_room(self._memory_bias, 0, end, start)
        self._memory_bias = bias = with_room(bias, 3, width, bias.size(3), fill=HIDDEN)
        words = torch.arange(bias.size(3)) < torch.tensor(lengths)[:, None]
        bias[start:end, 0, 0] = torch.zeros(words.shape).masked_fill_(~words, HIDDEN).to(bias)
        self.lengths += lengths

    def leave(self, holes: Sequence[int], last: Sequence[int], count: int) -> None:
        """Overwrites rows `holes` by rows `last` and keeps the first `count`."""
        move_rows((self._memory_bias, self._words), holes, last)
        self._words = self._words[:count]
        for layer in self.layers:
            layer.leave(holes, last)
        for hole, row in zip(holes, last, strict=True):
            self.lengths[hole] = self.lengths[row]
        del self.lengths[count:]

    def count_words(self, begins: Tensor) -> Tensor:
        """Words begun in each hypothesis, (n, k), to which `begins` (n, k) adds those of the newest symbols."""
        self._words = self._words.gather(1, self.tree.parents) + begins
        return self._words

    def advance(self) -> None:
        """Makes ready for the positions by which the tree was last extended."""
        self.bias = self.tree.bias(self._memory_bias.dtype, self.window)

    @property
    def memory_bias(self) -> Tensor:
        """(n, 1, 1, s): 0 at the words of each row's source, HIDDEN at padding."""
        return self._memory_bias[: len(self.lengths), :, :, : max(self.lengths)]


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
        longest, extent = max(self._cache.lengths, default=0), self._cache.tree.extent
        for index, states in enumerate(memory):
            count, _, width, _ = states.shape
            end = start + count
            buffer = with_room(self._memory[index], 0, end, start, beside=(2, longest))
            self._memory[index] = buffer = with_room(buffer, 2, width, buffer.size(2), beside=(0, end))
            buffer[start:end, :, :width] = states
            self._own[index] = with_room(self._own[index], 0, end, start, beside=(2, extent))

    def leave(self, holes: Sequence[int], last: Sequence[int]) -> None:
        """Overwrites rows `holes` by rows `last`."""
        longest, extent = max(self._cache.lengths), self._cache.tree.extent
        move_rows([buffer[:, :, :longest] for buffer in self._memory], holes, last)
        move_rows([buffer[:, :, :extent] for buffer in self._own], holes, last)

    def memory(self) -> list[Tensor]:
        """Keys (n, h, s, d_k) and values (n, h, s, d_v) of the sources."""
        count, longest = len(self._cache.lengths), max(self._cache.lengths)
        return [buffer[:count, :, :longest] for buffer in self._memory]

    def append(self, *states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Takes the newest keys and values (n, h, k, d); gives those of all places, (n, h, extent, d), and the bias."""
        tree, found = self._cache.tree, []
        rows = torch.arange(tree.count, device=tree.places.device)[:, None]
        for index, new in enumerate(states):
            buffer = self._own[index]
            self._own[index] = buffer = with_room(buffer, 2, tree.extent, buffer.size(2), beside=(0, tree.count))
            buffer.transpose(1, 2)[rows, tree.places] = new.transpose(1, 2)
            found.append(buffer[: tree.count, :, : tree.extent])
        keys, values = found
        return keys, values, self._cache.bias


def with_room(
    buffer: Tensor, dim: int, size: int, filled: int, fill: float = 0.0, beside: tuple[int, int] | None = None
) -> Tensor:
    """A buffer with at least `size` along `dim`: the same if it has that, else a larger copy of what is `filled`.

    `beside` is another dimension, and how much of it is used; if that is less than half, the copy has no more. The
    most rows that there ever were, each with the most places that one ever had, would be many times what is needed.
    What attention does not look at it multiplies by 0, which must not meet an infinity: new room is never left unset.
    """
    if size <= buffer.size(dim):
        return buffer
    if beside is not None and 2 * beside[1] < buffer.size(beside[0]):
        buffer = buffer.narrow(beside[0], 0, beside[1])
    shape = list(buffer.shape)
    multiple = ROOM if dim else 1  # a row may take gigabytes
    shape[dim] = -(-max(size, buffer.size(dim) * 3 // 2) // multiple) * multiple
    larger = buffer.new_full(shape, fill)
    larger.narrow(dim, 0, filled).copy_(buffer.narrow(dim, 0, filled))
    return larger


def move_rows(buffers: Sequence[Tensor], holes: Sequence[int], last: Sequence[int]) -> None:
    """Overwrites rows `holes` of each buffer by rows `last`."""
    if holes:
        for buffer in buffers:
            buffer[holes] = buffer[last]
