"""The parts of the Transformer: attention, feed-forward, residual, positions, dropout (sections 3.2 to 3.5).

Shapes: b batch, h heads, t queries, s keys, d_k and d_v the widths of one head. Masks are true where attention is
allowed. Where a `record` list is given, attention appends its weights to it, (b, h, t, s), and is computed by the
plain formula; else by PyTorch's fused kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.model import kernels, window
from nmt.model.cache import LayerCache
from nmt.recipe import Model

LAYER_NORM_EPSILON = 1e-6
WORD_BASE = 60.0  # of the sinusoids that tell words: neighbours are farther apart than the paper's 10,000 sets them


def attention(
    query: Tensor,  # (b, h, t, d_k)
    key: Tensor,  # (b, h, s, d_k)
    value: Tensor,  # (b, h, s, d_v)
    mask: Tensor | None = None,  # broadcastable to (b, h, t, s); in a search a bias to add, which is a float
    causal: bool = False,
    dropout: float = 0.0,
    record: list[Tensor] | None = None,
) -> Tensor:
    """softmax(Q Kᵀ / √d_k) V, equation 1; (b, h, t, d_v). `causal` hides later keys and excludes `mask`."""
    if record is None and kernels.apply_to(query) and (dropout > 0.0 or key.size(-2) <= kernels.SHORT):
        return kernels.attention(query, key, value, mask, causal, dropout)
    if record is None and mask is not None and mask.is_floating_point() and kernels.on_cpu(query):
        return kernels.attention_of_hypotheses(query, key, value, mask)
    if record is None:
        return F.scaled_dot_product_attention(query, key, value, mask, dropout, causal)
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))  # (b, h, t, s)
    if causal:
        mask = look_ahead_mask(query.size(-2), query.device)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    weights = scores.softmax(-1)
    record.append(weights)
    return weights @ value


def restricted_attention(
    query: Tensor,  # (b, h, t, d_k)
    key: Tensor,  # (b, h, t, d_k)
    value: Tensor,  # (b, h, t, d_v)
    reach: window.Reach,
    mask: Tensor | None = None,  # (b, 1, 1, t)
    dropout: float = 0.0,
    record: list[Tensor] | None = None,
) -> Tensor:
    """As `attention` of a sequence to itself where each position sees `reach` alone, section 4; (b, h, t, d_v).

    The work is O(r · t · d), except that a `record` is of all t² weights.
    """
    length = query.size(2)
    if record is not None or length <= window.block_size(reach)[1]:  # blocks would save nothing
        visible = window.band(length, mask, reach, query.device)
        return attention(query, key, value, visible, False, dropout, record)
    return window.join(attention(*window.cut(query, key, value, mask, reach), dropout=dropout), length)


def look_ahead_mask(length: int, device: torch.device | None = None) -> Tensor:
    """(length, length): position i may look at j ≤ i."""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


class SelfAttention(nn.Module):
    """Multi-head attention of a sequence to itself, section 3.2.2; no biases."""

    def __init__(self, config: Model) -> None:
        super().__init__()
        self.heads, self.dropout = config.heads, config.attention_dropout
        self.widths = (config.key_width, config.key_width, config.value_width)
        self.reach = {causal: config.reach(causal) for causal in (False, True)}
        # one product for queries, keys and values
        self.qkv = _projection(config.d_model, *(config.heads * width for width in self.widths))
        self.out = _projection(config.heads * config.value_width, config.d_model)

    def forward(
        self,
        x: Tensor,  # (b, t, d_model)
        mask: Tensor | None = None,
        causal: bool = False,
        cache: LayerCache | None = None,
        record: list[Tensor] | None = None,
    ) -> Tensor:  # (b, t, d_model)
        query, key, value = _split_heads(self.qkv(x), self.heads, *self.widths)
        dropout, reach = self.dropout if self.training else 0.0, self.reach[causal]
        if cache is not None:  # x are hypotheses, and the cache tells what each of them sees
            key, value, mask = cache.append(key, value)
            mixed = attention(query, key, value, mask, False, dropout, record)
        elif reach is not None:
            mixed = restricted_attention(query, key, value, reach, mask, dropout, record)
        else:
            mixed = attention(query, key, value, mask, causal, dropout, record)
        return self.out(_join_heads(mixed))  # type: ignore[no-any-return]


class CrossAttention(nn.Module):
    """Multi-head attention of the decoder to the encoder's output, section 3.2.3; no biases."""

    def __init__(self, config: Model) -> None:
        super().__init__()
        self.heads, self.dropout = config.heads, config.attention_dropout
        self.widths = (config.key_width, config.value_width)
        self.query = _projection(config.d_model, config.heads * config.key_width)
        self.key_value = _projection(config.d_model, *(config.heads * width for width in self.widths))
        self.out = _projection(config.heads * config.value_width, config.d_model)
        if config.positions == "words" and not self.query.weight.is_meta:
            self._attract()

    @torch.no_grad()
    def _attract(self) -> None:
        """Begins with keys as queries, and large ones: like attracts like, above all the next word the decoder.

        Both sides' encodings of a word are the same. Without this a parser finds them after thousands of updates.
        """
        self.query.weight *= 2.0
        self.key_value.weight[: len(self.query.weight)] = self.query.weight

    def keys_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """(b, h, s, d_k) and (b, h, s, d_v) of the encoder's output (b, s, d_model): once per sentence."""
        key, value = _split_heads(self.key_value(memory), self.heads, *self.widths)
        return key, value

    def forward(
        self,
        x: Tensor,  # (b, t, d_model)
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        record: list[Tensor] | None = None,
    ) -> Tensor:  # as x
        (query,) = _split_heads(self.query(x), self.heads, key.size(-1))
        dropout = self.dropout if self.training else 0.0
        return self.out(_join_heads(attention(query, key, value, mask, False, dropout, record)))  # type: ignore[no-any-return]


