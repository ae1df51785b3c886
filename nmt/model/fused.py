"""A step of the decoder in a search by the C kernels of `nmt.native`; on a CPU.

Between the matrix products, which are PyTorch's, a kernel does all that is left in one pass over memory. Shapes: n
rows, which are sentences, k hypotheses of each, m hypotheses that are still of interest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import CDLL
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor, nn

from nmt.model.cache import KVCache, LayerCache
from nmt.model.layers import DecoderLayer

if TYPE_CHECKING:
    from nmt.model.inference import Product

Multiply = Callable[[Tensor], Tensor]
"""(m, in) to (m, out)."""

GROUP = 4  # the kernels read lists of places up to a multiple of it


class _Seen(NamedTuple):
    """Which places the hypotheses see in self-attention and in cross-attention."""

    which: Tensor | None  # (m,): of the n · k hypotheses; all if it is None
    newest: Tensor  # (n, k): the place of its newest position
    places: Tensor  # (n, k, room): all places that it sees
    counts: Tensor  # (n, k): how many these are
    lengths: Tensor  # (n,): of the source of each row


class _Norm(NamedTuple):
    """A layer normalisation."""

    weight: Tensor
    shift: Tensor
    epsilon: float


class _Layer(NamedTuple):
    """The products of a layer, and the biases that are added after them; qkv and query add theirs themselves."""

    qkv: Multiply
    out: Multiply
    out_bias: Tensor | None
    query: Multiply
    cross_out: Multiply
    cross_out_bias: Tensor | None
    inner: Multiply
    inner_bias: Tensor
    outer: Multiply
    outer_bias: Tensor | None


class FusedDecoder:
    """The layers of a decoder, for the newest position of each hypothesis."""

    def __init__(self, layers: Sequence[DecoderLayer], last_norm: nn.Module, functions: CDLL) -> None:
        """The layers are laid out for inference; pre-norm layers are followed by `last_norm`."""
        self._functions, self._pre = functions, layers[0].attention_residual.pre
        self._heads, self._widths = layers[0].attention.heads, layers[0].attention.widths[1:]
        self._activate_in_place = getattr(functions, f"nmt_add_bias_{layers[0].feed_forward.activation}")
        # Looked up once: to look it up in modules takes as long as to compute it for a few hypotheses.
        self._layers = [_layer(layer) for layer in layers]
        residuals = ((each.attention_residual, each.cross_residual, each.feed_forward_residual) for each in layers)
        norms = [_norm(residual.norm) for of_layer in residuals for residual in of_layer]
        self._first_norm = layers[0].attention_residual.norm if self._pre else nn.Identity()
        self._norms = [*norms[1:], _norm(last_norm)] if self._pre else norms
        """After each sublayer."""

    def step(self, x: Tensor, cache: KVCache, alive: Tensor | None) -> Tensor:
        """See `Transformer.step`; x (n, k, d_model) are the inputs of the newest position."""
        if alive is None or bool(alive.all()):
            return self._states(x.flatten(0, 1), self._seen(cache, None), cache).view_as(x)
        which = alive.flatten().nonzero()[:, 0]
        states = torch.zeros_like(x)
        flat = states.flatten(0, 1)
        flat[which] = self._states(x.flatten(0, 1)[which], self._seen(cache, which), cache)
        return states

    def _states(self, x: Tensor, seen: _Seen, cache: KVCache) -> Tensor:
        """(m, d_model) of inputs (m, d_model)."""
        norms = iter(self._norms)
        y: Tensor = self._first_norm(x)
        for layer, own in zip(self._layers, cache.layers, strict=True):
            mixed = self._attend_to_places(layer.qkv(y), own, seen)
            x, y = self._add(x, layer.out(mixed), layer.out_bias, next(norms))
            mixed = self._attend_to_rows(layer.query(y), own, seen)
            x, y = self._add(x, layer.cross_out(mixed), layer.cross_out_bias, next(norms))
            inner = self._activate(layer.inner(y), layer.inner_bias)
            x, y = self._add(x, layer.outer(inner), layer.outer_bias, next(norms))
        return y

    def _seen(self, cache: KVCache, which: Tensor | None) -> _Seen:
        n, _, k, extent = cache.bias.shape
        room = -(-extent // GROUP) * GROUP
        places, counts = torch.empty((n, k, room), dtype=torch.int32), torch.empty((n, k), dtype=torch.int32)
        self._functions.nmt_seen_places(
            *(n, k, extent, cache.bias.data_ptr(), cache.bias.stride(0), cache.bias.stride(2)),
            *(room, places.data_ptr(), counts.data_ptr()),
        )
        return _Seen(which, cache.ancestry.places, places, counts, torch.from_numpy(cache.lengths))

    def _attend_to_places(self, projected: Tensor, own: LayerCache, seen: _Seen) -> Tensor:
        """(m, heads · d_v) of queries, keys and values, side by side, of the newest position."""
        _, k, room = seen.places.shape
        keys, values = own.with_places()
        out = projected.new_empty((len(projected), self._heads * self._widths[1]))
        self._functions.nmt_attend_to_places(
            *(len(projected), _at(seen.which), k, self._heads, *self._widths, projected.data_ptr()),
            *(seen.newest.data_ptr(), *_buffer(keys), *_buffer(values), seen.places.data_ptr()),
            *(seen.counts.data_ptr(), room, self._widths[0] ** -0.5, out.data_ptr()),
        )
        return out

    def _attend_to_rows(self, queries: Tensor, own: LayerCache, seen: _Seen) -> Tensor:
        """(m, heads · d_v) of queries (m, heads · d_k) to the sources of their rows."""
        keys, values = own.memory()
        out = queries.new_empty((len(queries), self._heads * self._widths[1]))
        self._functions.nmt_attend_to_rows(
            *(len(queries), _at(seen.which), seen.places.size(1), self._heads, *self._widths, queries.data_ptr()),
            *(*_buffer(keys), *_buffer(values), seen.lengths.data_ptr(), self._widths[0] ** -0.5, out.data_ptr()),
        )
        return out

    def _activate(self, x: Tensor, bias: Tensor) -> Tensor:
        """The activation of x + bias, written over x (m, d_ff)."""
        self._activate_in_place(*x.shape, x.data_ptr(), bias.data_ptr())
        return x

    def _add(self, x: Tensor, z: Tensor, bias: Tensor | None, norm: _Norm) -> tuple[Tensor, Tensor]:
        """The residual stream after a sublayer whose output is z + bias, and what goes into the next sublayer."""
        y = torch.empty_like(x)
        self._functions.nmt_add_norm(
            *(*x.shape, x.data_ptr(), z.data_ptr(), _at(bias), norm.weight.data_ptr(), norm.shift.data_ptr()),
            *(norm.epsilon, z.data_ptr() if self._pre else None, y.data_ptr()),
        )
        return (z, y) if self._pre else (y, y)


def _layer(layer: DecoderLayer) -> _Layer:
    own, cross, feed_forward = layer.attention, layer.cross, layer.feed_forward
    of_layer = own.qkv, own.out, cross.query, cross.out, feed_forward.inner, feed_forward.outer
    qkv, out, query, cross_out, inner, outer = (cast("Product", module) for module in of_layer)
    assert inner.bias is not None
    return _Layer(
        *(qkv.forward, out.product, out.bias, query.forward, cross_out.product, cross_out.bias),
        *(inner.product, inner.bias, outer.product, outer.bias),
    )


def _norm(norm: nn.Module) -> _Norm:
    assert isinstance(norm, nn.LayerNorm)
    return _Norm(norm.weight.detach(), norm.bias.detach(), norm.eps)


def _at(x: Tensor | None) -> int | None:
    """Where the kernels find x."""
    return None if x is None else x.data_ptr()


def _buffer(buffer: Tensor) -> tuple[int, ...]:
    """Where keys or values (rows, h, places, d) are, and the steps between rows, heads and places."""
    return (buffer.data_ptr(), *buffer.stride()[:3])
