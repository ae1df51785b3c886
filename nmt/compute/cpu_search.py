"""A step of a search on a CPU, by C kernels.

Between two matrix products, one kernel computes the rest in a single pass over memory. If the products are by
nmt_product, one call computes all layers.

Linear layers are those of `cpu_products`. Without C kernels, the layers take their steps by `model.operations`, and
`beams` chooses.

Shapes: n rows (sentences), k hypotheses per row, m live hypotheses.
"""

from __future__ import annotations

from collections.abc import Iterable
from ctypes import CDLL, Array, c_int64, c_void_p
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from nmt.compute.beams import BeamOperations, Beams, Candidates
from nmt.compute.cpu_products import LaidOut, Panels
from nmt.compute.native import gomp_parallel
from nmt.model.cache import Ancestry, KVCache, LayerCache, Removal
from nmt.model.layers import DecoderLayer
from nmt.model.operations import Operations
from nmt.model.transformer import Transformer
from nmt.text.vocabulary import EOS

Norm = tuple[Tensor, Tensor, float]  # weight, shift and epsilon of a layer normalisation
PLACES_AT_ONCE = 4  # the kernels read lists of places in groups of this size


class AncestryInC(Ancestry):
    """An ancestry that C kernels extend and move."""

    def __init__(self, functions: CDLL, beam: int, device: torch.device, window: int | None = None) -> None:
        super().__init__(beam, device, window)
        self._functions = functions

    def _extend(self) -> None:
        self._make_room(self.extent + self.beam)
        bias, written, parents = self._bias, self._written, self.parents.contiguous()
        self.places, before = torch.empty_like(parents), bias.new_empty((self.beam, self.extent))
        forgotten = self._steps - self.window if self.window is not None else -1
        self.extent = self._functions.nmt_extend(
            *(self.count, self.beam, self.extent, parents.data_ptr(), bias.data_ptr(), bias.stride(0), bias.stride(1)),
            *(written.data_ptr(), written.stride(0), forgotten, self._steps, before.data_ptr(), self.places.data_ptr()),
        )

    def move_places(self, removal: Removal, buffer: Tensor, used: int) -> None:
        if removal.holes:
            last, holes = removal.moves
            self._functions.nmt_move_rows(
                *(len(holes), last.data_ptr(), holes.data_ptr(), buffer.size(1), used),
                *(buffer.data_ptr(), *buffer.stride()[:3]),
            )


class BeamOperationsInC(BeamOperations):
    """Operations on fp32 log-probabilities of a CPU."""

    def __init__(self, functions: CDLL) -> None:
        self._functions = functions

    def log_softmax_(self, logits: Tensor, vocabulary: int) -> Tensor:
        n, k, width = logits.shape
        self._functions.nmt_log_softmax(n * k, width, vocabulary, EOS, logits.data_ptr())
        return logits

    def best_extensions(self, log_probs: Tensor, alive: Tensor, count: int) -> Candidates:
        n, k, width = log_probs.shape
        totals = alive.new_empty((n, count))
        parents, symbols = torch.empty((2, n, count), dtype=torch.int64)
        found = (each.data_ptr() for each in (log_probs, alive, totals, parents, symbols))
        self._functions.nmt_best_extensions(n, k, width, count, *found)
        return Candidates(totals, parents, symbols)

    def choose_(
        self,
        beams: Beams,
        candidates: Candidates,
        links: Tensor,
        positions: Tensor,
        penalties: Tensor,
        n_best: int,
        vocabulary: int,
    ) -> tuple[Beams, Tensor]:
        (n, count), beam = candidates.totals.shape, beams.totals.size(1)
        chosen, alive = torch.empty((2, n, beam), dtype=torch.int64), torch.empty_like(beams.totals)
        done = torch.empty(n, dtype=torch.bool)
        given = penalties, beams.caps, positions, *candidates, links
        results = *chosen, alive, beams.ends, beams.positions, beams.scores, done
        self._functions.nmt_choose(
            *(n, beam, count, vocabulary, EOS, n_best, *(each.data_ptr() for each in given)),
            *(links.stride(0), *(each.data_ptr() for each in results)),
        )
        return beams._replace(parents=chosen[0], symbols=chosen[1], totals=alive), done


# --- the decoder ------------------------------------------------------------------------------------------------------


