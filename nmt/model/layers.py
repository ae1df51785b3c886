"""The Transformer's layers: attention, feed-forward, residual, embeddings, dropout (sections 3.1 to 3.5 and 5.4).

Shapes: b batch, h heads, t queries, s keys, d_k and d_v the widths of one head. Masks are true where attention is
allowed; a `PackedMask` replaces the mask of packed sequences. If given a `record` list, attention appends its weights
(b, h, t, s) to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.model.batch import Sequences
from nmt.model.operations import PLAIN, Attending, Operations, PackedMask, split_heads
from nmt.recipe import Model

Sublayer = Callable[[Tensor], Tensor]
Stream = tuple[Tensor, Tensor]
"""A residual sum, and the next sublayer's input: its norm in pre-norm, else the sum itself"""
WORD_BASE = 60.0  # base for sinusoids of word numbers; separates neighbouring words more than the paper's 10,000


class Layer(nn.Module):
    """A part of the model that computes through `operations`."""

    operations: Operations = PLAIN


class SelfAttention(Layer):
    """Multi-head self-attention, section 3.2.2."""

    def __init__(self, config: Model, causal: bool = False) -> None:
        """Initialise the projections. `causal` hides later positions and allows no mask but `PackedMask`."""
        super().__init__()
        self.heads = config.heads
        self.causal = causal
        self.dropout = Dropout(config.attention_dropout)
        self.widths = (config.key_width, config.key_width, config.value_width)  # of a head's queries, keys, values
        bias = config.attention_bias
        # one product for queries, keys and values
        self.qkv = Linear(config.d_model, *(config.heads * width for width in self.widths), bias=bias)
        self.out = Linear(config.heads * config.value_width, config.d_model, bias=bias)

    def forward(
        self,
        x: Tensor,  # (b, t, d_model)
        mask: Tensor | PackedMask | None = None,
        record: list[Tensor] | None = None,
    ) -> Tensor:  # (b, t, d_model)
        how = Attending(mask, self.causal, self.dropout.rate, record)
        mixed = self.operations.projected_attention(self.qkv(x), None, self.heads, self.widths[1:], how)
        return self.out(mixed)  # type: ignore[no-any-return]


class CrossAttention(Layer):
    """Multi-head attention of the decoder to the encoder's output, section 3.2.3."""

    def __init__(self, config: Model) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = Dropout(config.attention_dropout)
        self.widths = (config.key_width, config.value_width)  # of a head's keys and values
        bias = config.attention_bias
        self.query = Linear(config.d_model, config.heads * config.key_width, bias=bias)
        self.key_value = Linear(config.d_model, *(config.heads * width for width in self.widths), bias=bias)
        self.out = Linear(config.heads * config.value_width, config.d_model, bias=bias)
        if config.positions == "words" and not self.query.weight.is_meta:
            self._attract()

    @torch.no_grad()
    def _attract(self) -> None:
        """Initialise key and query weights as equal, and twice as large, so that the decoder attends to the next word.

        A word has the same positional encoding on both sides. Without this start, a parser needs thousands
        of updates to learn the alignment.
        """
        self.query.weight *= 2.0
        self.key_value.weight[: len(self.query.weight)] = self.query.weight

    def keys_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys (b, h, s, d_k) and values (b, h, s, d_v) of the encoder's output (b, s, d_model)."""
        key, value = split_heads(self.key_value(memory), self.heads, self.widths)
        return key, value

    def forward(
        self,
        x: Tensor,  # (b, t, d_model)
        memory: Tensor,  # (b, s, d_model)
        mask: Tensor | PackedMask | None = None,
        record: list[Tensor] | None = None,
    ) -> Tensor:  # as x
        queries = self.query(x)  # (b, t, h · d_k)
        keys_values = self.key_value(memory)  # (b, s, h · (d_k + d_v))
        how = Attending(mask, dropout=self.dropout.rate, record=record)
        mixed = self.operations.projected_attention(queries, keys_values, self.heads, self.widths, how)
        return self.out(mixed)  # type: ignore[no-any-return]


