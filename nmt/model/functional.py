"""The operations of the layers. Each chooses its kernel: one of `kernels` where those apply, on a CPU, else PyTorch's.

Shapes: b batch, h heads, t queries, s keys, d_k and d_v the widths of one head. Masks are true where attention is
allowed. Packed sequences lie end to end in a batch of 1, and instead of a mask `Packed` says where.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.batch import Sequences
from nmt.model import kernels, window

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": torch.relu_, "silu": F.silu, "gelu": F.gelu}
"""They may overwrite their argument."""


class Packed(NamedTuple):
    """What stands in the place of a mask for packed sequences: each sequence of queries sees the keys of its number."""

    queries: Sequences
    keys: Sequences


def attention(
    query: Tensor,  # (b, h, t, d_k)
    key: Tensor,  # (b, h, s, d_k)
    value: Tensor,  # (b, h, s, d_v)
    mask: Tensor | Packed | None = None,  # broadcastable to (b, h, t, s); in a search a bias to add, which is a float
    causal: bool = False,
    dropout: float = 0.0,
    record: list[Tensor] | None = None,
) -> Tensor:
    """softmax(Q Kᵀ / √d_k) V, equation 1; (b, h, t, d_v). `causal` hides later keys and excludes a mask.

    If a `record` is given, the weights (b, h, t, s) are appended to it, and nothing is dropped.
    """
    if isinstance(mask, Packed):
        return _packed_attention(query, key, value, mask, causal, dropout=dropout)
    if record is not None:
        visible = look_ahead_mask(query.size(2), query.device) if causal else mask
        return _recorded_attention(query, key, value, visible, record)
    if kernels.apply_to(query) and (dropout > 0.0 or key.size(2) <= kernels.SHORT):
        return kernels.attention(query, key, value, mask, causal, dropout)
    if mask is not None and mask.is_floating_point() and kernels.on_cpu(query):
        return kernels.attention_of_hypotheses(query, key, value, mask)
    return F.scaled_dot_product_attention(query, key, value, mask, dropout, causal)


def _recorded_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, record: list[Tensor]) -> Tensor:
    """`attention` by the plain formula, because the kernels do not return the weights."""
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))  # (b, h, t, s)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    record.append(scores.softmax(-1))
    return record[-1] @ value


def restricted_attention(
    query: Tensor,  # (b, h, t, d_k)
    key: Tensor,  # (b, h, t, d_k)
    value: Tensor,  # (b, h, t, d_v)
    reach: window.Reach,
    mask: Tensor | Packed | None = None,  # (b, 1, 1, t)
    dropout: float = 0.0,
    record: list[Tensor] | None = None,
) -> Tensor:
    """`attention` of a sequence to itself in which each position sees only its `reach`, section 4; (b, h, t, d_v).

    The work is O(r · t · d), except that a `record` holds all t² weights.
    """
    if isinstance(mask, Packed):
        return _packed_attention(query, key, value, mask, reach=reach, dropout=dropout)
    length = query.size(2)
    if record is not None or length <= window.block_size(reach)[1]:  # blocks would save nothing
        visible = window.band(length, mask, reach, query.device)
        return attention(query, key, value, visible, False, dropout, record)
    return window.join(attention(*window.cut(query, key, value, mask, reach), dropout=dropout), length)


def _packed_attention(
    query: Tensor,  # (1, h, t, d_k)
    key: Tensor,  # (1, h, s, d_k)
    value: Tensor,  # (1, h, s, d_v)
    packed: Packed,
    causal: bool = False,
    reach: window.Reach | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """`attention`, or with a `reach` `restricted_attention`, within each sequence; (1, h, t, d_v)."""
    attend = _attention_by_kernel if query.is_cuda else _attention_by_sequence
    return attend(query, key, value, packed, causal, reach, dropout)


def _attention_by_kernel(
    query: Tensor, key: Tensor, value: Tensor, packed: Packed, causal: bool, reach: window.Reach | None, dropout: float
) -> Tensor:
    """As `_packed_attention`, in bf16 or fp16 on a GPU, without dropout."""
    from torch.nn.attention.varlen import varlen_attn  # imports torch.compile, which takes seconds

    assert dropout == 0.0, "the kernel drops nothing"
    query, key, value = (x.squeeze(0).transpose(0, 1) for x in (query, key, value))  # (t or s, h, d)
    (queries, _, most_queries), (keys, _, most_keys) = packed
    seen = reach or (-1, 0 if causal else -1)  # positions before and after; -1 is all
    mixed = varlen_attn(query, key, value, queries, keys, most_queries, most_keys, window_size=seen)
    assert isinstance(mixed, Tensor)  # it returns more if it is asked to
    return mixed.transpose(0, 1).unsqueeze(0)


def _attention_by_sequence(
    query: Tensor, key: Tensor, value: Tensor, packed: Packed, causal: bool, reach: window.Reach | None, dropout: float
) -> Tensor:
    """As `_packed_attention`, one sequence after another: for CPUs, in any precision."""
    queries, keys = (sequences.bounds.diff().tolist() for sequences in packed)
    mixed = [
        attention(*rows, None, causal, dropout) if reach is None else restricted_attention(*rows, reach, None, dropout)
        for rows in zip(query.split(queries, 2), key.split(keys, 2), value.split(keys, 2), strict=True)
        if rows[0].size(2)
    ]
    return torch.cat(mixed, 2)


def look_ahead_mask(length: int, device: torch.device | None = None) -> Tensor:
    """(length, length): position i may look at j ≤ i."""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


def split_heads(x: Tensor, heads: int, widths: Sequence[int]) -> Sequence[Tensor]:
    """(b, t, h · Σ d) to a (b, h, t, d) for each d of `widths`."""
    split = kernels.split_heads if kernels.apply_to(x) else kernels.head_views
    return split(x, heads, widths)


def join_heads(x: Tensor) -> Tensor:
    """(b, h, t, d) to (b, t, h · d)."""
    return x.transpose(1, 2).flatten(2)


def feed_forward(x: Tensor, inner: nn.Linear, outer: nn.Linear, activation: str, p: float) -> Tensor:
    """Two Linear layers, between them an activation and dropout with probability `p`; x and the result (…, d_model)."""
    if activation == "relu" and kernels.apply_to(x):
        return kernels.feed_forward(x, inner.weight, inner.bias, outer.weight, outer.bias, p)
    return outer(dropout(ACTIVATIONS[activation](inner(x)), p))  # type: ignore[no-any-return]


def dropout(x: Tensor, p: float) -> Tensor:
    """x with elements set to 0 with probability `p` and the others divided by 1 − p."""
    if p == 0.0:
        return x
    return kernels.dropout(x, p) if kernels.on_cpu(x) else F.dropout(x, p)


def add_dropped(x: Tensor, y: Tensor, p: float) -> Tensor:
    """x + dropout(y, p), of one shape."""
    return kernels.add_dropped(x, y, p) if p > 0.0 and kernels.apply_to(x) else x + dropout(y, p)