class FeedForward(nn.Module):
    """max(0, x W₁ + b₁) W₂ + b₂, equation 2."""

    def __init__(self, config: Model) -> None:
        super().__init__()
        self.inner = _projection(config.d_model, config.d_ff, bias=True)
        self.outer = _projection(config.d_ff, config.d_model, bias=True)
        self.dropout = Dropout(config.feed_forward_dropout)

    def forward(self, x: Tensor) -> Tensor:
        if kernels.apply_to(x):
            inner, outer, p = self.inner, self.outer, self.dropout.p if self.training else 0.0
            return kernels.feed_forward(x, inner.weight, inner.bias, outer.weight, outer.bias, p)
        return self.outer(self.dropout(self.inner(x).relu_()))  # type: ignore[no-any-return]


class Residual(nn.Module):
    """LayerNorm(x + Dropout(sublayer(x))), section 3.1; with pre-norm x + Dropout(sublayer(LayerNorm(x)))."""

    def __init__(self, config: Model) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.d_model, eps=LAYER_NORM_EPSILON)
        self.dropout = Dropout(config.dropout)
        self.pre = config.norm == "pre"

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        if self.pre:
            return self._sum(x, sublayer(self.norm(x)))
        return self.norm(self._sum(x, sublayer(x)))  # type: ignore[no-any-return]

    def _sum(self, x: Tensor, y: Tensor) -> Tensor:
        if self.training and self.dropout.p > 0.0 and kernels.apply_to(x):
            return kernels.add_dropped(x, y, self.dropout.p)
        return x + self.dropout(y)  # type: ignore[no-any-return]


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, left half of figure 1; masked, that of a language model."""

    def __init__(self, config: Model, causal: bool = False) -> None:
        """`causal` hides later positions, and excludes a mask."""
        super().__init__()
        self.causal = causal
        self.attention, self.feed_forward = SelfAttention(config), FeedForward(config)
        self.attention_residual, self.feed_forward_residual = Residual(config), Residual(config)

    def forward(self, x: Tensor, mask: Tensor | None, record: list[Tensor] | None = None) -> Tensor:
        x = self.attention_residual(x, lambda y: self.attention(y, mask, self.causal, record=record))
        return self.feed_forward_residual(x, self.feed_forward)  # type: ignore[no-any-return]


class DecoderLayer(nn.Module):
    """Masked self-attention, attention to the encoder and feed-forward, right half of figure 1."""

    def __init__(self, config: Model) -> None:
        super().__init__()
        self.attention, self.cross, self.feed_forward = (
            SelfAttention(config),
            CrossAttention(config),
            FeedForward(config),
        )
        self.attention_residual, self.cross_residual, self.feed_forward_residual = (
            Residual(config),
            Residual(config),
            Residual(config),
        )

    def forward(
        self,
        x: Tensor,  # (b, t, d_model)
        memory_keys: Tensor,
        memory_values: Tensor,
        memory_mask: Tensor | None,
        cache: LayerCache | None = None,
        record: tuple[list[Tensor], list[Tensor]] | None = None,
    ) -> Tensor:
        own, cross = record or (None, None)
        x = self.attention_residual(x, lambda y: self.attention(y, None, True, cache, own))
        x = self.cross_residual(x, lambda y: self.cross(y, memory_keys, memory_values, memory_mask, cross))
        return self.feed_forward_residual(x, self.feed_forward)  # type: ignore[no-any-return]


class Positions(nn.Module):
    """Adds position encodings, section 3.5: sinusoids of any length, or learned ones up to `max_positions`.

    With `positions: words` the first half of an encoding are sinusoids of the position, the second of the word.
    """

    table: Tensor
    word_table: Tensor

    def __init__(self, config: Model) -> None:
        super().__init__()
        self.learned, self.of_words = config.positions == "learned", config.positions == "words"
        if self.learned:
            self.table = nn.Parameter(torch.empty(config.max_positions, config.d_model))
            if not self.table.is_meta:
                nn.init.normal_(self.table, std=config.d_model**-0.5)
            return
        width = config.d_model // 2 if self.of_words else config.d_model
        self.register_buffer("table", torch.empty(0, width), persistent=False)
        if self.of_words:
            self.register_buffer("word_table", torch.empty(0, width), persistent=False)
        if not self.table.is_meta:  # else once they are needed
            self._reach(1024, self.table.device)

    def _apply(self, *args: Any, **options: Any) -> Self:
        """Also computes the sinusoids anew, to the precision of the type that the module is converted to."""
        super()._apply(*args, **options)  # type: ignore[no-untyped-call]
        if not self.learned:
            self._tabulate(len(self.table), self.table.device)
        return self

    def forward(self, x: Tensor, words: Tensor | None = None) -> Tensor:
        """x (b, t, d_model) whose first position is 0; `words` (b, t), where they count, are at most t."""
        self._reach(x.size(1) + (words is not None), x.device)
        return x + self._with_words(self.table[: x.size(1)], words)

    def at(self, positions: NDArray[np.int64], x: Tensor, words: Tensor | None = None) -> Tensor:
        """x (b, k, d_model), all k of a row at the row's position, `positions` (b,); `words` (b, k)."""
        self._reach(int(positions.max(initial=0)) + 1 + (words is not None), x.device)
        return x + self._with_words(self.table[torch.from_numpy(positions).to(x.device)][:, None], words)

    def _with_words(self, places: Tensor, words: Tensor | None) -> Tensor:
        if words is None:
            return places
        return torch.cat((places.expand(*words.shape, -1), self.word_table[words]), dim=-1)

    def _reach(self, end: int, device: torch.device) -> None:
        """Makes sure that the table goes up to position `end`, excluded."""
        if end <= self.table.size(0):
            return
        if self.learned:
            raise ValueError(f"a sequence of {end} exceeds model.max_positions {self.table.size(0)}")
        self._tabulate(max(end, 2 * self.table.size(0)), device)

    def _tabulate(self, length: int, device: torch.device) -> None:
        width, dtype = self.table.size(1), self.table.dtype
        self.table = sinusoids(length, width, dtype).to(device)
        if self.of_words:
            self.word_table = sinusoids(length, width, dtype, WORD_BASE).to(device)


