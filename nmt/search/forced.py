"""Forced decoding: the probability of given translations, or of given sentences by a language model.

Log-probabilities are those of training: over the whole vocabulary, `</s>` counted, no label smoothing, in nats. The
module knows no files and prints nothing. A sentence's numbers do not depend on what shares its batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from operator import add
from typing import NamedTuple

import torch
from torch import Tensor

from nmt.batch import Batch, in_batches, pad_ids
from nmt.model.functional import log_probabilities, perplexity
from nmt.model.transformer import Transformer
from nmt.recipe import Decoding
from nmt.search.engine import batch_tokens
from nmt.text.lines import in_groups
from nmt.text.symbols import BOS, EOS
from nmt.text.tokenizer import Tokenizer

WINDOW, WINDOW_TEXT = 2048, 1 << 22  # pairs, and roughly characters, that are sorted and scored together
LONGEST_TARGET = 8192  # subwords; the time for a line grows with the square of its length


class PairScores(NamedTuple):
    """What models say of pairs of lines: of one pair, or the sums over several."""

    pairs: int = 0
    log_probability: float = 0.0
    """Of the targets' subwords and `</s>` given the sources, in nats."""
    subwords: int = 0
    """Subwords of the targets that are scored, `</s>` counted; the log-probability is a sum over them."""
    sources_cut: int = 0
    """Sources whose end the models did not see, because it was beyond their limit."""
    targets_cut: int = 0
    """Targets whose end is not scored, because it is beyond the limit."""
    subwords_cut: int = 0
    """Subwords of the targets, `</s>` included, that are not scored."""

    def plus(self, other: PairScores) -> PairScores:
        """Return the sums over the pairs of both."""
        return PairScores(*map(add, self, other))

    @property
    def perplexity(self) -> float:
        """Per subword."""
        return perplexity(-self.log_probability, self.subwords)


class ForcedDecoder:
    """Score given outputs by a model, or by the mean probability of several; all share one tokenizer."""

    def __init__(self, models: Sequence[Transformer], tokenizer: Tokenizer, decoding: Decoding) -> None:
        positions = [model.config.max_positions for model in models if model.config.positions == "learned"]
        self.max_source = min([decoding.max_source, *(longest - 1 for longest in positions)])
        """Most subwords of a source, `</s>` not counted; the rest is cut off."""
        self.max_target = min([max(LONGEST_TARGET, decoding.max_source), *positions])
        """Most subwords of a target, `</s>` counted; the rest is not scored."""
        self._models, self._tokenizer, self._batch_tokens = models, tokenizer, batch_tokens(decoding, models)

    def stream(self, pairs: Iterable[tuple[str, str]]) -> Iterator[PairScores]:
        """Score (source, target) lines as they come, in constant memory; yield one result for each, in order.

        A blank target is `</s>` alone, a blank source too; a language model ignores its source.
        """
        for window in in_groups(pairs, WINDOW, WINDOW_TEXT):
            sources = self._tokenizer.source.encode_all([source.strip() for source, _ in window])
            targets = self._tokenizer.target.encode_all([target.strip() for _, target in window])
            whole = [(source, [*target, EOS]) for source, target in zip(sources, targets, strict=True)]
            cut = [(source[: self.max_source], target[: self.max_target]) for source, target in whole]
            found = log_probabilities_of(self._models, cut, self._batch_tokens)
            for tokens, (source, target) in zip(found, whole, strict=True):
                left_out = len(target) - len(tokens)
                source_cut = len(source) > self.max_source
                yield PairScores(1, float(tokens.sum()), len(tokens), source_cut, left_out > 0, left_out)


@torch.inference_mode()
def log_probabilities_of(
    models: Sequence[Transformer], pairs: Sequence[tuple[list[int], list[int]]], batch_tokens: int
) -> list[Tensor]:
    """(symbols,) fp64 log-probabilities of the symbols of each target, at least one, given its source, ids without
    `</s>`.

    Pairs of similar lengths make a batch. Neither side of it exceeds `batch_tokens`, padding counted, unless the batch
    is a single pair.
    """
    has_source, device = models[0].has_source, models[0].output_embedding.weight.device
    results = [torch.empty(0)] * len(pairs)
    sizes = [(max(len(source) + 1, len(target)), len(target)) for source, target in pairs]
    for rows in in_batches(sizes, batch_tokens):
        sources, targets = zip(*(pairs[row] for row in rows), strict=True)
        target_out = pad_ids(targets)
        batch = Batch(
            source=pad_ids(sources, after=EOS) if has_source else None,
            target_in=pad_ids([target[:-1] for target in targets], before=BOS),
            target_out=target_out,
            real=target_out.flatten().nonzero().flatten(),
        )
        tokens = token_log_probabilities(models, batch.to(device)).double().cpu()
        for row, of_target in zip(rows, tokens.split(list(map(len, targets))), strict=True):
            results[row] = of_target
    return results


def token_log_probabilities(models: Sequence[Transformer], batch: Batch) -> Tensor:
    """(tokens,) log-probability of each target symbol of a batch, row after row, given its source, if any, and those
    before.

    In nats, at least fp32; of several models the logarithm of their mean probability.
    """
    answers = batch.target_out.flatten().index_select(0, batch.real)
    found = []
    for model in models:
        states = model.states(batch.source, batch.target_in).flatten(0, 1).index_select(0, batch.real)
        found.append(log_probabilities(states, model.output_embedding.weight, answers, model.output_bias))
    return torch.stack(found).logsumexp(0) - math.log(len(models))
