"""Linear layers for inference: a matrix is laid out once, then multiplied by few rows again and again."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.compute.native import ZERO_POINT, for_few_rows, gomp_parallel, library, quantise_rows
from nmt.model import products
from nmt.system import torch_internals

CACHE_LINE = 16  # in fp32 numbers


def fp32(weight: Tensor, bias: Tensor | None) -> Product:
    """Return an fp32 linear layer for few rows on a CPU: by the C kernel if it is as fast as the libraries."""
    opened = library()
    if weight.dtype is torch.float32 and opened and opened.multiplies:
        return Packed(weight, bias)
    return AsStored(weight, bias)


class Product(nn.Module):
    """A linear layer for few rows: x Wᵀ + b; x (…, in) and the result (…, out) are fp32."""

    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """Store the bias; subclasses lay out `weight` (out, in)."""
        super().__init__()
        self.bias = None if bias is None else bias.detach()

    def product(self, x: Tensor) -> Tensor:
        """Return x Wᵀ."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        y = self.product(x)
        return y if self.bias is None else y.add_(self.bias)


class AsStored(Product):
    """A linear layer whose matrix is not laid out anew."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight, bias)
        self.matrix = weight.detach()

    def product(self, x: Tensor) -> Tensor:
        return products.linear(x, self.matrix)


class Packed(Product):
    """An fp32 linear layer by the C kernel nmt_product.

    A row's result depends neither on other rows nor on the number of threads.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight, bias)
        weight, opened = weight.detach().contiguous(), library()
        assert opened is not None
        self.functions, (self._outputs, self._inputs) = opened.functions, weight.shape
        self.matrix = weight.new_empty((-(-self._outputs // CACHE_LINE) * CACHE_LINE, self._inputs))
        self.functions.nmt_pack(self._outputs, self._inputs, weight.data_ptr(), self.matrix.data_ptr())

    def forward(self, x: Tensor) -> Tensor:
        return self._multiply(x, self.bias)

    def product(self, x: Tensor) -> Tensor:
        return self._multiply(x, None)

    def _multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        x = x.contiguous()
        y = x.new_empty((*x.shape[:-1], self._outputs))
        self.functions.nmt_product(
            *(x.numel() // self._inputs, self._inputs, self._outputs, x.data_ptr(), self.matrix.data_ptr()),
            *(None if bias is None else bias.data_ptr(), y.data_ptr(), gomp_parallel(), torch.get_num_threads()),
        )
        return y


class HalfPrecision(nn.Module):
    """A bf16 or fp16 linear layer for GPUs: x, W, b and the result are rounded, accumulation is fp32, as in autocast.

    Queries and a cache's keys and values therefore have this dtype; the residual stream stays fp32.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.matrix = weight.detach().to(dtype)
        self.bias = None if bias is None else bias.detach().to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x.to(self.matrix.dtype), self.matrix, self.bias)


class Logits(nn.Module):
    """The output projection on a GPU: x and W are rounded to `dtype`; b and the logits are at least fp32."""

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
    """A linear layer by oneDNN in bf16, with x and x Wᵀ rounded to bf16."""

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        super().__init__(weight, bias)
        self._dtype, self.matrix = dtype, products.packed(weight.detach().to(dtype))

    def product(self, x: Tensor) -> Tensor:
        return products.rows_by_rows(x.to(self._dtype), self.matrix).float()


class Int8(Product):
    """A linear layer that multiplies in 8-bit integers.

    Each row of W and of x has its own scale, so a row's result does not depend on other rows (symmetric "dynamic
    quantisation", Zafrir et al. 2019).
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight, bias)
        weight, limit = weight.detach(), largest_exact_weight()
        self.scales = (weight.abs().amax(1) / limit).clamp_min(1e-12)
        self.zeros = torch.zeros(len(weight), dtype=torch.int64)
        quantised = (weight / self.scales[:, None]).round_().to(torch.int8)
        self.matrix = torch_internals.require("torch:ops.onednn.qlinear_prepack")(quantised, None)
        self._few = for_few_rows(quantised, self.scales, limit)

    def product(self, x: Tensor) -> Tensor:
        quantised, scales = quantise_rows(x.flatten(0, -2))
        y = None if self._few is None else self._few.product(quantised, scales)
        if y is None:
            y = _int8_product(quantised, ZERO_POINT, self.matrix, self.scales, self.zeros).mul_(scales)
        return y.view(*x.shape[:-1], -1)


def _int8_product(x: Tensor, zero_point: int, matrix: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    """Multiply uint8 x (rows, in) by a packed int8 matrix to fp32 (rows, out), without applying the scale of x."""
    multiply = torch_internals.require("torch:ops.onednn.qlinear_pointwise")
    return multiply(  # type: ignore[no-any-return]
        x, 1.0, zero_point, matrix, scales, zeros, None, 1.0, 0, torch.float32, "none", [], ""
    )


@cache
def largest_exact_weight() -> int:
    """Return the largest absolute int8 weight with which this processor sums products exactly.

    Without VNNI, pairs of products are added in 16 bits and can saturate: 2 · 255 · 127 does not fit, 2 · 255 · 64
    does. oneDNN chooses its own instructions, so try the largest possible product.
    """
    width, full = 64, 127
    pack = torch_internals.require("torch:ops.onednn.qlinear_prepack")
    matrix = pack(torch.full((width, width), full, dtype=torch.int8), None)
    x = torch.full((1, width), 255, dtype=torch.uint8)
    found = _int8_product(x, 0, matrix, torch.ones(width), torch.zeros(width, dtype=torch.int64))
    return full if bool(found.eq(width * 255 * full).all()) else 64
