"""Training on a CPU by C kernels: attention, residual sums and their norms, activations and the softmax of the loss.

Dropout masks are those of `cpu_training`, whose operations compute what the kernels do not: other dtypes, and widths
that are no multiple of a cache line.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import CDLL, byref
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from nmt.compute.cpu_products import CACHE_LINE, ByNmt, pointer
from nmt.compute.cpu_training import Mask, TrainingOnCPU
from nmt.compute.header import constant, structure
from nmt.compute.native import threads
from nmt.model.operations import Attending, PackedMask


def fits(*parts: Tensor) -> bool:
    """Return whether the kernels take tensors: fp32 of whole cache lines."""
    return all(part.dtype == torch.float32 and part.size(-1) % CACHE_LINE == 0 for part in parts)


class TrainingInC(TrainingOnCPU):
    """Operations whose attention, dropout, residual sums, norms and exponentials are by C kernels."""

    def __init__(self, functions: CDLL) -> None:
        self.functions = functions

    def projected_attention(
        self, queries: Tensor, keys_values: Tensor | None, heads: int, widths: Sequence[int], how: Attending
    ) -> Tensor:
        (mask, _, _, record), width = how, widths[0]
        source = queries if keys_values is None else keys_values
        is_wide = width == widths[1] <= constant("MOST_WIDTH") and width % CACHE_LINE == 0
        is_of_keys = mask is None or (not isinstance(mask, PackedMask) and mask.shape[1:3] == (1, 1))
        special = record is not None or source.size(1) > constant("MOST_KEYS") or source.dtype == torch.float64
        if special or not (is_wide and is_of_keys):
            return super().projected_attention(queries, keys_values, heads, widths, how)
        projected = queries.float(), None if keys_values is None else keys_values.float()
        return _ShortAttention.apply(self.functions, *projected, heads, width, how)  # type: ignore[no-any-return, no-untyped-call]

    def add_kept(self, x: Tensor | None, y: Tensor, mask: Mask, scale: float) -> Tensor:
        if not fits(y, *(() if x is None else (x,))):
            return super().add_kept(x, y, mask, scale)
        x, out = None if x is None else x.contiguous(), torch.empty_like(y)
        self.functions.nmt_add_dropped(*(y.numel(), pointer(x), y.data_ptr(), *mask, scale, out.data_ptr(), *threads()))
        return out

    def add_norm(self, x: Tensor, y: Tensor, p: float, norm: nn.LayerNorm) -> tuple[Tensor, Tensor]:
        y = y.to(x.dtype)
        if not fits(x, y, norm.weight):
            return super().add_norm(x, y, p, norm)
        given = self.functions, x, y, p, norm.weight, norm.bias, norm.eps
        return _AddNorm.apply(*given)  # type: ignore[no-any-return, no-untyped-call]

    def exponentials_(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        if logits.dtype != torch.float32:
            return super().exponentials_(logits)
        maxima, totals = logits.new_empty((2, len(logits), 1))
        self.functions.nmt_exponentials(
            *(*logits.shape, logits.data_ptr(), maxima.data_ptr(), totals.data_ptr(), *threads())
        )
        return maxima, totals


class TrainingByNmt(ByNmt, TrainingInC):
    """`TrainingInC` with products by nmt_multiply, in fp32."""

    def rectified(self, x: Tensor, weight: Tensor, bias: Tensor, p: float) -> Tensor:
        if x.dtype != torch.float32:
            return super().rectified(x, weight, bias, p)
        mask = Mask.draw(p)
        finish = structure("nmt_finish")(seed=mask.seed, bound=mask.bound)
        return self.multiply(x, weight.t(), bias=bias, finish=finish)

    def gated(self, a: Tensor, b: Tensor, scale: float, gate: Tensor) -> Tensor:
        if a.dtype != torch.float32:
            return super().gated(a, b, scale, gate)
        return self.multiply(a, b, scale, finish=structure("nmt_finish")(gate=gate.data_ptr()))


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, functions: CDLL, x: Tensor, y: Tensor, p: float, weight: Tensor, shift: Tensor, epsilon: float
    ) -> tuple[Tensor, Tensor]:
        x, y, width = x.contiguous(), y.contiguous(), x.size(-1)
        ctx.functions, ctx.mask = functions, (*Mask.draw(p), 1.0 / (1.0 - p))
        ctx.drops, ctx.size = p > 0.0, (x.numel() // width, width)
        total, norm, moments = torch.empty_like(x), torch.empty_like(x), x.new_empty((ctx.size[0], 2))
        functions.nmt_residual(
            *(*ctx.size, x.data_ptr(), y.data_ptr(), *ctx.mask, weight.data_ptr(), shift.data_ptr(), epsilon),
            *(total.data_ptr(), norm.data_ptr(), moments.data_ptr(), *threads()),
        )
        ctx.save_for_backward(total, moments, weight)
        ctx.set_materialize_grads(False)
        return total, norm

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, total_grad: Tensor | None, norm_grad: Tensor | None) -> tuple[Tensor | None, ...]:
        (total, moments, weight), (rows, width) = ctx.saved_tensors, ctx.size
        norm_grad = torch.zeros_like(total) if norm_grad is None else norm_grad.contiguous()
        total_grad = None if total_grad is None else total_grad.contiguous()
        x_grad, y_grad = torch.empty_like(total), torch.empty_like(total) if ctx.drops else None
        sums = total.new_empty((-(-rows // constant("ROWS_SUMMED")), 2, width))
        ctx.functions.nmt_residual_gradients(
            *(rows, width, total.data_ptr(), moments.data_ptr(), weight.data_ptr(), pointer(total_grad)),
            *(norm_grad.data_ptr(), *ctx.mask, x_grad.data_ptr(), pointer(y_grad), sums.data_ptr(), *threads()),
        )
        return None, x_grad, x_grad if y_grad is None else y_grad, None, *sums.sum(0), None


# --- attention ------------------------------------------------------------------------------------------------


class _ShortAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, functions: CDLL, queries: Tensor, keys_values: Tensor | None, heads: int, width: int, how: Attending
    ) -> Tensor:
        mask, causal, p, *_ = how
        assert not isinstance(mask, PackedMask)
        queries = queries.contiguous()
        keys_values = None if keys_values is None else keys_values.contiguous()
        (b, t, _), source = queries.shape, queries if keys_values is None else keys_values
        s, stride = source.size(1), heads * width
        visible = None if mask is None else mask.expand(b, 1, 1, s).contiguous()
        weights = queries.new_empty((b, heads, t, -(-s // CACHE_LINE) * CACHE_LINE))
        ctx.functions, ctx.heads, ctx.packed = functions, stride, keys_values is None
        first = source.data_ptr() + (4 * stride if ctx.packed else 0)
        dropped = Mask.draw(p)
        ctx.sizes = structure("nmt_short_attention")(
            batch=b,
            heads=heads,
            queries=t,
            keys=s,
            width=width,
            query_row=queries.size(-1),
            key_row=source.size(-1),
            query=queries.data_ptr(),
            key=first,
            value=first + 4 * stride,
            visible=pointer(visible),
            causal=causal,
            seed=dropped.seed,
            bound=dropped.bound,
            kept_scale=1.0 / (1.0 - p),
            scale=width**-0.5,
            weights=weights.data_ptr(),
        )
        ctx.save_for_backward(queries, keys_values, visible, weights)  # which `sizes` points to
        out = queries.new_empty((b, t, stride))
        functions.nmt_attend(byref(ctx.sizes), out.data_ptr(), *threads())
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        queries, keys_values, *_ = ctx.saved_tensors
        grad, offset = grad.contiguous(), 4 * ctx.heads
        query_grad = torch.empty_like(queries)
        source_grad = query_grad if ctx.packed else torch.empty_like(keys_values)
        key = source_grad.data_ptr() + (offset if ctx.packed else 0)
        ctx.functions.nmt_attend_gradients(
            *(byref(ctx.sizes), grad.data_ptr(), query_grad.data_ptr(), key, key + offset, *threads())
        )
        return None, query_grad, None if ctx.packed else source_grad, None, None, None
