"""Training, scoring and layers on a GPU: products in half precision, packed attention by FlashAttention."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.model.batch import PADDING
from nmt.model.operations import Attending, Operations, PackedMask, factor_dtype
from nmt.recipe import Model
from nmt.system import torch_internals

LINEAR_RELU = torch_internals.find("torch:ops.aten._addmm_activation")
OLDEST = (8, 0)  # compute capability from which on Triton and its attention serve a GPU well: Ampere
HOPPER = (9, 0)
NARROW = 64  # tokens of a tile
WIDE = 128
WIDEST = 128 * NARROW  # largest product of a head's width and the tokens of a tile


class GPU(Operations):
    """Operations that never make the host wait for the GPU."""

    chunk_logits = 1 << 27  # 512 MB keep a GPU busy

    def __init__(self, has_kernels: bool = False) -> None:
        """With `has_kernels`, use those in Triton, which must serve the device well."""
        self._has_kernels = has_kernels
        self._fuses_relu = torch_internals.find("torch:ops.aten._addmm_activation") is not None

    def projected_attention(
        self, queries: Tensor, keys_values: Tensor | None, heads: int, widths: Sequence[int], how: Attending
    ) -> Tensor:
        """Compute groups of packed sentences each in a tile of its own, in bf16 or fp16, without dropout."""
        mask = how.mask
        if not isinstance(mask, PackedMask) or mask.queries.groups is None or mask.keys.groups is None:
            return super().projected_attention(queries, keys_values, heads, widths, how)
        from nmt.compute.group_attention import group_attention

        assert how.dropout == 0.0, "the kernel drops nothing"
        groups = mask.queries.groups
        tile = WIDE if groups.tile > NARROW else NARROW  # a constant of the kernel, and so of a compiled graph
        after = 0 if how.causal else tile
        memory = None if keys_values is None else keys_values.squeeze(0)
        lists = [groups.bounds, mask.keys.groups.bounds, groups.segments, mask.keys.bounds]
        mixed: Tensor = group_attention(queries.squeeze(0), memory, lists, [heads, tile, after])
        return mixed.unsqueeze(0)

    def packed_attention(self, query: Tensor, key: Tensor, value: Tensor, packed: PackedMask, how: Attending) -> Tensor:
        """Compute it in bf16 or fp16, without dropout."""
        from torch.nn.attention.varlen import varlen_attn  # imports torch.compile, which takes seconds

        assert how.dropout == 0.0, "the kernel drops nothing"
        query, key, value = (x.squeeze(0).transpose(0, 1) for x in (query, key, value))  # (t or s, h, d)
        queries, keys = packed
        window = (-1, 0 if how.causal else -1)  # -1: no limit
        bounds = (queries.bounds, keys.bounds)
        mixed = varlen_attn(query, key, value, *bounds, queries.longest, keys.longest, window_size=window)
        assert isinstance(mixed, Tensor)  # for the type checker: a tuple is returned only on request
        return mixed.transpose(0, 1).unsqueeze(0)

    def feed_forward(self, x: Tensor, inner: nn.Linear, outer: nn.Linear, activation: str, p: float) -> Tensor:
        """Compute ReLU within the product before it, under autocast."""
        dtype = factor_dtype(x)
        if not self._fuses_relu or activation != "relu" or dtype == x.dtype:
            return super().feed_forward(x, inner, outer, activation, p)
        factors = (each.to(dtype) for each in (x.flatten(0, -2), inner.weight, inner.bias))
        rows: Tensor = _LinearReLU.apply(*factors, self._has_kernels)  # type: ignore[no-untyped-call]
        hidden = rows.view(*x.shape[:-1], -1)
        return outer(self.dropout(hidden, p))  # type: ignore[no-any-return]

    def encoded(self, states: Tensor) -> Tensor:
        """Round them once, under autocast, to what each layer of the decoder would round them to."""
        return states.to(factor_dtype(states))

    def padding_mask(self, ids: Tensor) -> Tensor:
        return (ids != PADDING)[:, None, None, :]

    def add_product(self, total: Tensor, a: Tensor, b: Tensor) -> None:
        if total.dtype == a.dtype or total.dtype != torch.float32:
            super().add_product(total, a, b)
        else:  # neither rounds nor stores the product
            torch.addmm(total, a, b, out_dtype=total.dtype, out=total)


def has_triton(device: torch.device) -> bool:
    """Return whether kernels in Triton serve a device well."""
    if device.type != "cuda" or find_spec("triton") is None:
        return False
    return torch.cuda.get_device_capability(device) >= OLDEST


def attention_tiles(model: Model, device: torch.device) -> list[int]:
    """Return the sizes of tiles for attention of a model's short packed sentences, smallest first.

    There are none without Triton or if heads are wide. In a wide tile, GPUs older than Hopper run out of registers.
    """
    if not has_triton(device):
        return []
    tiles = [NARROW]
    if torch.cuda.get_device_capability(device) >= HOPPER:
        tiles.append(WIDE)
    return [tile for tile in tiles if model.key_width * tile <= WIDEST]


class _LinearReLU(torch.autograd.Function):
    """ReLU(x Wᵀ + b) of x (n, in), in one kernel."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, has_kernels: bool) -> Tensor:
        ctx.has_kernels = has_kernels
        y: Tensor = LINEAR_RELU(bias, x, weight.t())
        ctx.save_for_backward(x, weight, y)  # y is kept for the next product anyway; plain ReLU also keeps a mask
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, y = ctx.saved_tensors
        if ctx.has_kernels:
            from nmt.compute.relu_gradient import relu_gradient

            grad, sums = relu_gradient(grad, y)
        else:
            grad = grad.where(y > 0.0, 0.0)
            sums = grad
        bias_grad = sums.sum(0).to(grad.dtype)
        return grad @ weight, grad.t() @ x, bias_grad, None


class HalfPrecision(nn.Module):
    """A bf16 or fp16 linear layer: x, W, b and the result are rounded, accumulation is fp32, as in autocast.

    Queries and a cache's keys and values therefore have this dtype; the residual stream stays fp32.
    """

    matrix: Tensor
    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("matrix", weight.detach().to(dtype))
        self.register_buffer("bias", None if bias is None else bias.detach().to(dtype))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x.to(self.matrix.dtype), self.matrix, self.bias)


class Logits(nn.Module):
    """The output projection: x and W are rounded to `dtype`; b and the logits are at least fp32."""

    matrix: Tensor
    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("matrix", weight.detach().to(dtype).t())
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(self.matrix.dtype)
        if x.dtype.itemsize > 2:
            y = x @ self.matrix
        else:
            rows = torch.mm(x.flatten(0, -2), self.matrix, out_dtype=torch.float32)
            y = rows.view(*x.shape[:-1], -1)
        if self.bias is not None:
            y.add_(self.bias)
        return y
