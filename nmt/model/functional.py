"""The layers' operations, computed by `kernels` where these apply (on CPUs), else by PyTorch.

Shapes: b batch, h heads, t queries, s keys, d_k and d_v the widths of one head. Masks are true where attention is
allowed. Packed sequences lie end to end in a batch of 1; a `Packed` replaces their mask.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.data.batch import Sequences
from nmt.model import kernels, products

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": torch.relu_, "silu": F.silu, "gelu": F.gelu}
"""Activation functions by name; they may overwrite their argument"""
Reach = tuple[int, int]  # number of positions visible before and after a query's own
MIN_QUERIES = 32  # per block; smaller matrix products would take as long
CHUNK_LOGITS = {"cpu": 1 << 20, "cuda": 1 << 27}  # 4 MB fit in a core's cache, 512 MB keep a GPU busy
"""Number of logits to compute at a time, by device type"""
CHUNK_ROWS = 512  # for fewer, rearranging the weight would take a CPU as long as multiplying


class Packed(NamedTuple):
    """The mask of packed sequences: the queries of sequence i attend to the keys of sequence i."""

    queries: Sequences
    keys: Sequences


def attention(
    query: Tensor,  # (b, h, t, d_k)
    key: Tensor,  # (b, h, s, d_k)
    value: Tensor,  # (b, h, s, d_v)
    mask: Tensor | Packed | None = None,  # broadcastable to (b, h, t, s); in a search, a float bias to add
    causal: bool = False,
    dropout: float = 0.0,
    record: list[Tensor] | None = None,
    reach: Reach | None = None,
) -> Tensor:
    """Return softmax(Q Kᵀ / √d_k) V, equation 1; (b, h, t, d_v). `causal` hides later keys.

    `causal` allows no mask but `Packed`. If `record` is given, append the weights (b, h, t, s) to it and skip dropout.
    A `reach` restricts self-attention to that neighbourhood (section 4) at a cost of O(reach · t · d), and overrides
    `causal`; a `record` still holds all t² weights.
    """
    if isinstance(mask, Packed):
        return _packed_attention(query, key, value, mask, causal, dropout, reach)
    if reach is not None:
        length = query.size(2)
        if record is None and length > block_size(reach)[1]:  # else blocks would save nothing
            return join(attention(*cut(query, key, value, mask, reach), dropout=dropout), length)
        mask, causal = band(length, mask, reach, query.device), False
    if record is not None:
        visible = look_ahead_mask(query.size(2), query.device) if causal else mask
        return _recorded_attention(query, key, value, visible, record)
    if kernels.apply_to(query) and (dropout > 0.0 or key.size(2) <= kernels.SHORT):
        return kernels.attention(query, key, value, mask, causal, dropout)
    return F.scaled_dot_product_attention(query, key, value, mask, dropout, causal)


def _recorded_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, record: list[Tensor]) -> Tensor:
    """Compute `attention` by the plain formula, because the kernels do not return the weights."""
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))  # (b, h, t, s)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    record.append(scores.softmax(-1))
    return record[-1] @ value


def _packed_attention(
    query: Tensor, key: Tensor, value: Tensor, packed: Packed, causal: bool, dropout: float, reach: Reach | None
) -> Tensor:
    """Compute `attention` within each packed sequence; on a CPU, one sequence at a time."""
    if query.is_cuda:
        return _attention_by_kernel(query, key, value, packed, causal, dropout, reach)
    queries, keys = (sequences.bounds.diff().tolist() for sequences in packed)
    mixed = [
        attention(*rows, None, causal, dropout, reach=reach)
        for rows in zip(query.split(queries, 2), key.split(keys, 2), value.split(keys, 2), strict=True)
        if rows[0].size(2)
    ]
    return torch.cat(mixed, 2)


def _attention_by_kernel(
    query: Tensor, key: Tensor, value: Tensor, packed: Packed, causal: bool, dropout: float, reach: Reach | None
) -> Tensor:
    """Compute `_packed_attention` on a GPU, in bf16 or fp16 and without dropout."""
    from torch.nn.attention.varlen import varlen_attn  # imports torch.compile, which takes seconds

    assert dropout == 0.0, "the kernel drops nothing"
    query, key, value = (x.squeeze(0).transpose(0, 1) for x in (query, key, value))  # (t or s, h, d)
    (queries, _, most_queries), (keys, _, most_keys) = packed
    window = reach or (-1, 0 if causal else -1)  # -1: no limit
    mixed = varlen_attn(query, key, value, queries, keys, most_queries, most_keys, window_size=window)
    assert isinstance(mixed, Tensor)  # for the type checker: a tuple is returned only on request
    return mixed.transpose(0, 1).unsqueeze(0)


def look_ahead_mask(length: int, device: torch.device | None = None) -> Tensor:
    """Return the causal mask (length, length): position i attends to j ≤ i."""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


def split_heads(x: Tensor, heads: int, widths: Sequence[int]) -> Sequence[Tensor]:
    """Split (b, t, h · Σ d) into one (b, h, t, d) for each d of `widths`."""
    split = kernels.split_heads if kernels.apply_to(x) else kernels.head_views
    return split(x, heads, widths)


def join_heads(x: Tensor) -> Tensor:
    """Concatenate the heads: (b, h, t, d) to (b, t, h · d)."""
    return x.transpose(1, 2).flatten(2)


def feed_forward(x: Tensor, inner: nn.Linear, outer: nn.Linear, activation: str, p: float) -> Tensor:
    """Apply `inner`, the activation, dropout with probability `p`, and `outer`; (…, d_model) to (…, d_model)."""
    if activation == "relu" and kernels.apply_to(x):
        return kernels.feed_forward(x, inner.weight, inner.bias, outer.weight, outer.bias, p)
    return outer(dropout(ACTIVATIONS[activation](inner(x)), p))  # type: ignore[no-any-return]


def dropout(x: Tensor, p: float) -> Tensor:
    """Zero elements with probability `p` and divide the others by 1 − p."""
    if p == 0.0:
        return x
    return kernels.add_dropped(None, x, p) if kernels.on_cpu(x) else F.dropout(x, p)


def add_dropped(x: Tensor, y: Tensor, p: float) -> Tensor:
    """Return x + dropout(y, p); both have the same shape."""
    return kernels.add_dropped(x, y, p) if p > 0.0 and kernels.apply_to(x) else x + dropout(y, p)


# --- self-attention restricted to a neighbourhood (section 4) -----------------------------------------------------

# A sequence is cut into n blocks of q queries and c keys each, so the cost is linear in its length. Every position
# attends to itself, even padding: in a neighbourhood of nothing but padding, the weights would be 0 / 0 = NaN, which no
# later mask can remove from gradients.


def block_size(reach: Reach) -> tuple[int, int]:
    """Return q and c. With q as large as the neighbourhood, about half of the computed scores are used."""
    queries = max(MIN_QUERIES, sum(reach) + 1)
    return queries, queries + sum(reach)


def band(length: int, mask: Tensor | None, reach: Reach, device: torch.device) -> Tensor:
    """Return the mask (1 or b, 1, t, t) that limits `mask` (b, 1, 1, t) to each position's `reach`."""
    return _visible(mask, _offsets(length, length, 0, device), reach)


