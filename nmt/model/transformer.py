"""The encoder-decoder Transformer of *Attention Is All You Need*: ids in, logits out.

Ids: 0 is padding; a source ends in `</s>`; a target input begins with `<s>`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.model.batch import Packing, Sequences
from nmt.model.layers import DecoderLayer, Embed, EncoderLayer, Layer, Positions
from nmt.model.operations import Operations, PackedMask
from nmt.recipe import Model

M = TypeVar("M", bound=nn.Module)
MakeLinear = Callable[[Tensor, Tensor | None], nn.Module]
"""Make a module from the weight (out, in) and bias (out,) of a linear layer."""


class Memory(NamedTuple):
    """The encoder's output."""

    states: Tensor  # (batch, source length, d_model)
    mask: Tensor | None  # (batch, 1, 1, source length), true at tokens; None if packed or unpadded


class AttentionWeights(NamedTuple):
    """A forward pass's attention weights, one tensor per layer; the last dimension sums to 1."""

    encoder: list[Tensor]  # (batch, heads, source length, source length)
    decoder: list[Tensor]  # (batch, heads, target length, target length)
    cross: list[Tensor]  # (batch, heads, target length, source length)


class Lexicon(NamedTuple):
    """Which symbols translate those of sources, for shortlists."""

    translations: Tensor
    """(source vocabulary, n) target symbols: the same symbol, then others, best first; -1 for none"""
    frequent: Tensor
    """(m,) symbols that any output may have, in ascending order: control symbols, bytes and the most frequent ones"""


