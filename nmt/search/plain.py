"""A step of a search in plain PyTorch: the reference for those in C and on a GPU, and used without either.

A search adds sentences by `encode` and `admit`, gives each hypothesis its next symbol by `step`, again and again, and
takes out those that are done by `leave`. These are functions over a `Past`, which holds all tensors that they read or
write but for the models' weights: they return the past that comes next, and write only into its memory. What lies
between two steps, the choice of symbols, is in `choosing`.

Shapes: n rows (sentences), k hypotheses per row, h heads, c places, s source length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from nmt.model.layers import CrossAttention, SelfAttention
from nmt.model.operations import Attending, join_heads, split_heads
from nmt.model.transformer import Transformer
from nmt.search.state import (
    HIDDEN,
    ROOM,
    Ancestry,
    KeysValues,
    KVCache,
    LayerCache,
    Past,
    Removal,
    State,
    hidden,
    joined,
    no_cache,
    used_places,
    with_newest,
    with_places,
    with_room,
    with_sources,
)
from nmt.system.device import Download, upload

Step = Callable[[State], tuple[State, Tensor]]
"""A whole step of a search, choice included: return the state after it and (n,), whether each sentence is finished"""


class Plain:
    """How a search takes its steps: here by PyTorch, as the paper writes them."""

    is_late = False
    """Whether the host learns one step late which sentences are finished"""

    def __init__(self, models: Sequence[Transformer], beam: int) -> None:
        """Take steps of `beam` hypotheses per sentence, by one model or an ensemble."""
        self.models = models
        self.beam = beam
        self.device = models[0].output_embedding.weight.device

    def begin(self) -> Past:
        """Return a past without sentences."""
        return Past(self._new_rows([], ROOM), KVCache(0, ()))

    # --- sentences come and go

    def encode(self, index: int, ids: Tensor) -> list[KeysValues]:
        """Return what each layer of the decoder of model `index` attends to in sources `ids` (n, s)."""
        states = self.source_states(index, ids)
        return [layer.cross.keys_values(states) for layer in self.models[index].decoder_layers()]

    def source_states(self, index: int, ids: Tensor) -> Tensor:
        """Return the encoder's states (n, s, d_model) of sources `ids` (n, s)."""
        return self.models[index].encode(ids).states

    def admit(self, past: Past, ids: Tensor, lengths: Sequence[int], longest: int) -> Past:
        """Add sources `ids` (m, s) of unpadded `lengths`, whose outputs have at most `longest` symbols."""
        before: Ancestry = past.rows
        memory: KVCache = past.memory
        extent = used_places(before.bias)
        caches = []
        for index in range(len(self.models)):
            sources = self.encode(index, ids)
            layers = memory.caches[index] if memory.caches else map(no_cache, sources)
            pairs = zip(layers, sources, strict=True)
            caches.append(tuple(with_sources(cache, source, before, extent) for cache, source in pairs))
        new = self._new_rows(lengths, ids.size(1))
        rows = joined(before, new, HIDDEN)
        return Past(rows, KVCache(extent, tuple(caches)))

    def leave(self, past: Past, removal: Removal) -> Past:
        """Remove the sentences that leave the batch."""
        for caches in past.memory.caches:
            for layer in caches:
                for buffer in (layer.keys, layer.values):
                    self.move(removal, buffer, past.memory.extent)
                for buffer in (layer.memory_keys, layer.memory_values):
                    self.move(removal, buffer, past.rows.longest)
        return past._replace(rows=removal.remaining(past.rows))

    def move(self, removal: Removal, buffer: Tensor, used: int) -> None:
        """Fill the holes in keys or values (rows, h, places, d), of which the first `used` places are in use."""
        removal.move(buffer[:, :, :used])

    def _new_rows(self, lengths: Sequence[int], width: int) -> Ancestry:
        """Return the rows of empty hypotheses of sources of these lengths, padded to `width`."""
        count = len(lengths)
        none = torch.zeros((count, self.beam), dtype=torch.int64, device=self.device)
        source_lengths = np.array(lengths, dtype=np.int64)
        ends = upload(source_lengths, self.device)[:, None]
        is_padding = torch.arange(width, device=self.device) >= ends  # (n, s)
        source_bias = torch.zeros(is_padding.shape, device=self.device)
        source_bias.masked_fill_(is_padding, HIDDEN)
        return Ancestry(
            positions=none.new_full((count, 1), -1),
            places=none,
            bias=torch.full((count, self.beam, ROOM), HIDDEN, device=self.device),
            source_bias=source_bias[:, None],
            words=(none,) * len(self.models),
            ages=np.zeros(count, dtype=np.int64),
            source_lengths=source_lengths,
        )

    # --- steps

    def take_step(self, step: Step, state: State, is_on_device: bool) -> tuple[State, Tensor]:
        """Take a whole step of a search, which may need the host if not `is_on_device`; return what `step` does."""
        return step(state)

    def step(self, past: Past, parents: Tensor, symbols: Tensor, alive: Tensor) -> tuple[Past, list[Tensor]]:
        """Extend hypotheses `parents` (n, k) by `symbols` (n, k); return each model's states (n, k, d_model).

        Hypotheses that are not `alive` (n, k) may be forgotten; their states are undefined.
        """
        past = self.extend(past, parents, alive)
        rows: Ancestry = past.rows
        words = list(rows.words)
        caches = []
        states = []
        for index, model in enumerate(self.models):
            begins = model.begins_word(symbols)
            begun = None
            if begins is not None:
                of_parents = words[index].gather(1, parents)
                begun = of_parents + (begins & alive)
                words[index] = begun
            x = embed(model, symbols, rows, begun)
            after, y = self.decode(index, x, past, alive)
            caches.append(after)
            states.append(y)
        rows = rows._replace(words=tuple(words))
        memory = past.memory._replace(caches=tuple(caches))
        return Past(rows, memory), states

    def extend(self, past: Past, parents: Tensor, alive: Tensor) -> Past:
        """Replace hypotheses by those that `parents` (n, k) selects, and give each a place for its newest symbol."""
        rows: Ancestry = past.rows
        extent = past.memory.extent
        of_parents = parents[:, :, None].expand(-1, -1, extent)
        bias = rows.bias[:, :, :extent].gather(1, of_parents)  # (n, k, extent)
        # Choose the first free places by sorting: taken places come after all free ones.
        seen = bias.amax(1) - HIDDEN  # (n, extent): 0 where free, else 1e9
        taken = F.pad(seen, (0, self.beam))
        numbers = torch.arange(taken.size(1), dtype=torch.float32, device=self.device)
        places = (numbers + taken).topk(self.beam, largest=False).indices  # (n, k)
        is_taken = taken.amax(0).clamp_max_(1.0)  # by any row: 1, else 0
        last_taken = (is_taken * numbers).amax().long()
        last = torch.maximum(places.amax(), last_taken)
        extent = int(last) + 1
        bias = with_room(bias, 2, extent, HIDDEN)
        bias.scatter_(2, places[:, :, None], 0.0)
        return with_newest(past, places, bias, extent)

    def decode(self, index: int, x: Tensor, past: Past, alive: Tensor) -> tuple[tuple[Any, ...], Tensor]:
        """Apply the decoder's layers of model `index` to x (n, k, d_model); return its caches, and the states."""
        model = self.models[index]
        rows: Ancestry = past.rows
        extent = past.memory.extent
        caches = with_places(past.memory.caches[index], len(x), extent)
        dtype = caches[0].keys.dtype
        own = biased(rows.bias[:, :, :extent], dtype)  # (n, 1, k, extent)
        source = biased(rows.source_bias[:, :, : rows.longest], dtype)  # (n, 1, 1, s)
        for layer, cache in zip(model.decoder_layers(), caches, strict=True):
            to_places = partial(attend_to_places, layer.attention, cache, rows.places, own)
            to_source = partial(attend_to_source, layer.cross, cache, source)
            x = layer.states(x, to_places, to_source)
        return caches, model.decoder_norm(x)

    def finished(self, past: Past, report: Download | None) -> tuple[Past, list[int]]:
        """Return the past, with what the report of `take_step` tells if it is known, and the finished rows."""
        if report is None:
            return past, []
        (done,) = report.read()
        return past, done.nonzero()[:, 0].tolist()


