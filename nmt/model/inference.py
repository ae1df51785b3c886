"""Linear layers laid out for inference, in fp32, bf16, fp16 or int8, and a twin of a model that consists of them.

A search multiplies few rows, one per hypothesis, by large matrices again and again, so its speed depends on how these
lie in memory.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from ctypes import CDLL
from functools import cache, partial
from typing import NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.model import products
from nmt.model.cache import KVCache, LayerCache
from nmt.model.layers import DecoderLayer
from nmt.model.transformer import Transformer
from nmt.native import ZERO_POINT, for_few_rows, library, quantise_rows
from nmt.system.errors import UserError

M = TypeVar("M", bound=nn.Module)
Multiply = Callable[[Tensor], Tensor]
"""(m, in) to (m, out)."""
Norm = tuple[Tensor, Tensor, float]
"""Weight, shift and epsilon of a layer normalisation"""
LINE = 16  # numbers of a cache line
ROWS = 64  # of a matrix that are transposed at a time: their cache lines fit in the cache, which is five times as fast
GROUP = 4  # the kernels read lists of places up to a multiple of it


class Product(nn.Module):
    """x Wᵀ + b for few rows; x (…, in) and the result (…, out) are fp32."""

    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """Lays out W, `weight` (out, in)."""
        super().__init__()
        self.bias = None if bias is None else bias.detach()

    def product(self, x: Tensor) -> Tensor:
        """x Wᵀ."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        y = self.product(x)
        return y if self.bias is None else y.add_(self.bias)


class FewRows(Product):
    """In fp32. For few rows, a matrix stored as (in, out) is up to twice as fast.

    Its rows are a cache line longer than needed. If their length were a power of two, a column would fall into few
    places of the processor's cache.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight, bias)
        outputs, inputs = weight.shape
        self.matrix = weight.new_empty((inputs, outputs + LINE))[:, :outputs]
        for start in range(0, outputs, ROWS):
            part = slice(start, start + ROWS)
            self.matrix[:, part].copy_(weight.detach()[part].t())

    def product(self, x: Tensor) -> Tensor:
        """See `Product`."""
        return torch.mm(x.flatten(0, -2), self.matrix).view(*x.shape[:-1], -1)


class HalfPrecision(nn.Module):
    """On a GPU, in bf16 or fp16: x, W, b and the result are rounded to it, sums are in fp32, as under autocast.

    So attention's factors, and the keys and values of a cache, have this type. Where a result is added to the residual
    stream, which is fp32, the sum is fp32.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.matrix = weight.detach().to(dtype)
        self.bias = None if bias is None else bias.detach().to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x.to(self.matrix.dtype), self.matrix, self.bias)


class Logits(nn.Module):
    """x Wᵀ + b on a GPU: x and W are rounded to a type; b is not, nor is the result rounded to bf16 or fp16."""

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.matrix, self.bias = weight.detach().to(dtype).t(), bias

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(self.matrix.dtype)
        if x.dtype.itemsize > 2:
            y = x @ self.matrix
        else:
            y = torch.mm(x.flatten(0, -2), self.matrix, out_dtype=torch.float32).view(*x.shape[:-1], -1)
        return y if self.bias is None else y.add_(self.bias)


class Reordered(Product):
    """By oneDNN, in fp32 or, on a CPU's units for bf16 matrices, with x and the product rounded to bf16."""

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        super().__init__(weight, bias)
        self._dtype, self.matrix = dtype, products.packed(weight.detach().to(dtype))

    def product(self, x: Tensor) -> Tensor:
        """See `Product`."""
        return products.rows_by_rows(x.to(self._dtype), self.matrix).float()


