"""Products of fp32 matrices by oneDNN, a part of PyTorch.

`choice.fp32_multiplier` says where they are faster than those of MKL, which PyTorch prefers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from nmt.model.operations import Operations
from nmt.system import torch_internals


class ByOneDNN(Operations):
    """Operations whose fp32 products, but for batches of them and sums in place, are by oneDNN."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if not x.numel():  # oneDNN refuses empty matrices
            return super().linear(x, weight, bias)
        return _Linear.apply(x, weight, bias)  # type: ignore[no-any-return, no-untyped-call]

    def product(self, a: Tensor, b: Tensor, scale: float = 1.0, bias: Tensor | None = None) -> Tensor:
        if not a.numel():
            return super().product(a, b, scale, bias)
        if scale == 1.0:
            return rows_by_rows(a, b.t(), bias)
        y = rows_by_rows(a, b.t()).mul_(scale)
        return y if bias is None else y.add_(bias)


def rows_by_rows(x: Tensor, y: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x yᵀ + b by oneDNN: x (…, k), y (n, k), the result (…, n). y may come from `reordered`."""
    multiply = torch_internals.find("torch:ops.mkldnn._linear_pointwise")
    return multiply(x, y, bias, "none", [], "") if multiply else F.linear(x, y, bias)


def reordered(weight: Tensor) -> Tensor:
    """Reorder a weight (out, in), fp32 or bf16, into oneDNN's fastest layout."""
    multiply = torch_internals.find("torch:ops.mkldnn._linear_pointwise")
    reorder = torch_internals.find("torch:ops.mkldnn._reorder_linear_weight")
    return reorder(weight) if multiply and reorder else weight


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return rows_by_rows(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        rows = grad.reshape(-1, grad.size(-1))
        x_grad = rows_by_rows(grad, weight.t()) if ctx.needs_input_grad[0] else None
        weight_grad = rows_by_rows(rows.t(), x.reshape(-1, x.size(-1)).t()) if ctx.needs_input_grad[1] else None
        return x_grad, weight_grad, rows.sum(0) if ctx.needs_input_grad[2] else None
