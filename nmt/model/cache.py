"""What the decoder remembers between steps of a search: keys and values, an argument and never an attribute.

Self-attention's are per hypothesis and grow by one position a step; cross-attention's are per sentence, computed
once and shared by the sentence's hypotheses.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


class LayerCache:
    """Self-attention keys and values of one decoder layer, preallocated and doubled when full."""

    def __init__(self) -> None:
        self._keys: Tensor | None = None  # (rows, heads, capacity, d_k)
        self._values: Tensor | None = None  # (rows, heads, capacity, d_v)
        self._length = 0

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Takes one position, (rows, heads, 1, d); returns all so far, (rows, heads, length, d)."""
        if self._keys is None or self._values is None:
            self._keys, self._values = _with_room(key, 0, 32), _with_room(value, 0, 32)
        elif self._length == self._keys.size(2):
            self._keys = _with_room(self._keys, self._length, 2 * self._length)
            self._values = _with_room(self._values, self._length, 2 * self._length)
        end = self._length + 1
        self._keys[:, :, self._length : end] = key
        self._values[:, :, self._length : end] = value
        self._length = end
        return self._keys[:, :, :end], self._values[:, :, :end]

    def select(self, rows: Tensor) -> None:
        """Keeps the given rows, in the given order."""
        if self._keys is not None and self._values is not None:
            self._keys = _rows_up_to(self._keys, rows, self._length)
            self._values = _rows_up_to(self._values, rows, self._length)


def _with_room(old: Tensor, filled: int, capacity: int) -> Tensor:
    new = old.new_empty(*old.shape[:2], capacity, old.size(3))
    new[:, :, :filled] = old[:, :, :filled]
    return new


def _rows_up_to(old: Tensor, rows: Tensor, filled: int) -> Tensor:
    new = old.new_empty(rows.numel(), *old.shape[1:])
    new[:, :, :filled] = old[:, :, :filled].index_select(0, rows)
    return new


@dataclass
class KVCache:
    """Cache of a whole decoder for the sentences of a batch and `beam` hypotheses of each."""

    memory: list[tuple[Tensor, Tensor]]
    """For each layer cross-attention's keys (b, h, s, d_k) and values (b, h, s, d_v)."""
    mask: Tensor | None
    """(b, 1, 1, s), true at words, or None where nothing is padded."""
    layers: list[LayerCache] = field(init=False)
    length: int = 0
    """Positions decoded so far."""

    def __post_init__(self) -> None:
        self.layers = [LayerCache() for _ in self.memory]

    def reorder(self, rows: Tensor, sentences: Tensor | None = None) -> None:
        """Keeps hypotheses `rows` (new b · beam,) and, unless None, sentences (new b,), in the given order."""
        for layer in self.layers:
            layer.select(rows)
        if sentences is not None:
            self.memory = [(key[sentences], value[sentences]) for key, value in self.memory]
            self.mask = None if self.mask is None else self.mask[sentences]
