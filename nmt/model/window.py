"""Self-attention restricted to a neighbourhood (section 4), cut into blocks so that its cost is linear in the length.

A `reach` is how many positions a position sees before and after itself. A position always sees itself, even if it is
padding: otherwise a neighbourhood of nothing but padding would have weights of 0 / 0, which no later mask removes from
a gradient.

Shapes: b batch, h heads, t positions, d a head's width, n blocks of q queries, c keys of a block. Masks are true where
attention is allowed.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

Reach = tuple[int, int]

LEAST = 32  # queries in a block; smaller products take as long


def block_size(reach: Reach) -> tuple[int, int]:
    """q and c: blocks are as long as the neighbourhood, so that about half of what they compute is used."""
    queries = max(LEAST, sum(reach) + 1)
    return queries, queries + sum(reach)


def band(length: int, mask: Tensor | None, reach: Reach, device: torch.device) -> Tensor:
    """(1 or b, 1, t, t): which of the positions that `mask` (b, 1, 1, t) allows each position sees."""
    return _visible(mask, _offsets(length, length, 0, device), reach)


def cut(
    query: Tensor,  # (b, h, t, d_k)
    key: Tensor,  # (b, h, t, d_k)
    value: Tensor,  # (b, h, t, d_v)
    mask: Tensor | None,  # (b, 1, 1, t)
    reach: Reach,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Blocks of queries (b · n, h, q, d_k), the keys and values around each, (b · n, h, c, …), and what each query sees
    of them, (b · n, 1, q, c)."""
    (batch, _, length, _), (queries, keys), (before, after) = query.shape, block_size(reach), reach
    filling = -length % queries

    def around(x: Tensor) -> Tensor:
        windows = F.pad(x, (0, 0, before, filling + after)).unfold(2, keys, queries)  # (b, h, n, d, c), a view
        return windows.permute(0, 2, 1, 4, 3).flatten(0, 1)

    blocks = F.pad(query, (0, 0, 0, filling)).unflatten(2, (-1, queries)).transpose(1, 2).flatten(0, 1)
    real = query.new_ones((1, 1, 1, length), dtype=torch.bool) if mask is None else mask
    real = F.pad(real, (before, filling + after)).unfold(3, keys, queries)  # (1 or b, 1, 1, n, c)
    real = real.permute(0, 3, 1, 2, 4)
    visible = _visible(real, _offsets(queries, keys, before, query.device), reach)
    return blocks, around(key), around(value), visible.expand(batch, -1, -1, -1, -1).flatten(0, 1)


def join(blocks: Tensor, length: int) -> Tensor:
    """(b · n, h, q, d) to (b, h, t, d), without what fills the last block."""
    count = -(-length // blocks.size(2))
    return blocks.unflatten(0, (-1, count)).transpose(1, 2).flatten(2, 3)[:, :, :length]  # type: ignore[no-any-return]


def _offsets(queries: int, keys: int, first: int, device: torch.device) -> Tensor:
    """(q, c): how many positions after each query each key stands; the first query stands at key number `first`."""
    return torch.arange(keys, device=device) - torch.arange(queries, device=device)[:, None] - first


def _visible(real: Tensor | None, offsets: Tensor, reach: Reach) -> Tensor:
    before, after = reach
    near = (offsets >= -before) & (offsets <= after)
    return near if real is None else near & (real | offsets.eq(0))
