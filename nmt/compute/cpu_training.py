"""Training on a CPU, with fewer passes over memory than PyTorch's operations; not for compiled models.

On a CPU, memory traffic dominates element-wise operations. These draw dropout masks ten times as fast as PyTorch, work
in place, and recompute values instead of storing them. Under autocast, the feed-forward layer is computed in bf16,
attention and sums in fp32. What is not here, such as the products of linear layers, is as in `model.operations`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from nmt.compute.cpu_products import ByOneDNN
from nmt.model.operations import Operations, factor_dtype, head_views

MASKED_AT_ONCE = 1 << 18  # elements; they fit in a core's cache
SHORT = 256  # number of keys up to which attention weights take no more memory than a feed-forward layer's inner states


class TrainingOnCPU(Operations):
    """Operations with gradients of their own."""

    def split_heads(self, x: Tensor, heads: int, widths: Sequence[int]) -> Sequence[Tensor]:
        """Return contiguous heads, at least fp32."""
        return _SplitHeads.apply(x, heads, *widths)  # type: ignore[no-any-return, no-untyped-call]

    def dense_attention(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, dropout: float
    ) -> Tensor:
        if dropout == 0.0 and key.size(2) > SHORT:
            with torch.autocast("cpu", enabled=False):
                return super().dense_attention(query, key, value, mask, causal, dropout)
        bias = None
        if causal:
            bias = query.new_full((query.size(2), key.size(2)), -math.inf).triu_(1)
        elif mask is not None:
            bias = query.new_zeros(mask.shape).masked_fill_(~mask, -math.inf)
        with torch.autocast("cpu", enabled=False):
            return _Attention.apply(query, key, value, bias, dropout)  # type: ignore[no-any-return, no-untyped-call]

    def feed_forward(self, x: Tensor, inner: nn.Linear, outer: nn.Linear, activation: str, p: float) -> Tensor:
        if activation != "relu":
            return super().feed_forward(x, inner, outer, activation, p)
        weights = inner.weight, inner.bias, outer.weight, outer.bias
        return _FeedForward.apply(self, x, *weights, p)  # type: ignore[no-any-return, no-untyped-call]

    def dropout(self, x: Tensor, p: float) -> Tensor:
        return x if p == 0.0 else _AddDropped.apply(None, x, p)  # type: ignore[no-untyped-call]

    def add_dropped(self, x: Tensor, y: Tensor, p: float) -> Tensor:
        return x + y if p == 0.0 else _AddDropped.apply(x, y, p)  # type: ignore[no-untyped-call]


class TrainingByOneDNN(ByOneDNN, TrainingOnCPU):
    """`TrainingOnCPU` with products by oneDNN, in fp32."""


# --- dropout ------------------------------------------------------------------------------------------------


def draw_kept(count: int, p: float) -> Tensor:
    """Draw a mask (count,) int8: 0 with probability p, rounded to 1/65536, else 1.

    PyTorch's generator seeds a faster one. Each element takes 16 random bits. Numbers below a bound become 0, others 1,
    by clamping: PyTorch's comparisons are not vectorised.
    """
    bound = min(max(round(p * 65536), 1), 65535) - 32768
    random = np.random.Generator(np.random.SFC64(int(torch.randint(2**63 - 1, ()))))
    kept = torch.empty(count, dtype=torch.int8)
    for part in kept.split(MASKED_AT_ONCE):
        draws = random.integers(0, 2**64 - 1, (len(part) + 3) // 4, dtype=np.uint64, endpoint=True)
        bits = torch.from_numpy(draws.view(np.int16))[: len(part)]
        part.copy_(bits.clamp_(bound - 1, bound).sub_(bound - 1))
    return kept


def keep(x: Tensor, kept: Tensor, scale: float, out: Tensor | None = None) -> Tensor:
    """Return x · scale where `kept` is 1, and 0 elsewhere. x and `out`, which may be x, are contiguous."""
    out = torch.empty_like(x) if out is None else out
    factors = torch.empty(min(MASKED_AT_ONCE, x.numel()), dtype=torch.promote_types(x.dtype, torch.float32))
    for part, ones, result in zip(*(each.view(-1).split(MASKED_AT_ONCE) for each in (x, kept, out)), strict=True):
        torch.mul(part, factors[: len(ones)].copy_(ones).mul_(scale), out=result)
    return out


class _AddDropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor | None, y: Tensor, p: float) -> Tensor:
        y, ctx.scale, ctx.dtype = y.contiguous(), 1.0 / (1.0 - p), y.dtype
        kept = draw_kept(y.numel(), p)
        ctx.save_for_backward(kept)
        if x is None:
            return keep(y, kept, ctx.scale)
        return keep(y, kept, ctx.scale, out=torch.empty_like(y, dtype=x.dtype)).add_(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, None]:
        (kept,) = ctx.saved_tensors
        y_grad = keep(grad.contiguous(), kept, ctx.scale, out=grad.new_empty(grad.shape, dtype=ctx.dtype))
        return grad if ctx.needs_input_grad[0] else None, y_grad, None


# --- feed-forward -------------------------------------------------------------------------------------------


class _FeedForward(torch.autograd.Function):
    """Feed-forward s a W₂ᵀ + b₂, where a is the inner layer after ReLU and mask, and s = 1 / (1 − p).

    The gradient passes where a > 0, that is, where a was neither rectified nor dropped, so the mask is not stored. The
    matrix products apply s.
    """

    @staticmethod
    def forward(
        ctx: Any, operations: Operations, x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, p: float
    ) -> Tensor:
        ctx.operations, ctx.scale, dtype = operations, 1.0 / (1.0 - p), factor_dtype(x)
        x, w1, b1, w2, b2 = (each.to(dtype) for each in (x, w1, b1, w2, b2))
        rows = x.reshape(-1, x.size(-1))
        inner = operations.linear(rows, w1, b1).relu_()
        if p > 0.0:
            keep(inner, draw_kept(inner.numel(), p), 1.0, out=inner)
        ctx.save_for_backward(rows, w1, w2, inner)
        return operations.product(inner, w2.t(), ctx.scale, b2).view(*x.shape[:-1], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (x, w1, w2, inner), product = ctx.saved_tensors, ctx.operations.product
        rows = grad.reshape(-1, grad.size(-1))
        w2_grad = product(rows.t(), inner, ctx.scale)
        inner_grad = product(rows, w2, ctx.scale)
        torch.ops.aten.threshold_backward.grad_input(inner_grad, inner, 0, grad_input=inner_grad)
        x_grad = product(inner_grad, w1).view(*grad.shape[:-1], -1)
        return None, x_grad, product(inner_grad.t(), x), inner_grad.sum(0), w2_grad, rows.sum(0), None


# --- attention ----------------------------------------------------------------------------------------------


class _SplitHeads(torch.autograd.Function):
    """Autograd for `split_heads`: copies each part once, and its gradient once into the gradient of x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, heads: int, *widths: int) -> tuple[Tensor, ...]:
        ctx.shape, ctx.dtype, ctx.heads, ctx.widths = x.shape, x.dtype, heads, widths
        wide = torch.promote_types(x.dtype, torch.float32)
        return tuple(x.new_empty(part.shape, dtype=wide).copy_(part) for part in head_views(x, heads, widths))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        packed = grads[0].new_empty(ctx.shape, dtype=ctx.dtype)
        for part, grad in zip(head_views(packed, ctx.heads, ctx.widths), grads, strict=True):
            part.copy_(grad)
        return packed, None, *(None for _ in ctx.widths)


