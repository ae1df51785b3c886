"""Forced decoding: log-probabilities, alignments and attention weights for given outputs.

Log-probabilities are in nats, computed as in training, over the whole vocabulary, but without label smoothing. A
sentence's results do not depend on its batch mates.

`compute.choice.for_scoring` chooses how a model computes them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import add
from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmt.compute.choice import for_scoring
from nmt.decoding.engine import most_positions
from nmt.formats.letter_case import pair_as_usual
from nmt.model.batch import Batch, in_batches, pad_ids
from nmt.model.operations import perplexity
from nmt.model.transformer import Transformer
from nmt.recipe import Decoding
from nmt.search.sources import Found, Hypothesis
from nmt.search.way import batch_tokens
from nmt.system.errors import UserError
from nmt.text.lines import in_groups
from nmt.text.scripts import joins
from nmt.text.tokenizer import Direction, Tokenizer
from nmt.text.vocabulary import BOS, EOS, SPACE_MARK, TargetVocabulary, Vocabulary

WINDOW = 2048  # upper bound on pairs per window
WINDOW_TEXT = 1 << 22  # upper bound, roughly, on characters per window
LONGEST_TARGET = 8192  # subwords; time per line is quadratic in its length

Pair = tuple[list[int], list[int]]  # ids of a source and of an output


class PairScores(NamedTuple):
    """Scores of one pair of lines, or their sums over several pairs."""

    pairs: int = 0
    log_probability: float = 0.0  # log-probability of the targets, including `</s>`, given the sources, in nats
    subwords: int = 0  # scored target subwords, including `</s>`
    sources_cut: int = 0  # sources truncated to the models' limit
    targets_cut: int = 0  # targets truncated to the limit
    subwords_cut: int = 0  # target subwords beyond the limit, including `</s>`, that are not scored

    def plus(self, other: PairScores) -> PairScores:
        """Add `other` field by field."""
        return PairScores(*map(add, self, other))

    @property
    def perplexity(self) -> float:
        """Perplexity per subword."""
        return perplexity(-self.log_probability, self.subwords)


class ForcedDecoder:
    """Scorer of given outputs with one model, or with the mean probability of several that share a tokenizer."""

    def __init__(
        self,
        models: Sequence[Transformer],
        tokenizer: Tokenizer,
        decoding: Decoding,
        direction: Direction = (None, None),
    ) -> None:
        """Score with models of one direction, or of several in the given one."""
        positions = most_positions(model.config for model in models)
        self.max_source = min(decoding.max_source, positions - 1)
        """Maximum source length in subwords, excluding `</s>`; longer sources are truncated."""
        self.max_target = min(max(LONGEST_TARGET, decoding.max_source), positions)
        """Maximum target length in subwords, including `</s>`; the rest is not scored."""
        self._direction = direction
        source, target = direction
        self._source = tokenizer.of(source).source
        self._target = tokenizer.of(target).target
        self._models = [for_scoring(model.narrowed(len(self._target))) for model in models]
        self._first_of_source, self._first_of_target = tokenizer.first(direction)
        self._batch_tokens = batch_tokens(decoding, models)

    def stream(self, pairs: Iterable[tuple[str, str]]) -> Iterator[PairScores]:
        """Score (source, target) lines as they arrive, in constant memory; yield one result per pair, in order.

        A blank source or target is encoded as `</s>` alone. Raise UserError naming the line if a log-probability is not
        a finite number.
        """
        line = 0
        for window in in_groups(pairs, WINDOW, WINDOW_TEXT):
            whole = self._encode(window)
            cut = [(source[: self.max_source], target[: self.max_target]) for source, target in whole]
            found = log_probabilities_of(self._models, cut, self._batch_tokens)
            for tokens, (source, target) in zip(found, whole, strict=True):
                line += 1
                left_out = len(target) - len(tokens)
                tokens = tokens[len(self._first_of_target) :]  # the symbol of its language is not scored
                total = float(tokens.sum())
                if not math.isfinite(total):
                    hint = "use a model whose training did not diverge, such as an older checkpoint"
                    raise UserError(f"line {line:,}: its log-probability is {total}", hint)
                yield PairScores(1, total, len(tokens), len(source) > self.max_source, left_out > 0, left_out)

    def _encode(self, pairs: Sequence[tuple[str, str]]) -> list[Pair]:
        """Encode lines with the symbols of their languages; targets end in `</s>`."""
        vocabularies = (self._source, self._target)
        usual = [pair_as_usual(pair, vocabularies, self._direction) for pair in pairs]
        sources = self._source.encode_all([source.strip() for source, _ in usual])
        targets = self._target.encode_all([target.strip() for _, target in usual])
        return [
            (self._first_of_source + source, [*self._first_of_target, *target, EOS])
            for source, target in zip(sources, targets, strict=True)
        ]


@torch.inference_mode()
def log_probabilities_of(models: Sequence[Transformer], pairs: Sequence[Pair], batch_tokens: int) -> list[Tensor]:
    """Return fp64 log-probabilities (symbols,) of each non-empty target given its source; sources exclude `</s>`.

    Pairs of similar length share a batch, of at most `batch_tokens` padded tokens per side unless it is a single pair.
    Symbols beyond the models' last position have none.
    """
    sizes = [(max(len(source) + 1, len(target)), len(target)) for source, target in pairs]  # as `in_batches` sorts by
    results = [torch.empty(0)] * len(pairs)
    for rows, batch in _batches(models, pairs, sizes, batch_tokens):
        tokens = token_log_probabilities(models, batch).double().cpu()
        lengths = batch.target_out.count_nonzero(1).tolist()  # without padding, which is 0
        for row, of_target in zip(rows, tokens.split(lengths), strict=True):
            results[row] = of_target
    return results


def _batches(
    models: Sequence[Transformer], pairs: Sequence[Pair], sizes: Sequence[tuple[int, ...]], most: int
) -> Iterator[tuple[Sequence[int], Batch]]:
    """Yield rows of pairs of similar `sizes`, and their batch, in which targets end at the models' last position."""
    positions = most_positions(model.config for model in models)
    device = models[0].output_embedding.weight.device
    for rows in in_batches(sizes, most):
        targets = [pairs[row][1][:positions] for row in rows]
        target_out = pad_ids(targets)
        batch = Batch(
            source=pad_ids([pairs[row][0] for row in rows], after=EOS),
            target_in=pad_ids([target[:-1] for target in targets], before=BOS),
            target_out=target_out,
            real=target_out.flatten().nonzero().flatten(),
        )
        yield rows, batch.to(device)


