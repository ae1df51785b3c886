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

from nmt.compute.cpu_products import CACHE_LINE, ByNmt, pointer, pointers
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
        mask = how.mask
        width = widths[0]
        source = queries if keys_values is None else keys_values
        fits_lines = width == widths[1] <= constant("MOST_WIDTH") and width % CACHE_LINE == 0
        is_of_keys = mask is None or (not isinstance(mask, PackedMask) and mask.shape[1:3] == (1, 1))  # as of padding
        is_too_long = source.size(1) > constant("MOST_KEYS")
        is_fp64 = source.dtype == torch.float64
        if how.record is not None or is_too_long or is_fp64 or not (fits_lines and is_of_keys):
            return super().projected_attention(queries, keys_values, heads, widths, how)
        queries = queries.float()
        if keys_values is not None:
            keys_values = keys_values.float()
        return _ShortAttention.apply(self.functions, queries, keys_values, heads, width, how)  # type: ignore[no-any-return, no-untyped-call]

    def add_kept(self, x: Tensor | None, y: Tensor, mask: Mask, scale: float) -> Tensor:
        if not fits(y) or (x is not None and not fits(x)):
            return super().add_kept(x, y, mask, scale)
        if x is not None:
            x = x.contiguous()
        out = torch.empty_like(y)
        self.functions.nmt_add_dropped(y.numel(), *pointers(x, y), *mask, scale, out.data_ptr(), *threads())
        return out

    def add_norm(self, x: Tensor, y: Tensor, p: float, norm: nn.LayerNorm) -> tuple[Tensor, Tensor]:
        y = y.to(x.dtype)
        if not fits(x, y, norm.weight):
            return super().add_norm(x, y, p, norm)
        functions = self.functions
        return _AddNorm.apply(functions, x, y, p, norm.weight, norm.bias, norm.eps)  # type: ignore[no-any-return, no-untyped-call]

    def exponentials(self, logits: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        in_bf16 = logits.dtype == torch.bfloat16
        if dtype != torch.float32 or not (in_bf16 or logits.dtype == dtype):
            return super().exponentials(logits, dtype)
        maxima, totals = logits.new_empty((2, len(logits), 1), dtype=dtype)
        self.functions.nmt_exponentials(*logits.shape, in_bf16, *pointers(logits, maxima, totals), *threads())
        return logits, maxima, totals


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
        finish = structure("nmt_finish")(gate=gate.data_ptr())
        return self.multiply(a, b, scale, finish=finish)


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, functions: CDLL, x: Tensor, y: Tensor, p: float, weight: Tensor, shift: Tensor, epsilon: float
    ) -> tuple[Tensor, Tensor]:
        x = x.contiguous()
        y = y.contiguous()
        width = x.size(-1)
        rows = x.numel() // width
        ctx.functions = functions
        ctx.size = (rows, width)
        ctx.drops = p > 0.0
        ctx.dropped = (*Mask.draw(p), 1.0 / (1.0 - p))  # seed, bound, and scale of what is kept
        total = torch.empty_like(x)
        norm = torch.empty_like(x)
        moments = x.new_empty((rows, 2))
        weights = pointers(weight, shift)
        results = pointers(total, norm, moments)
        functions.nmt_residual(rows, width, *pointers(x, y), *ctx.dropped, *weights, epsilon, *results, *threads())
        ctx.save_for_backward(total, moments, weight)
        ctx.set_materialize_grads(False)  # None for a result that nothing uses
        return total, norm

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, total_grad: Tensor | None, norm_grad: Tensor | None) -> tuple[Tensor | None, ...]:
        total, moments, weight = ctx.saved_tensors
        rows, width = ctx.size
        norm_grad = torch.zeros_like(total) if norm_grad is None else norm_grad.contiguous()
        if total_grad is not None:
            total_grad = total_grad.contiguous()
        x_grad = torch.empty_like(total)
        y_grad = torch.empty_like(total) if ctx.drops else None
        blocks = -(-rows // constant("ROWS_SUMMED"))
        sums = total.new_empty((blocks, 2, width))
        given = pointers(total, moments, weight, total_grad, norm_grad)
        results = pointers(x_grad, y_grad, sums)
        ctx.functions.nmt_residual_gradients(rows, width, *given, *ctx.dropped, *results, *threads())
        if y_grad is None:  # nothing was dropped
            y_grad = x_grad
        weight_grad, shift_grad = sums.sum(0)
        return None, x_grad, y_grad, None, weight_grad, shift_grad, None


# --- attention ------------------------------------------------------------------------------------------------


class _ShortAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, functions: CDLL, queries: Tensor, keys_values: Tensor | None, heads: int, width: int, how: Attending
    ) -> Tensor:
        mask, causal, p, _ = how
        assert not isinstance(mask, PackedMask)
        queries = queries.contiguous()
        source = queries if keys_values is None else keys_values.contiguous()
        b, t, _ = queries.shape
        s = source.size(1)
        visible = None if mask is None else mask.expand(b, 1, 1, s).contiguous()
        lines = -(-s // CACHE_LINE)
        weights = queries.new_empty((b, heads, t, lines * CACHE_LINE))
        out = queries.new_empty((b, t, heads * width))
        ctx.functions = functions
        ctx.projection = out.element_size() * heads * width  # bytes of a token's queries, keys or values
        ctx.is_self = keys_values is None
        key = source.data_ptr()
        if ctx.is_self:  # queries come first
            key += ctx.projection
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
            key=key,
            value=key + ctx.projection,
            visible=pointer(visible),
            causal=causal,
            seed=dropped.seed,
            bound=dropped.bound,
            kept_scale=1.0 / (1.0 - p),
            scale=width**-0.5,
            weights=weights.data_ptr(),
        )
        ctx.save_for_backward(queries, source, visible, weights)  # which `sizes` points to
        functions.nmt_attend(byref(ctx.sizes), out.data_ptr(), *threads())
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        queries, source, *_ = ctx.saved_tensors
        grad = grad.contiguous()
        query_grad = torch.empty_like(queries)
        source_grad = None
        if ctx.is_self:
            key = query_grad.data_ptr() + ctx.projection
        else:
            source_grad = torch.empty_like(source)
            key = source_grad.data_ptr()
        results = (query_grad.data_ptr(), key, key + ctx.projection)
        ctx.functions.nmt_attend_gradients(byref(ctx.sizes), grad.data_ptr(), *results, *threads())
        return None, query_grad, source_grad, None, None, None
