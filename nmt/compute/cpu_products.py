"""Matrix products on a CPU: in fp32 in C, and linear layers of a search in C or by oneDNN, a part of PyTorch.

`choice.fp32_multiplier` says where ours are faster than MKL, which PyTorch prefers. A search lays out a matrix once,
then multiplies it by few rows again and again.
"""

from __future__ import annotations

from ctypes import CDLL, Structure, byref
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from nmt.compute.header import constant, structure
from nmt.compute.native import threads
from nmt.model.operations import Operations
from nmt.system import torch_internals

CACHE_LINE = 16  # in fp32 numbers
ZERO_POINT = 128  # the unsigned 8-bit value for 0
FEW_MULTIPLICATIONS = 1 << 23  # multiplications · threads up to which nmt_int8_product is as fast as oneDNN with AMX
MIN_SCALE = 1e-12  # avoids division by 0 in rows of zeros


def pointer(x: Tensor | None) -> int | None:
    """Return the address of x's data, or None for a null pointer."""
    if x is None:
        return None
    return x.data_ptr()


def pointers(*tensors: Tensor | None) -> list[int | None]:
    """Return `pointer` of each tensor, for parameters of a C function that follow each other."""
    return [None if x is None else x.data_ptr() for x in tensors]


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, operations: Operations, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        rows = x.reshape(-1, x.size(-1))
        ctx.operations = operations
        ctx.save_for_backward(rows, weight)
        y = operations.product(rows, weight.t(), bias=bias)
        return y.view(*x.shape[:-1], len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        _, needs_x, _, needs_bias = ctx.needs_input_grad
        rows = grad.reshape(-1, grad.size(-1)).contiguous()
        x_grad = None
        if needs_x:
            x_grad = ctx.operations.product(rows, weight).view(*grad.shape[:-1], x.size(-1))
        weight_grad, sums = ctx.operations.weight_gradient(rows, x)
        return None, x_grad, weight_grad, sums if needs_bias else None


class ByNmt(Operations):
    """Operations whose fp32 products, but for those of attention, are by the C kernel nmt_multiply.

    A result does not depend on the number of threads.
    """

    def __init__(self, functions: CDLL) -> None:
        self.functions = functions

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return _Linear.apply(self, x, weight, bias)  # type: ignore[no-any-return, no-untyped-call]

    def product(self, a: Tensor, b: Tensor, scale: float = 1.0, bias: Tensor | None = None) -> Tensor:
        if a.dtype != torch.float32:
            return super().product(a, b, scale, bias)
        return self.multiply(a, b, scale, bias)

    def add_product(self, total: Tensor, a: Tensor, b: Tensor) -> None:
        if a.dtype == total.dtype == torch.float32:
            self.multiply(a, b, total=total)
        else:
            super().add_product(total, a, b)

    def products(
        self, a: Tensor, b: Tensor, scale: float = 1.0, total: Tensor | None = None, share: float = 1.0
    ) -> Tensor:
        if a.dtype != torch.float32:
            return super().products(a, b, scale, total, share)
        out = a.new_zeros((*a.shape[:2], b.size(2))) if total is None else total * share
        for one, left, right in zip(out, a, b, strict=True):
            self.multiply(left, right, scale, total=one)
        return out

    def weight_gradient(self, grad: Tensor, x: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        if x.dtype != torch.float32:
            return super().weight_gradient(grad, x, scale)
        sums = grad.new_zeros(grad.size(1))
        return self.multiply(grad.t(), x, scale, sums=sums), sums

    def multiply(
        self,
        a: Tensor,
        b: Tensor,
        scale: float = 1.0,
        bias: Tensor | None = None,
        total: Tensor | None = None,  # to add to, contiguous
        finish: Structure | None = None,  # nmt_finish
        sums: Tensor | None = None,  # to add the sums of a's rows to; a is transposed then
    ) -> Tensor:
        """Return scale · a b + bias for two fp32 matrices, without a gradient."""
        if 1 not in a.stride():
            a = a.contiguous()
        if 1 not in b.stride():
            b = b.contiguous()
        row, step = a.stride()  # one of which is 1
        strips = None
        if sums is not None or step != 1:  # a is transposed
            row = 1
            strips = a.new_empty(constant("STRIPS"))  # scratch space
        out = a.new_empty((len(a), b.size(1))) if total is None else total
        self.functions.nmt_multiply(
            *a.shape,
            b.size(1),
            a.data_ptr(),
            row,
            step,
            b.data_ptr(),
            *b.stride(),
            scale,
            pointer(bias),
            total is not None,
            finish and byref(finish),
            *pointers(sums, out, strips),
            *threads(),
        )
        return out


# --- linear layers of a search ----------------------------------------------------------------------------------------


class LaidOut(nn.Module):
    """A linear layer, x Wᵀ + b; x (…, in) and the result (…, out) are fp32."""

    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """Store the bias; subclasses lay out `weight` (out, in)."""
        super().__init__()
        self.outputs = len(weight)
        self.bias = None if bias is None else bias.detach()

    def product(self, x: Tensor) -> Tensor:
        """Return x Wᵀ."""
        raise NotImplementedError

    def in_c(self) -> Structure | None:
        """Return the C structure nmt_linear, or None if C alone cannot compute the layer."""
        return None

    def forward(self, x: Tensor) -> Tensor:
        y = self.product(x)
        if self.bias is not None:
            y.add_(self.bias)
        return y


class AsStored(LaidOut):
    """A linear layer that `operations` compute."""

    def __init__(self, operations: Operations, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight, bias)
        self._operations = operations
        self._weight = weight.detach()

    def product(self, x: Tensor) -> Tensor:
        return self._operations.linear(x, self._weight)


class Panels(LaidOut):
    """An fp32 linear layer by the C kernel nmt_product.

    A row's result depends neither on other rows nor on the number of threads.
    """

    def __init__(self, functions: CDLL, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight, bias)
        weight = weight.detach().contiguous()
        self._functions = functions
        self._inputs = weight.size(1)
        beyond = -self.outputs % CACHE_LINE
        self.matrix = weight.new_empty((self.outputs + beyond, self._inputs))
        functions.nmt_pack(self.outputs, self._inputs, *pointers(weight, self.matrix))

    def product(self, x: Tensor) -> Tensor:
        return self._multiply(x, None)

    def forward(self, x: Tensor) -> Tensor:
        return self._multiply(x, self.bias)

    def _multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        x = x.contiguous()
        y = x.new_empty((*x.shape[:-1], self.outputs))
        rows = x.numel() // self._inputs
        given = pointers(x, self.matrix, bias, y)
        self._functions.nmt_product(rows, self._inputs, self.outputs, *given, *threads())
        return y

    def in_c(self) -> Structure:
        return structure("nmt_linear")(matrix=self.matrix.data_ptr(), bias=pointer(self.bias))


class BFloat16(LaidOut):
    """A linear layer by oneDNN in bf16: x and x Wᵀ are rounded."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight, bias)
        reorder = torch_internals.require("torch:ops.mkldnn._reorder_linear_weight")
        self._multiply = torch_internals.require("torch:ops.mkldnn._linear_pointwise")
        self.matrix = reorder(weight.detach().to(torch.bfloat16))  # into oneDNN's fastest layout

    def product(self, x: Tensor) -> Tensor:
        y: Tensor = self._multiply(x.to(torch.bfloat16), self.matrix, None, "none", [], "")
        return y.float()


class Int8(LaidOut):
    """A linear layer that multiplies in 8-bit integers.

    Each row of W and of x has its own scale, so a row's result does not depend on other rows (symmetric "dynamic
    quantisation", Zafrir et al. 2019).
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight, bias)
        weight = weight.detach()
        self.scales = (weight.abs().amax(1) / largest_exact_weight()).clamp_min(MIN_SCALE)
        quantised = (weight / self.scales[:, None]).round_()
        self.lay_out(quantised.to(torch.int8))

    def lay_out(self, quantised: Tensor) -> None:
        """Lay out the weight (out, in) int8, whose rows have `scales` (out,)."""
        self.zeros = torch.zeros(len(quantised), dtype=torch.int64)
        self.matrix = torch_internals.require("torch:ops.onednn.qlinear_prepack")(quantised, None)

    def product(self, x: Tensor) -> Tensor:
        quantised, scales = self.quantise_rows(x.flatten(0, -2))
        return self.quantised_product(quantised, scales).view(*x.shape[:-1], -1)

    def quantise_rows(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Quantise x (rows, width) to uint8; return it and the scales (rows, 1): x ≈ (quantised - 128) · scale.

        A row's largest absolute value maps to 127; halves are rounded up. The scale of a row with infinity or NaN is
        not finite.
        """
        scales = x.abs().amax(1, keepdim=True).div_(127.0).clamp_min_(MIN_SCALE)
        # The conversion truncates: adding 128.5 instead of 128 makes it round.
        quantised = (x * scales.reciprocal()).add_(ZERO_POINT + 0.5)
        return quantised.to(torch.uint8), scales

    def quantised_product(self, x: Tensor, row_scales: Tensor) -> Tensor:
        """Return the fp32 product (rows, out) of uint8 x (rows, in), whose rows have scales (rows, 1)."""
        y = _int8_product(x, ZERO_POINT, self.matrix, self.scales, self.zeros)
        return y.mul_(row_scales)


class Int8InC(Int8):
    """An 8-bit linear layer whose rows are quantised in C, and multiplied in C too unless AMX is faster."""

    def __init__(self, functions: CDLL, weight: Tensor, bias: Tensor | None) -> None:
        self._functions = functions
        self._inputs = weight.size(1)
        # Whether nmt_int8_product multiplies few rows: it must sum exactly, and takes four inputs at a time.
        self._few = functions.nmt_int8_limit() >= largest_exact_weight() and self._inputs % 4 == 0
        super().__init__(weight, bias)  # which lays out

    def lay_out(self, quantised: Tensor) -> None:
        if not self._few or has_amx():
            super().lay_out(quantised)
        if self._few:
            panel = self._functions.nmt_int8_panel()  # outputs that are computed together
            beyond = -self.outputs % panel
            panels = F.pad(quantised, (0, 0, 0, beyond)).view(-1, panel, self._inputs // 4, 4)
            self._panels = panels.transpose(1, 2).contiguous()
            shifts = quantised.sum(1, dtype=torch.int32) * -ZERO_POINT
            self._shifts = F.pad(shifts, (0, beyond))
            self._padded_scales = F.pad(self.scales, (0, beyond))

    def quantise_rows(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.contiguous()
        quantised = torch.empty(x.shape, dtype=torch.uint8)
        scales = x.new_empty((len(x), 1))
        self._functions.nmt_quantise_rows(*x.shape, *pointers(x, quantised, scales))
        return quantised, scales

    def quantised_product(self, x: Tensor, row_scales: Tensor) -> Tensor:
        if not self._few or in_tiles(len(x) * self._inputs * self.outputs):
            return super().quantised_product(x, row_scales)
        y = row_scales.new_empty((len(x), self.outputs))
        given = pointers(x, row_scales, self._panels, self._shifts, self._padded_scales, y)
        self._functions.nmt_int8_product(len(x), self._inputs, self.outputs, *given, *threads())
        return y

    def in_c(self) -> Structure | None:
        if not self._few:
            return None
        return structure("nmt_linear")(
            matrix=self._panels.data_ptr(),
            bias=pointer(self.bias),
            shifts=self._shifts.data_ptr(),
            scales=self._padded_scales.data_ptr(),
        )


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
    width = 64
    full = 127
    pack = torch_internals.require("torch:ops.onednn.qlinear_prepack")
    matrix = pack(torch.full((width, width), full, dtype=torch.int8), None)
    x = torch.full((1, width), 255, dtype=torch.uint8)
    sums = _int8_product(x, 0, matrix, torch.ones(width), torch.zeros(width, dtype=torch.int64))
    if bool(sums.eq(width * 255 * full).all()):
        return full
    return 64


def in_tiles(multiplications: int) -> bool:
    """Return whether oneDNN is faster than nmt_int8_product at so many multiplications of 8-bit integers."""
    return multiplications * torch.get_num_threads() > FEW_MULTIPLICATIONS and has_amx()


@cache
def has_amx() -> bool:
    """Return whether oneDNN multiplies 8-bit integers in tiles, which pays for many rows."""
    supported = torch_internals.find("torch.cpu:_is_amx_tile_supported")
    return bool(torch.backends.cpu.get_cpu_capability() == "AVX512" and supported and supported())