class FeedForward(Layer):
    """A feed-forward network: max(0, x W₁ + b₁) W₂ + b₂, equation 2, or with another activation in place of ReLU."""

    def __init__(self, config: Model) -> None:
        super().__init__()
        self.inner = Linear(config.d_model, config.d_ff, bias=True)
        self.outer = Linear(config.d_ff, config.d_model, bias=True)
        self.activation = config.activation
        self.dropout = Dropout(config.feed_forward_dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.operations.feed_forward(x, self.inner, self.outer, self.activation, self.dropout.rate)


class Residual(Layer):
    """A residual connection, section 3.1: LayerNorm(x + Dropout(sublayer(x))).

    In pre-norm: x + Dropout(sublayer(LayerNorm(x))), where the norm is computed with the sum before it.
    """

    def __init__(self, config: Model) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.d_model, eps=config.norm_epsilon)
        self.dropout = Dropout(config.dropout)
        self.pre = config.norm == "pre"

    def forward(self, x: Tensor, y: Tensor, sublayer: Sublayer, following: Self | None) -> Stream:
        """Add the output of `sublayer` for its input y to the residual sum x; all are (b, t, d_model).

        Return the new sum, and the input of the `following` residual connection's sublayer, None after the last one.
        """
        output = sublayer(y)
        rate = self.dropout.rate
        if not self.pre:
            _, normalised = self.operations.add_norm(x, output, rate, self.norm)
            return normalised, normalised
        if following is None:
            total = self.operations.add_dropped(x, output, rate)
            return total, total
        return self.operations.add_norm(x, output, rate, following.norm)

    def begin(self, x: Tensor) -> Stream:
        """Begin a layer with its input x: return this as the residual sum, and the first sublayer's input."""
        if self.pre:
            return x, self.norm(x)
        return x, x


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, left half of figure 1."""

    def __init__(self, config: Model) -> None:
        super().__init__()
        self.attention = SelfAttention(config)
        self.feed_forward = FeedForward(config)
        self.attention_residual = Residual(config)
        self.feed_forward_residual = Residual(config)

    def forward(self, x: Tensor, mask: Tensor | PackedMask | None, record: list[Tensor] | None = None) -> Tensor:
        first = self.attention_residual
        last = self.feed_forward_residual
        x, y = first.begin(x)
        x, y = first(x, y, lambda y: self.attention(y, mask, record=record), last)
        x, _ = last(x, y, self.feed_forward, None)
        return x


class DecoderLayer(nn.Module):
    """Masked self-attention, cross-attention and feed-forward, right half of figure 1."""

    def __init__(self, config: Model) -> None:
        super().__init__()
        self.attention = SelfAttention(config, causal=True)
        self.cross = CrossAttention(config)
        self.feed_forward = FeedForward(config)
        self.attention_residual = Residual(config)
        self.cross_residual = Residual(config)
        self.feed_forward_residual = Residual(config)

    def forward(
        self,
        x: Tensor,  # (b, t, d_model)
        memory: Tensor,  # the encoder's output (b, s, d_model)
        memory_mask: Tensor | PackedMask | None,
        record: tuple[list[Tensor], list[Tensor]] | None = None,
        packed: PackedMask | None = None,  # self-attention's mask if x is packed
    ) -> Tensor:  # as x
        own, cross = record or (None, None)
        return self.states(
            x, lambda y: self.attention(y, packed, record=own), lambda y: self.cross(y, memory, memory_mask, cross)
        )

    def states(self, x: Tensor, attention: Sublayer, cross: Sublayer) -> Tensor:
        """Apply the layer to x (b, t, d_model) with its two attentions as given."""
        first = self.attention_residual
        second = self.cross_residual
        last = self.feed_forward_residual
        x, y = first.begin(x)
        x, y = first(x, y, attention, second)
        x, y = second(x, y, cross, last)
        x, _ = last(x, y, self.feed_forward, None)
        return x


class Embed(nn.Module):
    """Symbol embeddings times √d_model, plus positional encodings, then dropout: sections 3.4 and 5.4.

    One module serves source and target, which may share a matrix: the weight is an argument.
    """

    def __init__(self, config: Model) -> None:
        super().__init__()
        self.dropout = Dropout(config.dropout)

    def forward(self, ids: Tensor, weight: Tensor, positions: Tensor) -> Tensor:
        """Embed ids (b, t) to (b, t, d_model); `weight` is (vocabulary, d_model), `positions` come from `Positions`."""
        scaled = F.embedding(ids, weight) * math.sqrt(weight.size(1))
        return self.dropout(scaled + positions)  # type: ignore[no-any-return]


class Positions(nn.Module):
    """Positional encodings, section 3.5: sinusoids for any length, or learned encodings up to `max_positions`.

    With `positions: fairseq` or `marian`, the sinusoids are those of these programs.
    With `positions: words`, an encoding's first half has sinusoids of the position, its second half of the word number.
    """

    table: Tensor
    word_table: Tensor

    def __init__(self, config: Model) -> None:
        super().__init__()
        self.learned = config.positions == "learned"
        self.of_words = config.positions == "words"
        self._kind = config.positions
        if self.learned:
            self.table = nn.Parameter(torch.empty(config.max_positions, config.d_model))
            if not self.table.is_meta:
                nn.init.normal_(self.table, std=config.d_model**-0.5)
            return
        width = config.d_model // 2 if self.of_words else config.d_model
        self.register_buffer("table", torch.empty(0, width), persistent=False)
        if self.of_words:
            self.register_buffer("word_table", torch.empty(0, width), persistent=False)
        if not self.table.is_meta:  # a meta table is filled on first use
            self.extend_to(1024, self.table.device)  # and further for a longer sequence

    def _apply(self, *args: Any, **options: Any) -> Self:
        """Convert the module; recompute its sinusoids instead of rounding them to the new dtype."""
        super()._apply(*args, **options)  # type: ignore[no-untyped-call]
        if not self.learned:
            self._tabulate(len(self.table), self.table.device)
        return self

    def forward(self, ids: Tensor, words: Tensor | None = None, packed: Sequences | None = None) -> Tensor:
        """Return encodings (t, d_model) or (b, t, d_model) for ids (b, t), each row a sequence unless `packed`.

        `words` (b, t) are word numbers, at most the sequence's length.
        """
        length = ids.size(1) if packed is None else packed.longest
        self.extend_to(length + (words is not None), ids.device)  # a word number may equal the length
        if packed is None:
            return self._with_words(self.table[:length], words)
        return self._with_words(self.table[packed.positions], words)

    def at(self, positions: Tensor, end: int, words: Tensor | None = None) -> Tensor:
        """Return encodings (b, 1, d_model), or (b, k, d_model) with `words` (b, k), for `positions` (b, 1) < `end`.

        A finished hypothesis may be at `end`, where its encoding is arbitrary.
        """
        self.reserve(end, positions.device)
        if self.learned:
            positions = positions.clamp_max(len(self.table) - 1)  # the table may have no row `end`
        return self._with_words(self.table[positions], words)

    def reserve(self, end: int, device: torch.device) -> None:
        """Extend the table for `at`: to positions up to `end`, or below it if they are learned."""
        self.extend_to(end + (not self.learned), device)

    def tables(self) -> list[Tensor]:
        """Return the tensors that hold encodings; longer ones replace them."""
        if self.of_words:
            return [self.table, self.word_table]
        return [self.table]

    def _with_words(self, encodings: Tensor, words: Tensor | None) -> Tensor:
        """Return encodings of positions with those of word numbers behind them, if there are any."""
        if words is None:
            return encodings
        of_words = self.word_table[words]  # (b, t, d_model / 2)
        return torch.cat((encodings.expand(*words.shape, -1), of_words), dim=-1)

    def extend_to(self, end: int, device: torch.device) -> None:
        """Extend the table to positions below `end`; raise ValueError if fewer encodings were learned."""
        if end <= self.table.size(0):
            return
        if self.learned:
            raise ValueError(f"a sequence of {end} exceeds model.max_positions {self.table.size(0)}")
        self._tabulate(max(end, 2 * self.table.size(0)), device)

    def _tabulate(self, length: int, device: torch.device) -> None:
        width = self.table.size(1)
        dtype = self.table.dtype
        self.table = sinusoids(length, width, dtype, kind=self._kind).to(device)
        if self.of_words:
            self.word_table = sinusoids(length, width, dtype, WORD_BASE).to(device)


def sinusoids(
    length: int, width: int, dtype: torch.dtype = torch.float32, base: float = 10000.0, kind: str = "sinusoidal"
) -> Tensor:
    """Return encodings (length, width): PE(p, 2i) = sin(p / base^(2i / width)), and PE(p, 2i+1) is the cosine.

    In fairseq and Marian, the last rate is 1 / base. In fairseq, all sines come first, and the first position, after
    padding, is 2. `kind` is a value of `model.positions`.
    """
    is_fairseq = kind == "fairseq"
    first = 2 if is_fairseq else 0
    divisor = width - 2 if is_fairseq or kind == "marian" else width
    rates = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / divisor)  # (width / 2,)
    positions = torch.arange(first, length + first, dtype=torch.float64)  # (length,)
    angles = positions[:, None] * rates  # (length, width / 2)
    both = torch.stack((angles.sin(), angles.cos()), dim=1 if is_fairseq else -1)
    return both.flatten(1).to(dtype)


class Dropout(Layer):
    """Dropout with probability p; no-op in evaluation."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    @property
    def rate(self) -> float:
        """The probability p in training, else 0."""
        return self.p if self.training else 0.0

    def forward(self, x: Tensor) -> Tensor:
        return self.operations.dropout(x, self.rate)


class Linear(Layer, nn.Linear):
    """A linear layer: one or several matrices side by side."""

    def __init__(self, inputs: int, *outputs: int, bias: bool) -> None:
        """Initialise a matrix for each number of outputs as Glorot does, and biases with 0."""
        super().__init__(inputs, sum(outputs), bias=bias)
        self.outputs = list(outputs)
        for part in self.weight.split(self.outputs):
            nn.init.xavier_uniform_(part)
        if bias:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.operations.linear(x, self.weight, self.bias)
