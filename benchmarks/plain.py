"""The same models in plain PyTorch, as a textbook writes them: something to compare speed and numbers with.

Post-norm, sinusoids, one embedding for everything. Weights have the names of `nmt.Transformer`, so that both can hold
the same. Everything is padded, and nothing is compiled.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.compute.choice import training_precision
from nmt.data.corpus import Corpus, Rows
from nmt.data.epochs import AHEAD
from nmt.model.batch import Batch, in_batches, pad_ids
from nmt.recipe import Model, Training
from nmt.search.sources import Source
from nmt.text.vocabulary import BOS, EOS, PAD
from nmt.training.batches import make_batch, prefetched, split_update
from nmt.training.optimizer import learning_rate

LONGEST = 1024


class KeysValues(NamedTuple):
    """Of one layer, (batch, heads, length, d_k) each."""

    keys: Tensor
    values: Tensor

    def rows(self, rows: Tensor) -> KeysValues:
        """Those of other hypotheses: copies."""
        return KeysValues(self.keys[rows], self.values[rows])


def heads_of(x: Tensor, heads: int, parts: int) -> tuple[Tensor, ...]:
    """(b, t, parts · d_model) to so many (b, heads, t, d_k)."""
    return x.view(*x.shape[:2], parts * heads, -1).transpose(1, 2).chunk(parts, dim=1)


def joined(x: Tensor) -> Tensor:
    """(b, heads, t, d_k) to (b, t, d_model)."""
    return x.transpose(1, 2).flatten(2)


class SelfAttention(nn.Module):
    def __init__(self, config: Model) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.d_model, 3 * config.d_model, bias=False)
        self.out = nn.Linear(config.d_model, config.d_model, bias=False)

    def forward(self, x: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        query, keys, values = heads_of(self.qkv(x), self.heads, 3)
        mixed = F.scaled_dot_product_attention(query, keys, values, mask, is_causal=causal)
        return self.out(joined(mixed))  # type: ignore[no-any-return]

    def step(self, x: Tensor, past: KeysValues | None) -> tuple[Tensor, KeysValues]:
        query, keys, values = heads_of(self.qkv(x), self.heads, 3)
        if past is not None:
            keys, values = torch.cat((past.keys, keys), 2), torch.cat((past.values, values), 2)
        mixed = F.scaled_dot_product_attention(query, keys, values)
        return self.out(joined(mixed)), KeysValues(keys, values)


class CrossAttention(nn.Module):
    def __init__(self, config: Model) -> None:
        super().__init__()
        self.heads = config.heads
        self.query = nn.Linear(config.d_model, config.d_model, bias=False)
        self.key_value = nn.Linear(config.d_model, 2 * config.d_model, bias=False)
        self.out = nn.Linear(config.d_model, config.d_model, bias=False)

    def keys_values(self, memory: Tensor) -> KeysValues:
        return KeysValues(*heads_of(self.key_value(memory), self.heads, 2))

    def forward(self, x: Tensor, memory: KeysValues, mask: Tensor) -> Tensor:
        (query,) = heads_of(self.query(x), self.heads, 1)
        return self.out(joined(F.scaled_dot_product_attention(query, *memory, mask)))  # type: ignore[no-any-return]


class FeedForward(nn.Module):
    def __init__(self, config: Model) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(config.d_model, config.d_ff), nn.Linear(config.d_ff, config.d_model)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(F.relu(self.inner(x)))  # type: ignore[no-any-return]


class Residual(nn.Module):
    """LayerNorm(x + Dropout(y))."""

    def __init__(self, config: Model) -> None:
        super().__init__()
        self.norm, self.dropout = nn.LayerNorm(config.d_model, eps=1e-6), nn.Dropout(config.dropout)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.norm(x + self.dropout(y))  # type: ignore[no-any-return]


class EncoderLayer(nn.Module):
    def __init__(self, config: Model) -> None:
        super().__init__()
        self.attention, self.feed_forward = SelfAttention(config), FeedForward(config)
        self.attention_residual, self.feed_forward_residual = Residual(config), Residual(config)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.attention_residual(x, self.attention(x, mask, causal=False))
        return self.feed_forward_residual(x, self.feed_forward(x))  # type: ignore[no-any-return]


class DecoderLayer(nn.Module):
    def __init__(self, config: Model) -> None:
        super().__init__()
        self.attention, self.cross = SelfAttention(config), CrossAttention(config)
        self.feed_forward = FeedForward(config)
        self.attention_residual, self.cross_residual = Residual(config), Residual(config)
        self.feed_forward_residual = Residual(config)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        x = self.attention_residual(x, self.attention(x, None, causal=True))
        return self._rest(x, self.cross.keys_values(memory), mask)

    def step(self, x: Tensor, past: KeysValues | None, memory: KeysValues, mask: Tensor) -> tuple[Tensor, KeysValues]:
        mixed, past = self.attention.step(x, past)
        return self._rest(self.attention_residual(x, mixed), memory, mask), past

    def _rest(self, x: Tensor, memory: KeysValues, mask: Tensor) -> Tensor:
        x = self.cross_residual(x, self.cross(x, memory, mask))
        return self.feed_forward_residual(x, self.feed_forward(x))  # type: ignore[no-any-return]


class PlainTransformer(nn.Module):
    """An encoder-decoder with one vocabulary, of up to LONGEST symbols."""

    def __init__(self, config: Model, vocabulary: int) -> None:
        super().__init__()
        self.source_embedding = nn.Embedding(vocabulary, config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.layers))
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.layers))
        rates = 10000.0 ** (-torch.arange(0, config.d_model, 2, dtype=torch.float64) / config.d_model)
        angles = torch.arange(LONGEST, dtype=torch.float64)[:, None] * rates
        table = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)
        self.register_buffer("table", table.float(), persistent=False)

    def take(self, weights: Mapping[str, Tensor]) -> None:
        """Copies the weights of an `nmt.Transformer`, by name."""
        self.load_state_dict({name: weights[name] for name in self.state_dict()})

    def embed(self, ids: Tensor, first: int = 0) -> Tensor:
        """(b, t, d_model) of ids (b, t) at positions from `first` on."""
        words = self.source_embedding(ids) * math.sqrt(self.source_embedding.embedding_dim)
        return self.dropout(words + self.get_buffer("table")[first : first + ids.size(1)])  # type: ignore[no-any-return]

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """States (b, s, d_model), and a mask (b, 1, 1, s) that is true at words."""
        mask, x = (source != PAD)[:, None, None, :], self.embed(source)
        for layer in self.encoder:
            x = layer(x, mask)
        return x, mask

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(x, self.source_embedding.weight)

    def forward(self, source: Tensor, target_in: Tensor) -> Tensor:
        """(b, t, vocabulary)."""
        (memory, mask), x = self.encode(source), self.embed(target_in)
        for layer in self.decoder:
            x = layer(x, memory, mask)
        return self.logits(x)

    @torch.inference_mode()
    def search(self, source: Tensor, beam: int, length: int) -> Tensor:
        """Beam search for outputs of exactly `length` symbols, none of them `</s>`; the best (b, length) of each row.

        Each hypothesis is a row of the batch, and its keys and values are copied where another one takes its place.
        """
        rows = len(source)
        memory, mask = self.encode(source)
        layers: list[DecoderLayer] = list(self.decoder)  # type: ignore[arg-type]
        copies = torch.arange(rows, device=source.device).repeat_interleave(beam)
        crosses = [layer.cross.keys_values(memory).rows(copies) for layer in layers]
        mask = mask[copies]
        past: list[KeysValues | None] = [None] * len(layers)
        outputs = source.new_full((rows * beam, 1), BOS)
        totals = torch.full((rows, beam), -math.inf, device=source.device)
        totals[:, 0] = 0.0  # all would begin alike, so only the first exists
        first = torch.arange(0, rows * beam, beam, device=source.device)[:, None]
        for position in range(length):
            x = self.embed(outputs[:, -1:], position)
            for i, layer in enumerate(layers):
                x, past[i] = layer.step(x, past[i], crosses[i], mask)
            log_probs = self.logits(x[:, 0]).float().log_softmax(-1)
            log_probs[:, EOS] = -math.inf
            vocabulary = log_probs.size(-1)
            totals, chosen = (totals[..., None] + log_probs.view(rows, beam, -1)).flatten(1).topk(beam)
            parents, symbols = (first + chosen // vocabulary).flatten(), (chosen % vocabulary).view(-1, 1)
            outputs = torch.cat((outputs[parents], symbols), 1)
            past = [each and each.rows(parents) for each in past]
        return outputs.view(rows, beam, -1)[:, 0, 1:]


def translate(model: PlainTransformer, sources: list[Source], tokens: int, beam: int, length: int) -> int:
    """Searches in batches of similar lengths, of at most so many padded tokens; the symbols of all outputs."""
    device, symbols = model.source_embedding.weight.device, 0
    for rows in in_batches([(len(source.ids) + 1,) for source in sources], tokens):
        batch = pad_ids([sources[row].ids for row in rows], after=EOS).to(device)
        symbols += sum(map(len, model.search(batch, beam, length).tolist()))
    return symbols


def smoothed_loss(model: Callable[[Tensor | None, Tensor], Tensor], batch: Batch, smoothing: float) -> Tensor:
    """() label-smoothed cross-entropy, summed over the target tokens of a batch."""
    logits, answers = model(batch.source, batch.target_in).flatten(0, 1), batch.target_out.flatten()
    return F.cross_entropy(logits, answers, ignore_index=PAD, reduction="sum", label_smoothing=smoothing)


class PlainTraining:
    """Train a model on updates of a corpus, in padded micro-batches, by the loss that PyTorch has."""

    def __init__(
        self,
        model: PlainTransformer,
        corpus: Corpus,
        settings: Training,
        device_tokens: int,
        device: torch.device,
        compiled: bool,
    ) -> None:
        self._corpus, self._settings, self._device, self._tokens = corpus, settings, device, device_tokens
        self._optimizer = torch.optim.Adam(
            model.parameters(), betas=settings.adam_betas, eps=settings.adam_epsilon, fused=True
        )
        self._model = torch.compile(model, dynamic=True) if compiled else model
        self._width = model.source_embedding.embedding_dim
        self._autocast = training_precision(settings.precision, device, self._width) == "bf16"
        self.step = 0
        model.train()

    def train(self, updates: Iterable[Rows]) -> float:
        """An update of each of these rows of the corpus; seconds of one, the wait for the last one included."""
        began, before = time.perf_counter(), self.step
        with closing(prefetched(((rows, self._batches(rows)) for rows in updates), AHEAD)) as feed:
            for rows, batches in feed:
                self.step += 1
                try:
                    loss = self._update(batches)
                except torch.OutOfMemoryError:
                    self._tokens //= 2
                    print(f"plain PyTorch ran out of memory; now its micro-batches have {self._tokens:,} tokens")
                    self._optimizer.zero_grad()
                    torch.cuda.empty_cache()
                    loss = self._update(self._batches(rows))
        float(loss)
        return (time.perf_counter() - began) / (self.step - before)

    def _update(self, batches: list[Batch]) -> Tensor:
        tokens = sum(int(batch.target_out.count_nonzero()) for batch in batches)
        total = torch.zeros((), device=self._device)
        for batch in batches:
            loss = self._loss(batch.to(self._device)) / tokens
            loss.backward()
            total += loss.detach()
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate(self.step, self._width, self._settings)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return total

    def _loss(self, batch: Batch) -> Tensor:
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._autocast):
            return smoothed_loss(self._model, batch, self._settings.label_smoothing)

    def _batches(self, rows: Rows) -> list[Batch]:
        parts = split_update(*self._corpus.lengths(rows), self._tokens)
        batches = [make_batch(self._corpus, rows[part]) for part in parts]
        return [batch.joined(pinned=True) for batch in batches] if self._device.type == "cuda" else batches
