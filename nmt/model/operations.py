"""The operations of the layers in plain PyTorch: the reference for the faster ones in `nmt.compute`.

Every layer computes through its `operations`, which are these unless `transformer.computed_by` sets others.

Shapes: b batch, h heads, t queries, s keys, d_k and d_v the widths of one head. Masks are true where attention is
allowed. Packed sequences lie end to end in a batch of 1; a `PackedMask` replaces their mask.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.model.batch import PADDING, Sequences

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "silu": F.silu, "gelu": F.gelu}
CHUNK_ROWS = 512  # for fewer, rearranging the weight would take a CPU as long as multiplying


class PackedMask(NamedTuple):
    """The mask of packed sequences: the queries of sequence i attend to the keys of sequence i."""

    queries: Sequences
    keys: Sequences


class Attending(NamedTuple):
    """What attention sees, drops and records."""

    mask: Tensor | PackedMask | None = None
    """Boolean, broadcastable to (b, h, t, s); a search gives a float bias, which is added to the scores"""
    causal: bool = False
    """Whether later keys are hidden, which allows no mask but `PackedMask`"""
    dropout: float = 0.0
    record: list[Tensor] | None = None
    """A list to append the weights (b, h, t, s) to, which skips dropout"""


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
        mask, causal, dropout, record = how
        if isinstance(mask, PackedMask):
            return self.packed_attention(query, key, value, mask, how)
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
        query_lengths = packed.queries.bounds.diff().tolist()
        key_lengths = packed.keys.bounds.diff().tolist()
        alone = Attending(None, how.causal, how.dropout)
        parts = zip(query.split(query_lengths, 2), key.split(key_lengths, 2), value.split(key_lengths, 2), strict=True)
        mixed = []
        for own_query, own_key, own_value in parts:
            if own_query.size(2):  # the last sequences may be empty
                mixed.append(self.attention(own_query, own_key, own_value, alone))
        return torch.cat(mixed, 2)

    def feed_forward(self, x: Tensor, inner: nn.Linear, outer: nn.Linear, activation: str, p: float) -> Tensor:
        """Apply `inner`, the activation, dropout with probability `p`, and `outer`; (…, d_model) to (…, d_model)."""
        hidden = ACTIVATIONS[activation](inner(x))  # (…, d_ff)
        return outer(self.dropout(hidden, p))  # type: ignore[no-any-return]

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

    def encoded(self, states: Tensor) -> Tensor:
        """Return the encoder's output (b, s, d_model) for the decoder's layers; a GPU rounds it here, once for all."""
        return states

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
        logits = self.linear(states, weight)
        target_logits = logits.gather(-1, targets).to(dtype)
        exponentials, maxima, totals = self.exponentials(logits, dtype)
        log_totals = totals.log() + maxima
        target_exponentials = (target_logits - maxima).exp()
        counted = targets.ne(PADDING)
        nll = (log_totals - target_logits).where(counted, 0.0).sum()
        log_total = log_totals.where(counted, 0.0).sum()
        return exponentials, target_exponentials, totals, nll, log_total

    def exponentials(self, logits: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """Return exp(logits − maximum), maybe in the memory of `logits` (rows, vocabulary), and in their dtype.

        Return also, in `dtype`, the maxima of rows (rows, 1) and the totals of exponentials not yet rounded (rows, 1).
        """
        wide = logits.to(dtype)
        maxima = wide.amax(-1, keepdim=True)
        totals = wide.sub_(maxima).exp_().sum(-1, keepdim=True)
        return wide.to(logits.dtype), maxima, totals

    def product(self, a: Tensor, b: Tensor, scale: float = 1.0, bias: Tensor | None = None) -> Tensor:
        """Return scale · a b + bias for two matrices, without a gradient."""
        if bias is None:  # addmm applies the scale at no cost; with beta=0, it ignores what it would add
            return torch.addmm(a.new_empty(()), a, b, beta=0, alpha=scale)
        return torch.addmm(bias, a, b, alpha=scale)

    def weight_gradient(self, grad: Tensor, x: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        """Return scale · gradᵀ x for matrices grad (rows, out) and x (rows, in), and the sums of grad's columns."""
        return self.product(grad.t(), x, scale), grad.sum(0)

    def add_product(self, total: Tensor, a: Tensor, b: Tensor) -> None:
        """Add a b in place to `total`, whose dtype may be wider, without a gradient."""
        if total.dtype == a.dtype:
            total.addmm_(a, b)
        else:
            total += a @ b

    def products(
        self, a: Tensor, b: Tensor, scale: float = 1.0, total: Tensor | None = None, share: float = 1.0
    ) -> Tensor:
        """Return scale · a b + share · total for stacks (n, …) of matrices, without a gradient."""
        if total is None:
            return torch.baddbmm(a.new_empty(()), a, b, beta=0, alpha=scale)
        return torch.baddbmm(total, a, b, beta=share, alpha=scale)


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
    if kind in ("cpu", "cuda") and torch.is_autocast_enabled(kind):  # others may have no autocast
        return torch.get_autocast_dtype(kind)
    return x.dtype


def perplexity(nll: float, tokens: float) -> float:
    """Return the perplexity for a total negative log-likelihood in nats."""
    return math.exp(min(nll / tokens, 700.0))  # e^710 overflows