def sinusoids(length: int, width: int, dtype: torch.dtype = torch.float32, base: float = 10000.0) -> Tensor:
    """(length, width): PE(p, 2i) = sin(p / base^(2i / width)), PE(p, 2i+1) the cosine, interleaved."""
    rates = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * rates
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1).to(dtype)


class Dropout(nn.Module):
    """Sets elements to 0 with probability p and divides the others by 1 − p, in training."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0.0:
            return x
        return kernels.dropout(x, self.p) if kernels.on_cpu(x) else F.dropout(x, self.p)


def _projection(inputs: int, *outputs: int, bias: bool = False) -> nn.Linear:
    """One Linear for several matrices side by side, each with its own Glorot initialisation."""
    linear = nn.Linear(inputs, sum(outputs), bias=bias)
    for part in linear.weight.split(list(outputs)):
        nn.init.xavier_uniform_(part)
    if bias:
        nn.init.zeros_(linear.bias)
    return linear


def _split_heads(x: Tensor, heads: int, *widths: int) -> tuple[Tensor, ...]:
    """(b, t, h · Σ d) to a (b, h, t, d) for each d of `widths`."""
    if kernels.apply_to(x):
        return kernels.split_heads(x, heads, widths)
    parts = x.split([heads * width for width in widths], dim=-1)
    return tuple(part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in parts)


def _join_heads(x: Tensor) -> Tensor:
    """(b, h, t, d) to (b, t, h · d)."""
    return x.transpose(1, 2).flatten(2)
