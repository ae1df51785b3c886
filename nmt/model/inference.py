"""Conversion of models for inference in fp32, bf16, fp16 or int8, with decoder steps in C."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from ctypes import CDLL, Array, c_int64, c_void_p
from functools import partial
from typing import NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.compute.native import gomp_parallel, library
from nmt.model.cache import KVCache, LayerCache
from nmt.model.layers import DecoderLayer
from nmt.model.linear import HalfPrecision, Int8, Logits, Packed, Product, Reordered, fp32
from nmt.model.transformer import Transformer
from nmt.system.errors import UserError

M = TypeVar("M", bound=nn.Module)
Multiply = Callable[[Tensor], Tensor]  # (m, in) to (m, out)
Norm = tuple[Tensor, Tensor, float]  # weight, shift and epsilon of a layer normalisation
GROUP = 4  # the kernels read lists of places in groups of this size


# --- a step of the decoder by C kernels ---------------------------------------------------------------------------

# Between two matrix products, one kernel computes the rest in a single pass over memory. If the products are by
# nmt_product, one call computes all layers.
# Shapes: n rows (sentences), k hypotheses per row, m live hypotheses.


class _Seen(NamedTuple):
    """The positions that hypotheses attend to in self-attention and in cross-attention."""

    which: Tensor | None  # (m,): indices of live hypotheses among n · k; None means all
    newest: Tensor  # (n, k): place of each hypothesis's newest position
    places: Tensor  # (n, k, room): places that each hypothesis attends to
    counts: Tensor  # (n, k): number of these places
    lengths: Tensor  # (n,): source lengths


class _Layer(NamedTuple):
    """A layer's matrix products and the biases to add to their results; `qkv` and `query` add their own."""

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
    """A decoder's layers, computed with C kernels for each hypothesis's newest position."""

    def __init__(self, layers: Sequence[DecoderLayer], last_norm: nn.Module, functions: CDLL) -> None:
        """Collect the weights of `layers`, which are laid out for inference; `last_norm` follows pre-norm layers."""
        self._functions, self._pre = functions, layers[0].attention_residual.pre
        self._heads, self._widths = layers[0].attention.heads, layers[0].attention.widths[1:]
        feed_forward = layers[0].feed_forward
        self._inner_width = cast(Tensor, feed_forward.inner.bias).numel()
        self._activate_in_place = getattr(functions, f"nmt_add_bias_{feed_forward.activation}")
        # Collected once: attribute lookups in modules take as long as computing a few hypotheses.
        self._layers = [_layer(layer) for layer in layers]
        residuals = ((each.attention_residual, each.cross_residual, each.feed_forward_residual) for each in layers)
        norms = [_norm(residual.norm) for of_layer in residuals for residual in of_layer]
        self._first_norm = layers[0].attention_residual.norm if self._pre else nn.Identity()
        self._norms = [*norms[1:], _norm(last_norm)] if self._pre else norms
        """The norm after each sublayer"""
        self._weights = self._packed(layers)

    def step(self, x: Tensor, cache: KVCache, alive: Tensor | None) -> Tensor:
        """Compute `Transformer.step` from the newest position's inputs x (n, k, d_model)."""
        if alive is None or bool(alive.all()):
            return self._states(x.flatten(0, 1), self._seen(cache, None), cache).view_as(x)
        which = alive.flatten().nonzero()[:, 0]
        states = torch.zeros_like(x)
        flat = states.flatten(0, 1)
        flat[which] = self._states(x.flatten(0, 1)[which], self._seen(cache, which), cache)
        return states

    def _packed(self, layers: Sequence[DecoderLayer]) -> Array[c_void_p] | None:
        """Return the weights of nmt_decode, or None if a product is not by its library."""
        pointers: list[int | None] = []
        for index, layer in enumerate(layers):
            for product in _products(layer):
                if not isinstance(product, Packed) or product.functions is not self._functions:
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
        for layer, own in zip(self._layers, cache.layers, strict=True):
            mixed = self._attend_to_places(layer.qkv(y), own, seen)
            x, y = self._add(x, layer.out(mixed), layer.out_bias, next(norms))
            mixed = self._attend_to_rows(layer.query(y), own, seen)
            x, y = self._add(x, layer.cross_out(mixed), layer.cross_out_bias, next(norms))
            inner = self._activate(layer.inner(y), layer.inner_bias)
            x, y = self._add(x, layer.outer(inner), layer.outer_bias, next(norms))
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
            *(len(self._layers), m, _pointer(seen.which), seen.places.size(1), heads, keys, values, width),
            *(self._inner_width, self._activate_in_place, self._norms[0][2]),
            *(self._weights, (c_int64 * len(caches))(*caches)),
            *(seen.newest.data_ptr(), seen.places.data_ptr(), seen.counts.data_ptr(), seen.places.size(2)),
            *(seen.lengths.data_ptr(), x.data_ptr(), y.data_ptr(), scratch.data_ptr()),
            *(gomp_parallel(), torch.get_num_threads()),
        )
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

    def _activate(self, x: Tensor, bias: Tensor) -> Tensor:
        """Return the activation of x + bias, written over x (m, d_ff)."""
        self._activate_in_place(*x.shape, x.data_ptr(), bias.data_ptr())
        return x

    def _add(self, x: Tensor, z: Tensor, bias: Tensor | None, norm: Norm) -> tuple[Tensor, Tensor]:
        """Add a sublayer's output z + bias to the residual stream x; return it and the next sublayer's input."""
        y, (weight, shift, epsilon) = torch.empty_like(x), norm
        self._functions.nmt_add_norm(
            *(*x.shape, x.data_ptr(), z.data_ptr(), _pointer(bias), weight.data_ptr(), shift.data_ptr()),
            *(epsilon, z.data_ptr() if self._pre else None, y.data_ptr()),
        )
        return (z, y) if self._pre else (y, y)


