"""Linear layers laid out for inference, in fp32, bf16, fp16 or int8, and a twin of a model that consists of them.

A search multiplies few rows, one per hypothesis, by large matrices again and again, so its speed depends on how these
lie in memory.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.errors import UserError
from nmt.model.fused import FusedDecoder
from nmt.model.layers import DecoderLayer
from nmt.model.transformer import Transformer
from nmt.native.loading import library
from nmt.native.quantised import ZERO_POINT, for_few_rows, quantise_rows

M = TypeVar("M", bound=nn.Module)
LINE = 16  # numbers of a cache line
ROWS = 64  # of a matrix that are transposed at a time: their cache lines fit in the cache, which is five times as fast


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


class BFloat16(Product):
    """On a CPU's units for bf16 matrices; x and the product are rounded to bf16."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight, bias)
        self.matrix = torch.ops.mkldnn._reorder_linear_weight(weight.detach().bfloat16())

    def product(self, x: Tensor) -> Tensor:
        """See `Product`."""
        y = torch.ops.mkldnn._linear_pointwise(x.bfloat16(), self.matrix, None, "none", [], "")
        return y.float()  # type: ignore[no-any-return]


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


LAYERS: dict[str, type[Product]] = {"fp32": FewRows, "bf16": BFloat16, "int8": Int8}
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
    try:
        # The encoder multiplies many rows, which gains nothing in fp32.
        twin = _laid_out(model, layer, kept=("encoder",) if precision == "fp32" else ())
        if model.has_source and weight.dtype == torch.float32 and (opened := library()):
            layers = cast("list[DecoderLayer]", list(twin.decoder))
            twin.fused = FusedDecoder(layers, twin.decoder_norm, opened.functions)
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


def _children(module: nn.Module) -> list[tuple[str, nn.Module]]:
    return [(name, child) for name, child in module._modules.items() if child is not None]


def _laid_out(module: M, layer: Callable[[Tensor, Tensor | None], nn.Module], kept: Sequence[str] = ()) -> M:
    """The module with each Linear in it replaced, except in the parts that are `kept`; nothing else is copied."""
    if isinstance(module, nn.Linear):
        return cast(M, layer(module.weight, module.bias))
    twin = copy.copy(module)
    children = _children(module)
    twin._modules = {name: child if name in kept else _laid_out(child, layer) for name, child in children}
    return twin
