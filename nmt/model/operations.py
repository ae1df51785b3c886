"""The operations of the layers in plain PyTorch: the reference for the faster ones in `nmt.compute`.

Every layer computes through its `operations`, which are these unless `transformer.computed_by` sets others.

Shapes: b batch, h heads, t queries, s keys, d_k and d_v the widths of one head. Masks are true where attention is
allowed. Packed sequences lie end to end in a batch of 1; a `PackedMask` replaces their mask.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.model.batch import PADDING, Sequences
from nmt.model.cache import KVCache

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "silu": F.silu, "gelu": F.gelu}
Reach = tuple[int, int]  # number of positions visible before and after a query's own
MIN_QUERIES = 32  # per block; smaller matrix products would take as long
CHUNK_ROWS = 512  # for fewer, rearranging the weight would take a CPU as long as multiplying


class PackedMask(NamedTuple):
    """The mask of packed sequences: the queries of sequence i attend to the keys of sequence i."""

    queries: Sequences
    keys: Sequences


class Attending(NamedTuple):
    """What attention sees, drops and records."""

    mask: Tensor | PackedMask | None = None
    """Broadcastable to (b, h, t, s); in a search, a float bias to add"""
    causal: bool = False
    """Whether later keys are hidden, which allows no mask but `PackedMask`"""
    dropout: float = 0.0
    record: list[Tensor] | None = None
    """A list to append the weights (b, h, t, s) to, which skips dropout"""
    reach: Reach | None = None
    """The neighbourhood of self-attention (section 4), at a cost of O(reach · t · d) instead of `causal`; a `record`
    still holds all t² weights"""


class Operations:
    """How a model's operations are computed: here by PyTorch, as the paper writes them."""

    chunk_logits = 1 << 20
    """Number of logits to compute at a time: 4 MB fit in a core's cache"""

    # --- layers ---------------------------------------------------------------------------------------------------

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return x Wᵀ + b: x (…, in), `weight` (out, in), `bias` (out,), the result (…, out)."""
        return F.linear(x, weight, bias)

    def projected_attention(
        self,
        queries: Tensor,  # (b, t, h · d_k); in self-attention also keys and values: (b, t, h · (2 d_k + d_v))
        keys_values: Tensor | None,  # of cross-attention: (b, s, h · (d_k + d_v))
        heads: int,
        widths: Sequence[int],  # d_k, d_v
        how: Attending,
    ) -> Tensor:
        """Compute `attention` of projections, which hold the heads side by side; (b, t, h · d_v)."""
        if keys_values is None:
            query, key, value = split_heads(queries, heads, (widths[0], *widths))
        else:
            (query,) = split_heads(queries, heads, widths[:1])
            key, value = split_heads(keys_values, heads, widths)
        return join_heads(self.attention(query, key, value, how))

    def attention(self, query: Tensor, key: Tensor, value: Tensor, how: Attending) -> Tensor:
        """Return softmax(Q Kᵀ / √d_k) V, equation 1, for (b, h, t, d_k), (b, h, s, d_k) and (b, h, s, d_v)."""
        mask, causal, dropout, record, reach = how
        if isinstance(mask, PackedMask):
            return self.packed_attention(query, key, value, mask, how)
        if reach is not None:
            length = query.size(2)
            if record is None and length > block_size(reach)[1]:  # else blocks would save nothing
                return join(self.dense_attention(*cut(query, key, value, mask, reach), False, dropout), length)
            mask, causal = band(length, mask, reach, query.device), False
        if record is not None:
            visible = look_ahead_mask(query.size(2), query.device) if causal else mask
            return _recorded_attention(query, key, value, visible, record)
        return self.dense_attention(query, key, value, mask, causal, dropout)

    def dense_attention(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, dropout: float
    ) -> Tensor:
        """Compute `attention` over all keys that `mask` or `causal` leaves visible."""
        return F.scaled_dot_product_attention(query, key, value, mask, dropout, causal)

    def packed_attention(self, query: Tensor, key: Tensor, value: Tensor, packed: PackedMask, how: Attending) -> Tensor:
        """Compute `attention` within each packed sequence, one after another."""
        queries, keys = (sequences.bounds.diff().tolist() for sequences in packed)
        alone = Attending(None, how.causal, how.dropout, reach=how.reach)
        mixed = [
            self.attention(*rows, alone)
            for rows in zip(query.split(queries, 2), key.split(keys, 2), value.split(keys, 2), strict=True)
            if rows[0].size(2)
        ]
        return torch.cat(mixed, 2)

    def feed_forward(self, x: Tensor, inner: nn.Linear, outer: nn.Linear, activation: str, p: float) -> Tensor:
        """Apply `inner`, the activation, dropout with probability `p`, and `outer`; (…, d_model) to (…, d_model)."""
        return outer(self.dropout(ACTIVATIONS[activation](inner(x)), p))  # type: ignore[no-any-return]

    def dropout(self, x: Tensor, p: float) -> Tensor:
        """Zero elements with probability `p` and divide the others by 1 − p."""
        return x if p == 0.0 else F.dropout(x, p)

    def add_dropped(self, x: Tensor, y: Tensor, p: float) -> Tensor:
        """Return x + dropout(y, p); both have the same shape."""
        return x + self.dropout(y, p)

    def add_norm(self, x: Tensor, y: Tensor, p: float, norm: nn.LayerNorm) -> tuple[Tensor, Tensor]:
        """Return x + dropout(y, p) and its layer normalisation."""
        total = self.add_dropped(x, y, p)
        return total, norm(total)

    def padding_mask(self, ids: Tensor) -> Tensor | None:
        """Return (b, 1, 1, t), true at tokens of `ids` (b, t); None if nothing is padded."""
        real = (ids != PADDING)[:, None, None, :]
        return None if bool(real.all()) else real

    # --- logits and the loss ----------------------------------------------------------------------------------------

    # Logits (tokens × vocabulary) are computed in chunks; otherwise they would be the largest tensor by far.

    def chunk_rows(self, vocabulary: int) -> int:
        """Return the number of tokens to compute logits of at a time."""
        return max(CHUNK_ROWS, self.chunk_logits // vocabulary)

    def softmax(
        self,
        states: Tensor,  # (chunk, d_model)
        weight: Tensor,  # (vocabulary, d_model)
        targets: Tensor,  # (chunk, 1)
        dtype: torch.dtype,  # of the computation
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Compute a chunk's unnormalised softmax and its sums for the loss.

        Return exp(logits − row maximum) (chunk, vocabulary) in the weight's dtype; the targets' entries (chunk, 1) and
        the row totals (chunk, 1), both unrounded; Σ −log p(target) (); and Σ logsumexp(logits) (). Both sums leave out
        targets of `PADDING`. When compiled, this reads the logits twice and writes the exponentials once.
        """
        logits = self.linear(states, weight).to(dtype)
        target_logits = logits.gather(-1, targets)
        maxima, totals = self.exponentials_(logits)
        log_totals = totals.log() + maxima
        target_exponentials = (target_logits - maxima).exp()
        counted = targets.ne(PADDING)
        nll, log_total = (each.where(counted, 0.0).sum() for each in (log_totals - target_logits, log_totals))
        return logits.to(weight.dtype), target_exponentials, totals, nll, log_total

    def exponentials_(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Replace logits (rows, vocabulary) by exp(logits − maximum); return maxima and totals of rows (rows, 1)."""
        maxima = logits.amax(-1, keepdim=True)
        return maxima, logits.sub_(maxima).exp_().sum(-1, keepdim=True)

    def product(self, a: Tensor, b: Tensor, scale: float = 1.0, bias: Tensor | None = None) -> Tensor:
        """Return scale · a b + bias for two matrices, without a gradient."""
        start, share = (a.new_empty(()), 0) if bias is None else (bias, 1)
        return torch.addmm(start, a, b, beta=share, alpha=scale)  # applies the scale at no cost

    def weight_gradient(self, grad: Tensor, x: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        """Return scale · gradᵀ x for matrices grad (rows, out) and x (rows, in), and the sums of grad's columns."""
        return self.product(grad.t(), x, scale), grad.sum(0)

    def add_product(self, total: Tensor, a: Tensor, b: Tensor) -> None:
        """Add a b in place to `total`, whose dtype may be wider, without a gradient."""
        if total.dtype == a.dtype:
            total.addmm_(a, b)
        else:
            total += a @ b

    # --- layers of the encoder, and of the decoder in a step of a search --------------------------------------------

    def encode(
        self, layers: Iterable[Any], norm: nn.Module, x: Tensor, seen: Tensor | PackedMask | None, record: Any = None
    ) -> Tensor:
        """Apply the encoder's layers and last norm to x (b, s, d_model), which may be overwritten.

        `seen` is the mask of attention; `record` is as in `Attending`.
        """
        for layer in layers:
            x = layer(x, seen, record)
        return norm(x)  # type: ignore[no-any-return]

    def step(self, layers: Iterable[Any], norm: nn.Module, x: Tensor, cache: KVCache, alive: Tensor | None) -> Tensor:
        """Apply the decoder's layers and last norm to the newest position of each hypothesis: x (n, k, d_model).

        The states of hypotheses that are not `alive` (n, k) are undefined.
        """
        for layer, own in zip(layers, cache.layers, strict=True):
            x = layer.step(x, cache.memory_bias, own)
        return norm(x)  # type: ignore[no-any-return]


PLAIN = Operations()


def split_heads(x: Tensor, heads: int, widths: Sequence[int]) -> list[Tensor]:
    """Split (b, t, h · Σ d) into a view (b, h, t, d) for each d of `widths`."""
    parts = x.split([heads * width for width in widths], dim=-1)
    return [part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in parts]


def join_heads(x: Tensor) -> Tensor:
    """Concatenate the heads: (b, h, t, d) to (b, t, h · d)."""
    return x.transpose(1, 2).flatten(2)


def look_ahead_mask(length: int, device: torch.device | None = None) -> Tensor:
    """Return the causal mask (length, length): position i attends to j ≤ i."""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


def _recorded_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, record: list[Tensor]) -> Tensor:
    """Compute attention by the plain formula, because PyTorch's kernels do not return the weights."""
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))  # (b, h, t, s)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    record.append(scores.softmax(-1))
    return record[-1] @ value


def factor_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype in which products with x are computed: autocast's where it is enabled, else x's."""
    kind = x.device.type
    is_rounded = kind in ("cpu", "cuda") and torch.is_autocast_enabled(kind)  # others may have no autocast
    return torch.get_autocast_dtype(kind) if is_rounded else x.dtype


def perplexity(nll: float, tokens: float) -> float:
    """Return the perplexity for a total negative log-likelihood in nats."""
    return math.exp(min(nll / tokens, 700.0))  # e^710 overflows


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