def token_log_probabilities(models: Sequence[Transformer], batch: Batch) -> Tensor:
    """Return (tokens,), the log-probability of each target symbol in a batch given its source and preceding symbols.

    Log-probabilities are in nats, row by row, in fp32 or better. The probabilities of several models are averaged.
    """
    assert batch.real is not None, "the batch is packed"
    answers = batch.target_out.flatten().index_select(0, batch.real)
    found = []
    for model in models:
        states = model.states(batch.source, batch.target_in).flatten(0, 1).index_select(0, batch.real)
        found.append(model.log_probabilities(states, answers))
    return torch.stack(found).logsumexp(0) - math.log(len(models))


TOKENS_AT_ONCE = 4096  # batch size for annotation, in padded tokens; for attention, those of both sides


def annotate(models: Sequence[Transformer], found: Sequence[Found]) -> list[Found]:
    """Return `found` with alignments and per-symbol log-probabilities added to its hypotheses.

    Both are None for symbols beyond the models' last position, as a text with terms may have. `models` compute both in
    full precision, whatever the precision of the search.
    """
    done = [(source, list(hypotheses)) for source, hypotheses in found]
    pairs: list[Pair] = []
    homes: list[tuple[list[Hypothesis], int]] = []  # where the hypothesis of each pair is
    for source, hypotheses in done:
        for rank, each in enumerate(hypotheses):
            if each.ids:
                pairs.append((source.ids, each.ids))
                homes.append((hypotheses, rank))
    weights = attention_of(models, pairs)
    scores = log_probabilities_of(models, pairs, TOKENS_AT_ONCE)
    for (hypotheses, rank), of_subwords, of_symbols in zip(homes, weights, scores, strict=True):
        each = hypotheses[rank]
        alignment = of_subwords.argmax(-1).tolist()
        beyond = [None] * (len(each.ids) - len(alignment))
        log_probabilities = of_symbols.tolist() + beyond
        hypotheses[rank] = replace(each, alignment=alignment + beyond, log_probabilities=log_probabilities)
    return done