def _products(layer: DecoderLayer) -> list[Product]:
    own, cross, feed_forward = layer.attention, layer.cross, layer.feed_forward
    of_layer = own.qkv, own.out, cross.query, cross.out, feed_forward.inner, feed_forward.outer
    return [cast(Product, module) for module in of_layer]


def _layer(layer: DecoderLayer) -> _Layer:
    qkv, out, query, cross_out, inner, outer = _products(layer)
    assert inner.bias is not None
    return _Layer(
        *(qkv.forward, out.product, out.bias, query.forward, cross_out.product, cross_out.bias),
        *(inner.product, inner.bias, outer.product, outer.bias),
    )


def _norm(norm: nn.Module) -> Norm:
    assert isinstance(norm, nn.LayerNorm)
    return norm.weight.detach(), norm.bias.detach(), norm.eps


def _pointer(x: Tensor | None) -> int | None:
    """Return the address of x's data, or None for a null pointer."""
    return None if x is None else x.data_ptr()


def _pointer_and_strides(buffer: Tensor) -> tuple[int, ...]:
    """Return the address of keys or values (rows, h, places, d), and the strides of rows, heads and places."""
    return (buffer.data_ptr(), *buffer.stride()[:3])


# --- conversion of a model ----------------------------------------------------------------------------------------


LAYERS: dict[str, Callable[[Tensor, Tensor | None], Product]] = {
    "fp32": fp32,
    "bf16": partial(Reordered, dtype=torch.bfloat16),
    "int8": Int8,
}
HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def for_inference(model: Transformer, precision: str, multiple: int) -> tuple[Transformer, nn.Module]:
    """Return `model` with its linear layers computing in `precision`, and the output projection to fp32 logits.

    Other modules are shared with `model`. The vocabulary is padded to a multiple of `multiple`. `precision` is fp32,
    bf16, int8 (on a CPU) or fp16 (on a GPU). Raise UserError if this machine does not support it.
    """
    weight = model.output_embedding.weight.detach()
    beyond = -len(weight) % multiple
    weight = F.pad(weight, (0, 0, 0, beyond))
    bias = None if model.output_bias is None else F.pad(model.output_bias.detach(), (0, beyond))
    if weight.device.type != "cpu":
        if precision == "int8":
            raise UserError("precision int8: is for CPUs only", "use --precision bf16, or auto")
        if precision == "fp32":
            return model, Logits(weight, bias, weight.dtype)
        converted = _converted(model, partial(HalfPrecision, dtype=HALVES[precision]))
        return converted, Logits(weight, bias, HALVES[precision])
    if precision == "fp16":
        raise UserError("precision fp16: is for GPUs only", "use --precision bf16, or auto")
    layer = LAYERS[precision]
    try:
        logits = layer(weight, bias)
        converted = _converted(model, layer)
        if model.has_source and weight.dtype == torch.float32 and (opened := library()):
            layers = cast("list[DecoderLayer]", list(converted.decoder))
            converted.fused_step = FusedDecoder(layers, converted.decoder_norm, opened.functions).step
        return converted, logits
    except (AttributeError, NotImplementedError, RuntimeError) as error:
        raise UserError(
            f"precision {precision}: PyTorch cannot compute in it on this machine: {str(error).splitlines()[0]}",
            "use --precision fp32, or auto",
        ) from None


def half_precision(device: torch.device) -> str:
    """Return the GPU's fast 16-bit precision: bf16, or fp16 where bf16 is only emulated."""
    return "bf16" if torch.cuda.get_device_capability(device) >= (8, 0) else "fp16"


def pays(precision: str) -> bool:
    """Return whether this CPU multiplies faster in `precision`, bf16 or int8, than in fp32.

    Time both for a few milliseconds; return False if `precision` is unsupported.
    """
    weight, rows = torch.randn(512, 512), torch.randn(128, 512)
    with torch.inference_mode():
        try:
            plain, short = (LAYERS[name](weight, None) for name in ("fp32", precision))
            times = [(_seconds(short, rows), _seconds(plain, rows)) for _ in range(12)]
        except (AttributeError, NotImplementedError, RuntimeError):  # oneDNN has no kernel for this processor
            return False
    shorts, plains = zip(*times, strict=True)
    return bool(min(shorts) < 0.9 * min(plains))  # the fastest runs are the least disturbed


def _seconds(layer: nn.Module, rows: Tensor) -> float:
    start = time.perf_counter()
    layer(rows)
    return time.perf_counter() - start


def _converted(module: M, layer: Callable[[Tensor, Tensor | None], nn.Module]) -> M:
    """Return a copy of `module` with each Linear replaced by a `layer`."""
    if isinstance(module, nn.Linear):
        return cast(M, layer(module.weight, module.bias))
    converted = copy.copy(module)
    children = [(name, child) for name, child in module._modules.items() if child is not None]
    converted._modules = {name: _converted(child, layer) for name, child in children}
    return converted