class Int8(Product):
    """In 8-bit integers.

    Each row of W and of x has its own scale, so that the result of a row does not depend on the others (the "dynamic
    quantisation" of Zafrir et al. 2019, symmetric).
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight, bias)
        weight, limit = weight.detach(), largest_exact_weight()
        self.scales = (weight.abs().amax(1) / limit).clamp_min(1e-12)
        self.zeros = torch.zeros(len(weight), dtype=torch.int64)
        quantised = (weight / self.scales[:, None]).round_().to(torch.int8)
        self.matrix = torch.ops.onednn.qlinear_prepack(quantised, None)
        self._few = for_few_rows(quantised, self.scales, limit)

    def product(self, x: Tensor) -> Tensor:
        """See `Product`."""
        quantised, scales = quantise_rows(x.flatten(0, -2))
        y = None if self._few is None else self._few.product(quantised, scales)
        if y is None:
            y = _int8_product(quantised, ZERO_POINT, self.matrix, self.scales, self.zeros).mul_(scales)
        return y.view(*x.shape[:-1], -1)


def _int8_product(x: Tensor, zero_point: int, matrix: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    """(rows, out) in fp32 of unsigned 8-bit x (rows, in) and a packed signed 8-bit matrix, before x is scaled."""
    return torch.ops.onednn.qlinear_pointwise(  # type: ignore[no-any-return]
        x, 1.0, zero_point, matrix, scales, zeros, None, 1.0, 0, torch.float32, "none", [], ""
    )


@cache
def largest_exact_weight() -> int:
    """Largest absolute value of an 8-bit weight with which this processor adds up products of 8 bits exactly.

    A processor without VNNI adds pairs of products in 16 bits, where the sum may saturate: 2 · 255 · 127 does not fit,
    2 · 255 · 64 does. oneDNN itself chooses its instructions, so the largest possible product is tried.
    """
    width, full = 64, 127
    matrix = torch.ops.onednn.qlinear_prepack(torch.full((width, width), full, dtype=torch.int8), None)
    x = torch.full((1, width), 255, dtype=torch.uint8)
    found = _int8_product(x, 0, matrix, torch.ones(width), torch.zeros(width, dtype=torch.int64))
    return full if bool(found.eq(width * 255 * full).all()) else 64


# --- a step of the decoder by C kernels ---------------------------------------------------------------------------

# Between the matrix products, which are PyTorch's, a kernel does all that is left in one pass over memory. Shapes: n
# rows, which are sentences, k hypotheses of each, m hypotheses that are still of interest.


class _Seen(NamedTuple):
    """Which places the hypotheses see in self-attention and in cross-attention."""

    which: Tensor | None  # (m,): of the n · k hypotheses; all if it is None
    newest: Tensor  # (n, k): the place of its newest position
    places: Tensor  # (n, k, room): all places that it sees
    counts: Tensor  # (n, k): how many these are
    lengths: Tensor  # (n,): of the source of each row


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

    def _add(self, x: Tensor, z: Tensor, bias: Tensor | None, norm: Norm) -> tuple[Tensor, Tensor]:
        """The residual stream after a sublayer whose output is z + bias, and what goes into the next sublayer."""
        y, (weight, shift, epsilon) = torch.empty_like(x), norm
        self._functions.nmt_add_norm(
            *(*x.shape, x.data_ptr(), z.data_ptr(), _at(bias), weight.data_ptr(), shift.data_ptr()),
            *(epsilon, z.data_ptr() if self._pre else None, y.data_ptr()),
        )
        return (z, y) if self._pre else (y, y)


def _layer(layer: DecoderLayer) -> _Layer:
    own, cross, feed_forward = layer.attention, layer.cross, layer.feed_forward
    of_layer = own.qkv, own.out, cross.query, cross.out, feed_forward.inner, feed_forward.outer
    qkv, out, query, cross_out, inner, outer = (cast(Product, module) for module in of_layer)
    assert inner.bias is not None
    return _Layer(
        *(qkv.forward, out.product, out.bias, query.forward, cross_out.product, cross_out.bias),
        *(inner.product, inner.bias, outer.product, outer.bias),
    )


def _norm(norm: nn.Module) -> Norm:
    assert isinstance(norm, nn.LayerNorm)
    return norm.weight.detach(), norm.bias.detach(), norm.eps


def _at(x: Tensor | None) -> int | None:
    """Where the kernels find x."""
    return None if x is None else x.data_ptr()


def _buffer(buffer: Tensor) -> tuple[int, ...]:
    """Where keys or values (rows, h, places, d) are, and the steps between rows, heads and places."""
    return (buffer.data_ptr(), *buffer.stride()[:3])


# --- the twin of a model ------------------------------------------------------------------------------------------


def _fp32(weight: Tensor, bias: Tensor | None) -> Product:
    return Reordered(weight, bias, weight.dtype) if products.by_onednn(weight) else FewRows(weight, bias)


LAYERS: dict[str, Callable[[Tensor, Tensor | None], Product]] = {
    "fp32": _fp32,
    "bf16": partial(Reordered, dtype=torch.bfloat16),
    "int8": Int8,
}
HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def for_inference(model: Transformer, precision: str, multiple: int) -> tuple[Transformer, nn.Module]:
    """A twin of `model` that computes in `precision`, and its softmax matrix as a layer: states to fp32 logits.

    The twin shares what it does not replace. The vocabulary of the logits is padded to a multiple of `multiple`.
    `precision` is fp32, bf16 or, on a CPU, int8, on a GPU fp16. Raises UserError if this machine cannot compute in it.
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
        twin = _laid_out(model, partial(HalfPrecision, dtype=HALVES[precision]))
        return twin, Logits(weight, bias, HALVES[precision])
    if precision == "fp16":
        raise UserError("precision fp16: is for GPUs only", "use --precision bf16, or auto")
    layer = LAYERS[precision]
    # The encoder multiplies many rows, for which the layout of FewRows gains nothing.
    kept = ["encoder"] if precision == "fp32" and not products.by_onednn(weight) else []
    try:
        twin = _laid_out(model, layer, kept)
        if model.has_source and weight.dtype == torch.float32 and (opened := library()):
            layers = cast("list[DecoderLayer]", list(twin.decoder))
            twin.fused_step = FusedDecoder(layers, twin.decoder_norm, opened.functions).step
        return twin, layer(weight, bias)
    except (AttributeError, NotImplementedError, RuntimeError) as error:
        raise UserError(
            f"precision {precision}: PyTorch cannot compute in it on this machine: {str(error).splitlines()[0]}",
            "use --precision fp32, or auto",
        ) from None