class Transformer(Layer):
    """The model of section 3.

    Example: `nmt.Transformer(nmt.Model(layers=2, d_model=64, heads=4), source_vocab=1000, target_vocab=1000)`.
    `positions: words` needs `starts`: whether each source and each target symbol begins a word. Raise ValueError if
    `starts` is missing, or if vocabularies of different sizes are to share embeddings.
    """

    lexicon: Lexicon | None = None
    """That of a model's bundle"""

    def __init__(
        self,
        config: Model,
        source_vocab: int,
        target_vocab: int,
        starts: tuple[Sequence[bool], Sequence[bool]] | None = None,
    ) -> None:
        super().__init__()
        if config.tie_embeddings == "all" and source_vocab != target_vocab:
            raise ValueError(f"tie_embeddings: all needs one vocabulary, these have {source_vocab} and {target_vocab}")
        self.config = config
        tie = config.tie_embeddings
        d_model = config.d_model
        self.source_embedding = _embedding(source_vocab, d_model)
        self.target_embedding = self.source_embedding if tie == "all" else _embedding(target_vocab, d_model)
        self.output_embedding = _embedding(target_vocab, d_model) if tie == "none" else self.target_embedding
        self.output_bias = nn.Parameter(torch.zeros(target_vocab)) if config.output_bias else None
        self._starts: list[Tensor] | None = None  # which source and target symbols begin a word
        if config.positions == "words":
            if starts is None or [len(side) for side in starts] != [source_vocab, target_vocab]:
                raise ValueError("positions: words needs `starts`, which say of every symbol whether it begins a word")
            self._starts = [torch.tensor(side, device="cpu") for side in starts]  # real even in a meta model
        self.source_positions = Positions(config)
        self.target_positions = Positions(config)
        self.embed = Embed(config)
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.layers))
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder_depth))
        self.encoder_norm = _last_norm(config)
        self.decoder_norm = _last_norm(config)

    def forward(self, source: Tensor, target_in: Tensor) -> Tensor:
        """Return the logits of every next target symbol: (batch, target length, target vocabulary).

        `source` (batch, source length) and `target_in` (batch, target length) are padded with 0 at the end.
        """
        return self.logits(self.states(source, target_in))

    def logits(self, states: Tensor) -> Tensor:
        """Return the logits (…, target vocabulary) of states (…, d_model), by the softmax layer of section 3.4."""
        return self.operations.linear(states, self.output_embedding.weight, self.output_bias)

    def log_probabilities(self, states: Tensor, targets: Tensor) -> Tensor:
        """Return the log-probability of each of `targets` (tokens,) given its state (tokens, d_model).

        In nats and at least fp32. Not for training: autograd would keep all logits.
        """
        rows = self.operations.chunk_rows(len(self.output_embedding.weight))
        wide = torch.promote_types(states.dtype, torch.float32)
        found = []
        for part, answers in zip(states.split(rows), targets.split(rows), strict=True):
            found.append(-F.cross_entropy(self.logits(part).to(wide), answers, reduction="none"))
        return torch.cat(found)

    def states(self, source: Tensor, target_in: Tensor, packing: Packing | None = None) -> Tensor:
        """Return the states before the softmax layer: (batch, target length, d_model).

        With `packing`, the batch is a single row of sequences that do not attend to each other.
        """
        memory = self.encode(source, packed=packing and packing.source)
        return self.decode_states(target_in, memory, packing=packing)

    def encode(self, source: Tensor, record: list[Tensor] | None = None, packed: Sequences | None = None) -> Memory:
        """Encode `source` (batch, source length)."""
        mask: Tensor | None = None
        seen: Tensor | PackedMask | None
        if packed is None:
            mask = self.operations.padding_mask(source)
            seen = mask
        else:
            seen = PackedMask(packed, packed)
        x = self.embed_source(source, packed)
        return Memory(self.encode_embedded(x, seen, record), mask)

    def embed_source(self, source: Tensor, packed: Sequences | None = None) -> Tensor:
        """Return the encoder's inputs (batch, source length, d_model)."""
        words = None
        if self._starts is not None:
            begun = _count_words(self._begins(0, source), packed)
            words = (begun - 1).clamp_min_(0)  # 0 also before the first word begins
        positions = self.source_positions(source, words, packed)
        return self.embed(source, self.source_embedding.weight, positions)  # type: ignore[no-any-return]

    def encode_embedded(
        self, x: Tensor, seen: Tensor | PackedMask | None, record: list[Tensor] | None = None
    ) -> Tensor:
        """Apply the encoder's layers to inputs x (batch, source length, d_model); `seen` is the mask of attention."""
        for layer in self.encoder:
            x = layer(x, seen, record)
        return self.operations.encoded(self.encoder_norm(x))

    def decode_states(
        self,
        ids: Tensor,
        memory: Memory,
        record: tuple[list[Tensor], list[Tensor]] | None = None,
        packing: Packing | None = None,
    ) -> Tensor:
        """Return the states before the softmax layer, (batch, length, d_model), for target ids (batch, length)."""
        x = self._embed_target(ids, packing and packing.target)
        own: PackedMask | None = None
        seen: Tensor | PackedMask | None = memory.mask
        if packing is not None:
            own = PackedMask(packing.target, packing.target)
            seen = PackedMask(packing.target, packing.source)
        for layer in self.decoder_layers():
            x = layer(x, memory.states, seen, record, own)
        return self.decoder_norm(x)  # type: ignore[no-any-return]

    def begins_word(self, symbols: Tensor) -> Tensor | None:
        """Return whether each target symbol begins a word; None unless `positions: words`."""
        if self._starts is None:
            return None
        return self._begins(1, symbols)

    def attention_weights(self, source: Tensor, target_in: Tensor) -> AttentionWeights:
        """Return the attention weights of every head and layer, without dropout even in training mode."""
        weights = AttentionWeights([], [], [])
        model = computed_by(self, self.operations).eval()  # a copy, which leaves the mode of this one
        memory = model.encode(source, weights.encoder)
        model.decode_states(target_in, memory, record=(weights.decoder, weights.cross))
        return weights

    def cross_attention(self, source: Tensor, target_in: Tensor) -> Tensor:
        """Return cross-attention weights for word alignment: (batch, target length, source length).

        They are averaged over heads and layers, except the first of several layers, which knows the output least.
        """
        memory = self.encode(source)
        x = self._embed_target(target_in)
        found: list[Tensor] = []
        for layer in self.decoder_layers():
            weights: list[Tensor] = []
            x = layer(x, memory.states, memory.mask, ([], weights))
            found.append(weights[0].mean(1))
        return torch.stack(found[1:] or found).mean(0)

    def tables(self) -> list[Tensor]:
        """Return the tensors that the model reads beside its parameters; longer ones replace those of positions."""
        return [*self.source_positions.tables(), *self.target_positions.tables(), *(self._starts or ())]

    def reserve(self, length: int) -> None:
        """Extend the tables of positions, so that no sequence of at most `length` symbols replaces them.

        A CUDA graph would go on reading the replaced ones.
        """
        for positions in (self.source_positions, self.target_positions):
            if not positions.learned:
                positions.reserve(length, positions.table.device)

    def narrowed(self, symbols: int) -> Transformer:
        """Return a copy that shares all parameters and outputs only the first `symbols` of the target vocabulary.

        Those are the symbols that a language had before others were added.
        """
        if symbols == len(self.output_embedding.weight):
            return self
        changed = copy.copy(self)
        changed._modules = dict(self._modules)
        changed._parameters = dict(self._parameters)
        changed.output_embedding = nn.Embedding.from_pretrained(self.output_embedding.weight.detach()[:symbols])
        if self.output_bias is not None:
            changed.output_bias = nn.Parameter(self.output_bias.detach()[:symbols], requires_grad=False)
        return changed

    def decoder_layers(self) -> list[DecoderLayer]:
        """Return the layers of the decoder, the first one first."""
        return list(self.decoder)  # type: ignore[arg-type]

    def _embed_target(self, ids: Tensor, packed: Sequences | None = None) -> Tensor:
        words = None
        if self._starts is not None:
            words = _count_words(self._begins(1, ids), packed)  # the number of words begun is the index of the next
        positions = self.target_positions(ids, words, packed)
        return self.embed(ids, self.target_embedding.weight, positions)  # type: ignore[no-any-return]

    def _begins(self, side: int, ids: Tensor) -> Tensor:
        """Return whether each id begins a word; `side` is 0 for the source, 1 for the target."""
        assert self._starts is not None
        self._starts[side] = starts = self._starts[side].to(ids.device)
        return starts[ids]


