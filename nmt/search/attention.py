"""All that a model attends to while it reads a source and writes an output, with the tokens between which it does.

Subwords may be merged to words: the weights of a word's subwords are added where they are attended to, and averaged
where they attend, so that the weights of a word that attends sum to 1 too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmt.model.transformer import Transformer
from nmt.text.linear import TreeVocabulary
from nmt.text.symbols import BOS, EOS
from nmt.text.terms import joins
from nmt.text.tokenizer import AnyVocabulary, Tokenizer
from nmt.text.vocabulary import SPACE_MARK

Kind = Literal["encoder", "decoder", "cross"]
"""Self-attention of the encoder, self-attention of the decoder, and attention of the decoder to the encoder."""


@dataclass(frozen=True)
class Tokens:
    """A sequence of symbols, and how they make up words."""

    tokens: list[str]
    """Subwords as SentencePiece writes them, U+2581 where a word begins, or the symbols of a tree; `<s>`, `</s>`."""
    words: list[str]
    """The words that they spell; a control symbol, a symbol of a tree and punctuation at either end of a word is a word
    of its own."""
    word_of: list[int]
    """For each token, the index of its word."""
    text: str
    """All of it without control symbols."""

    @classmethod
    def of(cls, vocabulary: AnyVocabulary, ids: list[int]) -> Self:
        """Name the symbols of a vocabulary."""
        tokens = vocabulary.pieces(ids)
        starts = _word_starts(vocabulary, ids, tokens)
        word_of = [number - 1 for number in accumulate(map(int, starts))]
        spelled: list[list[int]] = [[] for _ in range(sum(starts))]
        for index, word in zip(ids, word_of, strict=True):
            spelled[word].append(index)
        words = [vocabulary.decode(group).strip() or "".join(vocabulary.pieces(group)) for group in spelled]
        return cls(tokens, words, word_of, vocabulary.decode(ids))

    def by_words(self) -> Self:
        """Return the words as the tokens."""
        return replace(self, tokens=self.words, word_of=list(range(len(self.words))))


@dataclass(frozen=True, eq=False)
class Attention:
    """The attention weights of every layer and head for one pair of sentences (section 3.2 of the paper).

    s counts the source with its `</s>`, and t the steps of the decoder, one more than the output has symbols. Weights
    are fp32; those of a query, along the last axis, sum to 1. Layers and heads are counted from 0.
    """

    source: Tokens
    """(s,) what the encoder reads, `</s>` at the end"""
    target_in: Tokens
    """(t,) what the decoder reads in each step: `<s>`, then the output"""
    target_out: Tokens
    """(t,) what it writes in each step: the output, then `</s>`"""
    encoder: NDArray[np.float32]
    """(layers, heads, s, s), from the source to the source"""
    decoder: NDArray[np.float32]
    """(decoder layers, heads, t, t), from the step that writes a token to what has been read; 0 for later tokens"""
    cross: NDArray[np.float32]
    """(decoder layers, heads, t, s), from the step that writes a token to the source"""

    def by_words(self) -> Attention:
        """Merge subwords to words: weights are added over the attended subwords of a word, and averaged over those
        that attend."""
        source, target_in, target_out = self.source, self.target_in, self.target_out
        return Attention(
            *(source.by_words(), target_in.by_words(), target_out.by_words(), _merged(source, source, self.encoder)),
            *(_merged(target_out, target_in, self.decoder), _merged(target_out, source, self.cross)),
        )


@torch.inference_mode()
def attend(model: Transformer, tokenizer: Tokenizer, source: list[int], output: list[int]) -> Attention:
    """Compute the attention of a model that reads `source` and writes `output`, both ids without `</s>`."""
    read, target_in = [*source, EOS], [BOS, *output]
    device = model.output_embedding.weight.device
    found = model.attention_weights(*(torch.tensor([ids], device=device) for ids in (read, target_in)))
    return Attention(
        Tokens.of(tokenizer.source, read),
        Tokens.of(tokenizer.target, target_in),
        Tokens.of(tokenizer.target, [*output, EOS]),
        *map(_stacked, (found.encoder, found.decoder, found.cross)),
    )


def _stacked(layers: list[Tensor]) -> NDArray[np.float32]:
    """(layers, heads, queries, keys) of the weights of each layer, (1, heads, queries, keys)."""
    return torch.cat(layers).float().cpu().numpy()


def _word_starts(vocabulary: AnyVocabulary, ids: list[int], tokens: list[str]) -> list[bool]:
    """Whether a word begins at each token; punctuation before or after a word is a word of its own."""
    if isinstance(vocabulary, TreeVocabulary):
        return [True] * len(ids)
    control = [index in (BOS, EOS) for index in ids]
    after = [True, *control[:-1]]
    starts = [vocabulary.starts_word(i) or own or behind for i, own, behind in zip(ids, control, after, strict=True)]
    marks = [text != SPACE_MARK and not any(map(joins, text.removeprefix(SPACE_MARK))) for text in tokens]
    for i in range(1, len(ids)):
        starts[i] |= marks[i - 1] and starts[i - 1]
    for i in reversed(range(len(ids))):
        starts[i] |= marks[i] and (i + 1 == len(ids) or starts[i + 1])
    return starts


def _merged(queries: Tokens, keys: Tokens, weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """(…, words that attend, words attended to) of the weights of their subwords."""
    attending, attended = (np.eye(len(side.words), dtype=np.float32)[:, side.word_of] for side in (queries, keys))
    mean = attending / attending.sum(1, keepdims=True)
    merged: NDArray[np.float32] = mean @ weights @ attended.T
    return merged