def half_precision(device: torch.device) -> str:
    """The precision of 16 bits in which a GPU computes fast: bf16, or fp16 where bf16 is only emulated."""
    return "bf16" if torch.cuda.get_device_capability(device) >= (8, 0) else "fp16"


def pays(precision: str) -> bool:
    """Whether this CPU multiplies faster in `precision`, bf16 or int8, than in fp32: a probe of a few milliseconds.

    False if it cannot multiply in that precision at all.
    """
    weight, rows = torch.randn(512, 512), torch.randn(128, 512)
    with torch.inference_mode():
        try:
            plain, short = (LAYERS[name](weight, None) for name in ("fp32", precision))
            times = [(_seconds(short, rows), _seconds(plain, rows)) for _ in range(12)]
        except (AttributeError, NotImplementedError, RuntimeError):  # oneDNN has no kernel for this processor
            return False
    shorts, plains = zip(*times, strict=True)
    return bool(min(shorts) < 0.9 * min(plains))  # the fastest runs, the least slowed by other programs


def _seconds(layer: nn.Module, rows: Tensor) -> float:
    start = time.perf_counter()
    layer(rows)
    return time.perf_counter() - start


def _laid_out(module: M, layer: Callable[[Tensor, Tensor | None], nn.Module], kept: Sequence[str] = ()) -> M:
    """The module with each Linear in it replaced, except in the parts that are `kept`; nothing else is copied."""
    if isinstance(module, nn.Linear):
        return cast(M, layer(module.weight, module.bias))
    twin = copy.copy(module)
    children = [(name, child) for name, child in module._modules.items() if child is not None]
    twin._modules = {name: child if name in kept else _laid_out(child, layer) for name, child in children}
    return twin