def embed(model: Transformer, symbols: Tensor, rows: Any, words: Tensor | None) -> Tensor:
    """Return the decoder's inputs (n, k, d_model) for symbols (n, k).

    `words` (n, k) have begun in each hypothesis; None unless `positions: words`.
    """
    scale = math.sqrt(model.config.d_model)
    x = model.target_embedding(symbols) * scale
    return x + model.target_positions.at(rows.positions, rows.end, words)  # type: ignore[no-any-return]


def attend_to_places(attention: SelfAttention, cache: LayerCache, places: Tensor, bias: Tensor, y: Tensor) -> Tensor:
    """Store keys and values of y (n, k, d_model) at `places` (n, k); attend to all where `bias` (n, 1, k, c) is 0."""
    projected = attention.qkv(y)
    query, key, value = split_heads(projected, attention.heads, attention.widths)  # (n, h, k, …)
    n = len(bias)
    extent = bias.size(3)
    rows = torch.arange(n, device=y.device)[:, None]
    cache.keys.transpose(1, 2)[rows, places] = key.transpose(1, 2)  # (n, k, h, d_k)
    cache.values.transpose(1, 2)[rows, places] = value.transpose(1, 2)
    keys = cache.keys[:n, :, :extent]
    values = cache.values[:n, :, :extent]
    mixed = attention.operations.attention(query, keys, values, Attending(bias))
    return attention.out(join_heads(mixed))  # type: ignore[no-any-return]


def attend_to_source(cross: CrossAttention, cache: LayerCache, bias: Tensor, y: Tensor) -> Tensor:
    """Attend from y (n, k, d_model) to the sources, where `bias` (n, 1, 1, s) is 0."""
    projected = cross.query(y)
    (query,) = split_heads(projected, cross.heads, cross.widths[:1])
    n = len(bias)
    length = bias.size(3)
    keys = cache.memory_keys[:n, :, :length]
    values = cache.memory_values[:n, :, :length]
    mixed = cross.operations.attention(query, keys, values, Attending(bias))
    return cross.out(join_heads(mixed))  # type: ignore[no-any-return]


def biased(bias: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a bias (n, 1, …) for attention in a dtype, in which what is hidden stays finite."""
    lowest = hidden(dtype)
    if lowest > HIDDEN:
        bias = bias.clamp_min(lowest)
    return bias[:, None].to(dtype)