class _Attention(torch.autograd.Function):
    """Attention O = D V, where W = softmax(Q Kᵀ / √d_k + bias) and D = dropout(W).

    If G is the gradient of O, E = D ∘ G Vᵀ, and e the sums of E over the keys, the scores' gradient is E − W ∘ e. The
    dropout mask is not stored.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, p: float) -> Tensor:
        b, h, t, d_k = query.shape
        ctx.scale = d_k**-0.5
        q, k, v = (part.reshape(b * h, *part.shape[2:]) for part in (query, key, value))
        if bias is None:
            scores = _products(q, k.transpose(1, 2), ctx.scale)
        else:
            bias = bias.expand(b, h, t, k.size(1)).reshape(b * h, t, k.size(1))
            scores = torch.baddbmm(bias, q, k.transpose(1, 2), alpha=ctx.scale)
        weights = left = scores.softmax(-1)
        if p > 0.0:
            left = keep(weights, draw_kept(weights.numel(), p), 1.0 / (1.0 - p))
        ctx.save_for_backward(q, k, v, weights, left)
        return torch.bmm(left, v).view(b, h, t, -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        q, k, v, weights, left = ctx.saved_tensors
        g = grad.reshape(-1, *grad.shape[2:])
        scores_grad = torch.bmm(g, v.transpose(1, 2)).mul_(left)
        scores_grad.sub_(weights * scores_grad.sum(-1, keepdim=True))
        q_grad = _products(scores_grad, k, ctx.scale)
        k_grad = _products(scores_grad.transpose(1, 2), q, ctx.scale)
        v_grad = torch.bmm(left.transpose(1, 2), g)
        heads = grad.shape[:2]
        return q_grad.unflatten(0, heads), k_grad.unflatten(0, heads), v_grad.unflatten(0, heads), None, None


def _products(a: Tensor, b: Tensor, scale: float) -> Tensor:
    """Return scale · a b for batches of matrices."""
    return torch.baddbmm(a.new_empty(()), a, b, beta=0, alpha=scale)
