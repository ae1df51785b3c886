"""Training on a CPU, with fewer passes over memory than PyTorch's operations; not for compiled models.

On a CPU, memory traffic dominates element-wise operations. Those here draw dropout masks faster than PyTorch, work in
place, and recompute values instead of storing them. Under autocast, the feed-forward layer is computed in bf16,
attention and sums in fp32. What is not here, such as the products of linear layers, is as in `model.operations`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from nmt.compute.cpu_products import CACHE_LINE
from nmt.compute.native import kernels
from nmt.model.operations import Operations, factor_dtype, look_ahead_mask

MASKED_AT_ONCE = 1 << 18  # elements; they fit in a core's cache


class TrainingOnCPU(Operations):
    """Operations with gradients of their own."""

    def dense_attention(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, dropout: float
    ) -> Tensor:
        """Compute it in fp32 at least."""
        with torch.autocast("cpu", enabled=False):
            query, key, value = (each.to(_at_least_fp32(each.dtype)) for each in (query, key, value))
            if dropout == 0.0:
                return super().dense_attention(query, key, value, mask, causal, dropout)
            visible = look_ahead_mask(query.size(2)) if causal else mask
            scores = query @ key.transpose(2, 3) * query.size(-1) ** -0.5
            if visible is not None:
                scores = scores.masked_fill_(~visible, -math.inf)
            # The C kernels store whole cache lines of weights, and masks are for what is stored.
            weights = F.pad(scores.softmax(-1), (0, -key.size(2) % CACHE_LINE))
            kept = self.dropout(weights, dropout)[..., : key.size(2)]  # (b, h, t, s)
            return kept @ value

    def feed_forward(self, x: Tensor, inner: nn.Linear, outer: nn.Linear, activation: str, p: float) -> Tensor:
        if activation != "relu":
            return super().feed_forward(x, inner, outer, activation, p)
        weights = (inner.weight, inner.bias, outer.weight, outer.bias)
        return _FeedForward.apply(self, x, *weights, p)  # type: ignore[no-any-return, no-untyped-call]

    def rectified(self, x: Tensor, weight: Tensor, bias: Tensor, p: float) -> Tensor:
        """Return max(0, x Wᵀ + b) without a gradient; drop elements with probability p, but do not scale the others."""
        y = self.linear(x, weight, bias).relu_()
        if p == 0.0:
            return y
        mask = Mask.draw(p)
        return keep(y, mask.drawn(y.numel()), 1.0, out=y)

    def gated(self, a: Tensor, b: Tensor, scale: float, gate: Tensor) -> Tensor:
        """Return scale · a b where `gate` is positive, else 0, without a gradient."""
        y = self.product(a, b, scale)
        return torch.ops.aten.threshold_backward.grad_input(y, gate, 0, grad_input=y)  # type: ignore[no-any-return]

    def dropout(self, x: Tensor, p: float) -> Tensor:
        if p == 0.0:
            return x
        return _AddDropped.apply(self, None, x, p)  # type: ignore[no-any-return, no-untyped-call]

    def add_dropped(self, x: Tensor, y: Tensor, p: float) -> Tensor:
        if p == 0.0:
            return x + y
        return _AddDropped.apply(self, x, y, p)  # type: ignore[no-any-return, no-untyped-call]

    def add_kept(self, x: Tensor | None, y: Tensor, mask: Mask, scale: float) -> Tensor:
        """Return x + scale · y where `mask` keeps y, else x, without a gradient. y is contiguous."""
        kept = mask.drawn(y.numel())
        if x is None:
            return keep(y, kept, scale, out=torch.empty_like(y))
        return keep(y, kept, scale, out=torch.empty_like(y, dtype=x.dtype)).add_(x)


# --- dropout ------------------------------------------------------------------------------------------------


class Mask(NamedTuple):
    """A dropout mask, drawn where it is used: by `drawn`, or by dropout.h, which draws the same.

    An element is kept if the hash of its index, 32 bits with a sign, is at least `bound`.
    """

    seed: int = 0
    bound: int = -(1 << 31)  # keeps everything

    @classmethod
    def draw(cls, p: float) -> Self:
        """Draw a mask that drops with probability p, rounded to 2⁻³²; PyTorch's generator seeds it."""
        if p == 0.0:
            return cls()
        dropped = min(max(round(p * 2**32), 1), 2**32 - 1)  # of 2³² hashes
        seed = int(torch.randint(-(2**63), 2**63 - 1, ()))
        return cls(seed, dropped - 2**31)

    def drawn(self, count: int) -> Tensor:
        """Return the mask's first elements (count,) int8: 1 where kept, else 0.

        An element's index is hashed as by Wellons's lowbias32, with half of the seed before each multiplication.
        """
        kept = torch.empty(-(-count // CACHE_LINE) * CACHE_LINE, dtype=torch.int8)
        found = kernels()
        if found is not None:
            found.functions.nmt_draw(len(kept), *self, kept.data_ptr())
            return kept[:count]
        low = np.uint32(self.seed & 0xFFFFFFFF)
        high = np.uint32((self.seed >> 32) & 0xFFFFFFFF)
        for first in range(0, count, MASKED_AT_ONCE):
            part = kept[first : first + MASKED_AT_ONCE]
            x = np.arange(first, first + len(part)).astype(np.uint32) + low
            x ^= x >> 16
            x *= np.uint32(0x21F0AAAD)
            x ^= (x >> 15) ^ high
            x *= np.uint32(0xD35A2D97)
            x ^= x >> 15
            part.copy_(torch.from_numpy(x.view(np.int32) >= self.bound))
        return kept[:count]


def keep(x: Tensor, kept: Tensor, scale: float, out: Tensor) -> Tensor:
    """Store in `out` x · scale where `kept` is 1, and 0 elsewhere; return it. x and `out`, maybe x, are contiguous."""
    factors = torch.empty(min(MASKED_AT_ONCE, x.numel()), dtype=_at_least_fp32(x.dtype))
    sections = [each.view(-1).split(MASKED_AT_ONCE) for each in (x, kept, out)]
    for part, ones, result in zip(*sections, strict=True):
        factor = factors[: len(ones)].copy_(ones).mul_(scale)
        torch.mul(part, factor, out=result)
    return out


def _at_least_fp32(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


class _AddDropped(torch.autograd.Function):
    """The mask is drawn again for the gradient, so it is not stored."""

    @staticmethod
    def forward(ctx: Any, operations: TrainingOnCPU, x: Tensor | None, y: Tensor, p: float) -> Tensor:
        ctx.operations = operations
        ctx.mask = Mask.draw(p)
        ctx.scale = 1.0 / (1.0 - p)
        ctx.dtype = y.dtype
        return operations.add_kept(x, y.contiguous(), ctx.mask, ctx.scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        y_grad = ctx.operations.add_kept(None, grad.contiguous(), ctx.mask, ctx.scale)
        x_grad = grad if ctx.needs_input_grad[1] else None
        return None, x_grad, y_grad.to(ctx.dtype), None


# --- feed-forward -------------------------------------------------------------------------------------------


class _FeedForward(torch.autograd.Function):
    """Feed-forward s a W₂ᵀ + b₂, where a is the inner layer after ReLU and mask, and s = 1 / (1 − p).

    The gradient passes where a > 0, that is, where a was neither rectified nor dropped, so the mask is not stored. The
    matrix products apply s.
    """

    @staticmethod
    def forward(
        ctx: Any, operations: TrainingOnCPU, x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, p: float
    ) -> Tensor:
        ctx.operations = operations
        ctx.scale = 1.0 / (1.0 - p)
        dtype = factor_dtype(x)
        x, w1, b1, w2, b2 = (each.to(dtype) for each in (x, w1, b1, w2, b2))
        rows = x.reshape(-1, x.size(-1))
        inner = operations.rectified(rows, w1, b1, p)
        ctx.save_for_backward(rows, w1, w2, inner)
        y = operations.product(inner, w2.t(), ctx.scale, b2)
        return y.view(*x.shape[:-1], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, w1, w2, inner = ctx.saved_tensors
        operations = ctx.operations
        rows = grad.reshape(-1, grad.size(-1)).contiguous()
        w2_grad, b2_grad = operations.weight_gradient(rows, inner, ctx.scale)
        inner_grad = operations.gated(rows, w2, ctx.scale, inner)
        x_grad = operations.product(inner_grad, w1).view(*grad.shape[:-1], -1)
        w1_grad, b1_grad = operations.weight_gradient(inner_grad, x)
        return None, x_grad, w1_grad, b1_grad, w2_grad, b2_grad, None