class _Seen(NamedTuple):
    """The positions that hypotheses attend to in self-attention and in cross-attention."""

    which: Tensor | None  # (m,): indices of live hypotheses among n · k; None means all
    newest: Tensor  # (n, k): place of each hypothesis's newest position
    places: Tensor  # (n, k, room): places that each hypothesis attends to
    counts: Tensor  # (n, k): number of these places
    lengths: Tensor  # (n,): source lengths


class SearchInC(Operations):
    """Operations of one decoder, whose weights are collected when they are made."""

    def __init__(self, model: Transformer, functions: CDLL) -> None:
        """Prepare steps of the decoder of `model`, whose linear layers are laid out."""
        layers, last_norm = cast("list[DecoderLayer]", list(model.decoder)), model.decoder_norm
        self._functions, self._pre = functions, layers[0].attention_residual.pre
        self._heads, self._widths = layers[0].attention.heads, layers[0].attention.widths[1:]
        self._activate_in_place = getattr(functions, f"nmt_add_bias_{layers[0].feed_forward.activation}")
        # Collected once: looking up parts of modules takes as long as computing a few hypotheses.
        self._products = [_products(layer) for layer in layers]
        self._inner_width = len(cast(Tensor, layers[0].feed_forward.inner.bias))
        residuals = ((each.attention_residual, each.cross_residual, each.feed_forward_residual) for each in layers)
        norms = [_norm(residual.norm) for of_layer in residuals for residual in of_layer]
        self._first_norm = layers[0].attention_residual.norm if self._pre else nn.Identity()
        self._norms = [*norms[1:], _norm(last_norm)] if self._pre else norms
        """The norm after each sublayer"""
        self._weights = self._packed()

    def step(self, layers: Iterable[Any], norm: nn.Module, x: Tensor, cache: KVCache, alive: Tensor | None) -> Tensor:
        if alive is None or bool(alive.all()):
            return self._states(x.flatten(0, 1), self._seen(cache, None), cache).view_as(x)
        which = alive.flatten().nonzero()[:, 0]
        states = torch.zeros_like(x)
        flat = states.flatten(0, 1)
        flat[which] = self._states(x.flatten(0, 1)[which], self._seen(cache, which), cache)
        return states

    def _packed(self) -> Array[c_void_p] | None:
        """Return the weights of nmt_decode, or None if products are not by nmt_product."""
        pointers: list[int | None] = []
        for index, products in enumerate(self._products):
            for product in products:
                if not isinstance(product, Panels):
                    return None
                pointers += product.matrix.data_ptr(), _pointer(product.bias)
            for weight, shift, _ in self._norms[3 * index : 3 * index + 3]:
                pointers += weight.data_ptr(), shift.data_ptr()
        return (c_void_p * len(pointers))(*pointers)

    def _states(self, x: Tensor, seen: _Seen, cache: KVCache) -> Tensor:
        """Return the states (m, d_model) of inputs x (m, d_model)."""
        if self._weights is not None:
            return self._decode(x, seen, cache)
        norms = iter(self._norms)
        y: Tensor = self._first_norm(x)
        for (qkv, out, query, cross_out, inner, outer), own in zip(self._products, cache.layers, strict=True):
            mixed = self._attend_to_places(qkv.forward(y), own, seen)
            x, y = self._add(x, out.product(mixed), out.bias, next(norms))
            mixed = self._attend_to_rows(query.forward(y), own, seen)
            x, y = self._add(x, cross_out.product(mixed), cross_out.bias, next(norms))
            z = inner.product(y)
            self._activate_in_place(*z.shape, z.data_ptr(), _pointer(inner.bias))
            x, y = self._add(x, outer.product(z), outer.bias, next(norms))
        return y

    def _decode(self, x: Tensor, seen: _Seen, cache: KVCache) -> Tensor:
        """Compute `_states` in a single call."""
        (m, width), heads, (keys, values) = x.shape, self._heads, self._widths
        x = x.clone()
        y = self._first_norm(x) if self._pre else x
        buffers = (buffer for own in cache.layers for buffer in own.buffers())
        caches = [number for buffer in buffers for number in _pointer_and_strides(buffer)]
        scratch = x.new_empty(m * (width + heads * 2 * (keys + values) + self._inner_width))
        self._functions.nmt_decode(
            *(len(self._products), m, _pointer(seen.which), seen.places.size(1), heads, keys, values, width),
            *(self._inner_width, self._activate_in_place, self._norms[0][2]),
            *(self._weights, (c_int64 * len(caches))(*caches)),
            *(seen.newest.data_ptr(), seen.places.data_ptr(), seen.counts.data_ptr(), seen.places.size(2)),
            *(seen.lengths.data_ptr(), x.data_ptr(), y.data_ptr(), scratch.data_ptr()),
            *(gomp_parallel(), torch.get_num_threads()),
        )
        return y

    def _seen(self, cache: KVCache, which: Tensor | None) -> _Seen:
        n, _, k, extent = cache.bias.shape
        room = -(-extent // PLACES_AT_ONCE) * PLACES_AT_ONCE
        places, counts = torch.empty((n, k, room), dtype=torch.int32), torch.empty((n, k), dtype=torch.int32)
        self._functions.nmt_seen_places(
            *(n, k, extent, cache.bias.data_ptr(), cache.bias.stride(0), cache.bias.stride(2)),
            *(room, places.data_ptr(), counts.data_ptr()),
        )
        return _Seen(which, cache.ancestry.places, places, counts, torch.from_numpy(cache.lengths))

    def _attend_to_places(self, projected: Tensor, own: LayerCache, seen: _Seen) -> Tensor:
        """Return self-attention (m, heads · d_v); `projected` holds queries, keys and values side by side."""
        _, k, room = seen.places.shape
        keys, values = own.with_places()
        out = projected.new_empty((len(projected), self._heads * self._widths[1]))
        self._functions.nmt_attend_to_places(
            *(len(projected), _pointer(seen.which), k, self._heads, *self._widths, projected.data_ptr()),
            *(seen.newest.data_ptr(), *_pointer_and_strides(keys), *_pointer_and_strides(values)),
            *(seen.places.data_ptr(), seen.counts.data_ptr(), room, self._widths[0] ** -0.5, out.data_ptr()),
        )
        return out

    def _attend_to_rows(self, queries: Tensor, own: LayerCache, seen: _Seen) -> Tensor:
        """Return cross-attention (m, heads · d_v) of queries (m, heads · d_k) to their rows' sources."""
        keys, values = own.memory()
        out = queries.new_empty((len(queries), self._heads * self._widths[1]))
        self._functions.nmt_attend_to_rows(
            *(len(queries), _pointer(seen.which), seen.places.size(1), self._heads, *self._widths, queries.data_ptr()),
            *(*_pointer_and_strides(keys), *_pointer_and_strides(values)),
            *(seen.lengths.data_ptr(), self._widths[0] ** -0.5, out.data_ptr()),
        )
        return out

    def _add(self, x: Tensor, z: Tensor, bias: Tensor | None, norm: Norm) -> tuple[Tensor, Tensor]:
        """Add a sublayer's output z + bias to the residual stream x; return it and the next sublayer's input."""
        y, (weight, shift, epsilon) = torch.empty_like(x), norm
        self._functions.nmt_add_norm(
            *(*x.shape, x.data_ptr(), z.data_ptr(), _pointer(bias), weight.data_ptr(), shift.data_ptr()),
            *(epsilon, z.data_ptr() if self._pre else None, y.data_ptr()),
        )
        return (z, y) if self._pre else (y, y)


def _products(layer: DecoderLayer) -> list[LaidOut]:
    """Return what multiplies in a layer, in the order of computation."""
    own, cross, feed_forward = layer.attention, layer.cross, layer.feed_forward
    of_layer = own.qkv, own.out, cross.query, cross.out, feed_forward.inner, feed_forward.outer
    return [cast(LaidOut, module) for module in of_layer]


def _norm(norm: nn.Module) -> Norm:
    assert isinstance(norm, nn.LayerNorm)
    return norm.weight.detach(), norm.bias.detach(), norm.eps


def _pointer(x: Tensor | None) -> int | None:
    """Return the address of x's data, or None for a null pointer."""
    return None if x is None else x.data_ptr()


def _pointer_and_strides(buffer: Tensor) -> tuple[int, ...]:
    """Return the address of keys or values (rows, h, places, d), and the strides of rows, heads and places."""
    return (buffer.data_ptr(), *buffer.stride()[:3])
