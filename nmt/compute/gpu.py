"""Training and search on a GPU: products in half precision, packed attention by FlashAttention, results read late."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.model.batch import PADDING
from nmt.model.cache import Ancestry
from nmt.model.operations import Operations, PackedMask, Reach

ALIGNED = 8  # extents are multiples of this; attention would copy a bias with unaligned rows


class GPU(Operations):
    """Operations that never make the host wait for the GPU."""

    chunk_logits = 1 << 27  # 512 MB keep a GPU busy

    def packed_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        packed: PackedMask,
        causal: bool,
        dropout: float,
        reach: Reach | None,
    ) -> Tensor:
        """Compute it in bf16 or fp16, without dropout."""
        from torch.nn.attention.varlen import varlen_attn  # imports torch.compile, which takes seconds

        assert dropout == 0.0, "the kernel drops nothing"
        query, key, value = (x.squeeze(0).transpose(0, 1) for x in (query, key, value))  # (t or s, h, d)
        (queries, _, most_queries), (keys, _, most_keys) = packed
        window = reach or (-1, 0 if causal else -1)  # -1: no limit
        mixed = varlen_attn(query, key, value, queries, keys, most_queries, most_keys, window_size=window)
        assert isinstance(mixed, Tensor)  # for the type checker: a tuple is returned only on request
        return mixed.transpose(0, 1).unsqueeze(0)

    def padding_mask(self, ids: Tensor) -> Tensor:
        return (ids != PADDING)[:, None, None, :]

    def add_product(self, total: Tensor, a: Tensor, b: Tensor) -> None:
        if total.dtype == a.dtype or total.dtype != torch.float32:
            super().add_product(total, a, b)
        else:  # neither rounds nor stores the product
            torch.addmm(total, a, b, out_dtype=total.dtype, out=total)


class LateAncestry(Ancestry):
    """An ancestry whose `extent` is a bound, so that no step waits for its exact value.

    The host reads `seen` one step later, while the device computes, and passes it to `limit`. On a CPU, this would gain
    nothing and waste a step on each sentence, which leaves the batch one step later.
    """

    late = True
    _bound = 0  # `extent` before alignment

    def limit(self, extent: int) -> None:
        self._bound = min(self._bound, extent)
        self.extent = -(-self._bound // ALIGNED) * ALIGNED

    def _measure(self) -> None:
        """Keep the bound."""

    def _set_extent(self) -> None:
        self._bound += self.beam
        self.limit(self._bound)


class HalfPrecision(nn.Module):
    """A bf16 or fp16 linear layer: x, W, b and the result are rounded, accumulation is fp32, as in autocast.

    Queries and a cache's keys and values therefore have this dtype; the residual stream stays fp32.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.matrix = weight.detach().to(dtype)
        self.bias = None if bias is None else bias.detach().to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x.to(self.matrix.dtype), self.matrix, self.bias)


class Logits(nn.Module):
    """The output projection: x and W are rounded to `dtype`; b and the logits are at least fp32."""

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