def computed_by(module: M, operations: Operations, linear: MakeLinear | None = None) -> M:
    """Return a copy of a model, or of a part of one, that shares all parameters and computes through `operations`.

    If `linear` is given, it makes the linear layers. The copy is not compiled, and has a training mode of its own.
    """
    if linear is not None and isinstance(module, nn.Linear):
        return cast(M, linear(module.weight, module.bias))
    changed = copy.copy(module)
    if isinstance(changed, Layer):
        changed.operations = operations
    changed._buffers = dict(module._buffers)  # a longer table of positions is the copy's own
    changed._modules = {
        name: child and computed_by(child, operations, linear) for name, child in module._modules.items()
    }
    return changed


def parameter_groups(model: Transformer) -> dict[str, int]:
    """Count the parameters of embeddings, encoder and decoder; a shared matrix counts once."""
    groups = {"embeddings": 0, "encoder": 0, "decoder": 0}
    for name, parameter in model.named_parameters():  # yields a shared tensor once
        groups[part_of(name)] += parameter.numel()
    return {part: size for part, size in groups.items() if size}


def part_of(name: str) -> str:
    """Return whether a parameter is part of the encoder, the decoder or the embeddings, by its name."""
    part = name.split(".")[0].removesuffix("_norm")
    if part in ("encoder", "decoder"):
        return part
    return "embeddings"


def _count_words(begins: Tensor, packed: Sequences | None) -> Tensor:
    """Count the words begun in each sequence up to each symbol; `begins` (batch, length) marks words' first symbols."""
    counts = begins.cumsum(1)
    if packed is None:
        return counts
    first = torch.arange(begins.size(1), device=begins.device) - packed.positions  # index where each sequence begins
    return counts - (counts - begins.long()).gather(1, first)


def _last_norm(config: Model) -> nn.Module:
    """Return the norm after a stack; only pre-norm needs one, because its residual stream is never normalised."""
    if config.norm == "pre":
        return nn.LayerNorm(config.d_model, eps=config.norm_epsilon)
    return nn.Identity()


def _embedding(vocabulary: int, d_model: int) -> nn.Embedding:
    weight = torch.empty(vocabulary, d_model)
    if weight.is_meta:  # initialising it would import half of PyTorch, which takes a second
        return nn.Embedding.from_pretrained(weight, freeze=False)  # type: ignore[no-any-return]
    embedding = nn.Embedding(vocabulary, d_model)
    nn.init.normal_(embedding.weight, std=d_model**-0.5)
    return embedding
