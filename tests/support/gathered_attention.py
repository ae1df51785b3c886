"""Attention in a step of a search on a GPU, by PyTorch: from copies of the keys and values that lie in pages."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from nmt.compute.gpu_search import slots_of
from nmt.model.cache import hidden
from nmt.model.operations import join_heads, split_heads


def gathered_attention(
    query: Tensor,
    pool: Tensor,
    table: Tensor,
    own: tuple[Tensor, ...] | None,
    heads: int,
    widths: Sequence[int],
    page: int,
) -> Tensor:
    """Compute what `step_attention` does."""
    size = page * (table.size(1) - 1) if own is None else own[1].size(1)
    numbers, first = torch.arange(size, device=query.device).expand(len(table), -1), table.new_zeros(())
    visible = (numbers < table[:, :1])[:, :, None]
    if own is not None:
        newest, visible, _ = own
        first = -(-table[:, :1] // page) * page
        query, new = query.split([heads * widths[0], pool.size(1)], dim=-1)
        pool[slots_of(table, first + newest)] = new
    # What no hypothesis sees may hold infinity, and 0 times that is not 0.
    states = pool[slots_of(table, first + numbers)].masked_fill_(~visible.any(2, keepdim=True), 0.0)
    visible = visible.transpose(1, 2)[:, None]
    bias = query.new_zeros(visible.shape).masked_fill_(~visible, hidden(query.dtype))
    keys, values = split_heads(states, heads, widths)
    (queries,) = split_heads(query, heads, widths[:1])
    return join_heads(F.scaled_dot_product_attention(queries, keys, values, bias))