def cut(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, reach: Reach
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Cut the inputs of self-attention into blocks; `mask` is (b, 1, 1, t).

    Return blocks of queries (b · n, h, q, d_k), the keys and values around each block (b · n, h, c, …), and the mask
    of each block (b · n, 1, q, c).
    """
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
    """Concatenate blocks (b · n, h, q, d) to (b, h, length, d), without the padding of the last block."""
    count = -(-length // blocks.size(2))
    return blocks.unflatten(0, (-1, count)).transpose(1, 2).flatten(2, 3)[:, :, :length]  # type: ignore[no-any-return]


def _offsets(queries: int, keys: int, first: int, device: torch.device) -> Tensor:
    """Return each key's offset from each query (q, c), where query 0 is at key `first`."""
    return torch.arange(keys, device=device) - torch.arange(queries, device=device)[:, None] - first


def _visible(real: Tensor | None, offsets: Tensor, reach: Reach) -> Tensor:
    before, after = reach
    near = (offsets >= -before) & (offsets <= after)
    return near if real is None else near & (real | offsets.eq(0))


# --- log-probabilities --------------------------------------------------------------------------------------------

# Logits (tokens × vocabulary) are computed in chunks; otherwise they would be the largest tensor by far.


def chunk_rows(vocabulary: int, device: torch.device) -> int:
    """Return the number of tokens to compute logits of at a time."""
    return max(CHUNK_ROWS, CHUNK_LOGITS[device.type] // vocabulary)


def log_probabilities(states: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return the log-probability of each of `targets` (tokens,), in nats and at least fp32.

    Logits are states (tokens, d_model) · weight (vocabulary, d_model)ᵀ + bias (vocabulary,). Not for training:
    autograd would keep all logits.
    """
    rows = chunk_rows(weight.size(0), states.device)
    wide = torch.promote_types(states.dtype, torch.float32)
    return torch.cat(
        [
            -F.cross_entropy(products.linear(part, weight, bias).to(wide), answers, reduction="none")
            for part, answers in zip(states.split(rows), targets.split(rows), strict=True)
        ]
    )


def perplexity(nll: float, tokens: float) -> float:
    """Return the perplexity for a total negative log-likelihood in nats."""
    return math.exp(min(nll / tokens, 700.0))  # e^710 overflows