@torch.inference_mode()
def attention_of(models: Sequence[Transformer], pairs: Sequence[Pair]) -> list[Tensor]:
    """Return each pair's cross-attention weights (output subwords, source subwords), by which they are aligned.

    They are averaged over heads, models and all decoder layers but the first, which knows the output least. Neither
    side includes `</s>`, and attention to it is left out. Subwords beyond the models' last position have none.
    """
    sizes = [(len(source) + len(output) + 1,) for source, output in pairs]
    found = [torch.empty(0)] * len(pairs)
    for rows, batch in _batches(models, pairs, sizes, TOKENS_AT_ONCE):
        by_model = [model.cross_attention(batch.source, batch.target_in) for model in models]
        mean = torch.stack(by_model).mean(0).cpu()  # (rows, output length, source length), both padded
        for row, weights in zip(rows, mean, strict=True):
            source, output = pairs[row]
            found[row] = weights[: len(output), : len(source)]
    return found


@dataclass(frozen=True)
class Tokens:
    """Sequence of symbols and their grouping into words."""

    tokens: list[str]  # subwords, with U+2581 where a word begins, or tree symbols; includes `<s>` and `</s>`
    words: list[str]  # spelled by the tokens; control symbols, tree symbols and punctuation at word edges are words
    word_of: list[int]  # index of each token's word
    text: str  # decoded text, without control symbols

    @classmethod
    def of(cls, vocabulary: TargetVocabulary, ids: list[int]) -> Self:
        """Look up `ids` in a vocabulary and group them into words."""
        tokens = vocabulary.pieces(ids)
        starts = _word_starts(vocabulary, ids, tokens)
        of_words: list[list[int]] = []  # ids
        word_of = []
        for index, is_start in zip(ids, starts, strict=True):
            if is_start:
                of_words.append([])
            of_words[-1].append(index)
            word_of.append(len(of_words) - 1)
        words = [vocabulary.decode(own).strip() or "".join(vocabulary.pieces(own)) for own in of_words]
        return cls(tokens, words, word_of, vocabulary.decode(ids))

    def by_words(self) -> Self:
        """Return the sequence with whole words as tokens."""
        return replace(self, tokens=self.words, word_of=list(range(len(self.words))))


@dataclass(frozen=True, eq=False)
class Attention:
    """Attention weights of all layers and heads for one sentence pair (section 3.2 of the paper).

    s is the source length including `</s>`; t is the number of decoder steps, the output length plus 1. Weights are
    fp32 and sum to 1 over the last axis, the keys. Layer and head indices are 0-based.
    """

    source: Tokens
    """(s,) encoder input: the source, then `</s>`."""
    target_in: Tokens
    """(t,) decoder input: `<s>`, then the output."""
    target_out: Tokens
    """(t,) decoder output: the output, then `</s>`."""
    encoder: NDArray[np.float32]
    """(layers, heads, s, s), encoder self-attention."""
    decoder: NDArray[np.float32]
    """(decoder layers, heads, t, t), self-attention from `target_out` to `target_in`; 0 at later tokens."""
    cross: NDArray[np.float32]
    """(decoder layers, heads, t, s), cross-attention from `target_out` to `source`."""
    log_probabilities: NDArray[np.float64]
    """(t,) log-probabilities of `target_out`, each given the source and the tokens before it, in nats."""

    def by_words(self) -> Attention:
        """Merge subwords into words: sum weights over each key word's subwords, average over each query word's.

        A word's log-probability is the sum over its subwords.
        """
        return Attention(
            self.source.by_words(),
            self.target_in.by_words(),
            self.target_out.by_words(),
            encoder=_merged(self.source, self.source, self.encoder),
            decoder=_merged(self.target_out, self.target_in, self.decoder),
            cross=_merged(self.target_out, self.source, self.cross),
            log_probabilities=np.bincount(self.target_out.word_of, self.log_probabilities).astype(np.float64),
        )


@torch.inference_mode()
def attend(model: Transformer, tokenizer: Tokenizer, source: list[int], output: list[int]) -> Attention:
    """Compute a model's attention weights and log-probabilities for `source` and `output`, ids without `</s>`."""
    encoder_in = [*source, EOS]
    target_in = [BOS, *output]
    target_out = [*output, EOS]
    device = model.output_embedding.weight.device
    model = for_scoring(model)
    weights = model.attention_weights(
        torch.tensor([encoder_in], device=device), torch.tensor([target_in], device=device)
    )
    (log_probabilities,) = log_probabilities_of([model], [(source, target_out)], TOKENS_AT_ONCE)
    return Attention(
        Tokens.of(tokenizer.source, encoder_in),
        Tokens.of(tokenizer.target, target_in),
        Tokens.of(tokenizer.target, target_out),
        encoder=_by_layer(weights.encoder),
        decoder=_by_layer(weights.decoder),
        cross=_by_layer(weights.cross),
        log_probabilities=log_probabilities.numpy(),
    )


def _by_layer(weights: list[Tensor]) -> NDArray[np.float32]:
    """Join the weights of a sentence's layers, (1, heads, queries, keys) each, to (layers, heads, queries, keys)."""
    joined: NDArray[np.float32] = torch.cat(weights).float().cpu().numpy()
    return joined


def _word_starts(vocabulary: TargetVocabulary, ids: list[int], tokens: list[str]) -> list[bool]:
    """Return whether each token begins a word; punctuation at a word's edge is a word of its own."""
    if not isinstance(vocabulary, Vocabulary):  # tree symbols
        return [True] * len(ids)
    starts = []
    marks = []  # whether each token is punctuation
    is_after_control = True
    for index, token in zip(ids, tokens, strict=True):
        is_control = index in (BOS, EOS)
        starts.append(token.startswith(SPACE_MARK) or is_control or is_after_control)
        marks.append(token != SPACE_MARK and not any(map(joins, token.removeprefix(SPACE_MARK))))
        is_after_control = is_control
    for i in range(1, len(ids)):  # behind punctuation that begins a word, another begins
        starts[i] |= marks[i - 1] and starts[i - 1]
    for i in reversed(range(len(ids))):  # so does punctuation before the beginning of another word, or at the end
        starts[i] |= marks[i] and (i + 1 == len(ids) or starts[i + 1])
    return starts


def _merged(queries: Tokens, keys: Tokens, weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """Merge weights between subwords into (…, query words, key words)."""
    query_subwords = _members(queries)
    mean = query_subwords / query_subwords.sum(1, keepdims=True)
    merged: NDArray[np.float32] = mean @ weights @ _members(keys).T
    return merged


def _members(tokens: Tokens) -> NDArray[np.float32]:
    """Return (words, subwords): 1 where a subword belongs to a word, else 0."""
    return np.eye(len(tokens.words), dtype=np.float32)[:, tokens.word_of]
