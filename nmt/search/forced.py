"""Forced decoding: the probability of given translations, or of given sentences by a language model.

Log-probabilities are those of training: over the whole vocabulary, `</s>` counted, no label smoothing, in nats. The
module knows no files and prints nothing. A sentence's numbers do not depend on what shares its batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nmt.batch import Batch, in_batches, pad_ids
from nmt.model.likelihood import log_probabilities, perplexity
from nmt.model.transformer import Transformer
from nmt.recipe import Decoding
from nmt.search.engine import batch_tokens
from nmt.text.lines import in_groups
from nmt.text.symbols import BOS, EOS
from nmt.text.tokenizer import Tokenizer

WINDOW, WINDOW_TEXT = 2048, 1 << 22  # pairs, and roughly characters, that are sorted and scored together
LONGEST_TARGET = 8192  # subwords; the time for a line grows with the square of its length


@dataclass(frozen=True)
class PairScore:
    """What a model says of one pair of lines."""

    log_probability: float
    """Of the target's subwords and `</s>` given the source, in nats."""
    subwords: int
    """Subwords of the target that are scored, `</s>` counted; the log-probability is a sum over them."""
    source_cut: int
    """Subwords at the end of the source that the model did not see, because they were beyond its limit."""
    target_cut: int
    """Subwords at the end of the target, `</s>` included, that are not scored, because they are beyond the limit."""


@dataclass
class Totals:
    """Sums over pairs."""

    pairs: int = 0
    log_probability: float = 0.0
    subwords: int = 0
    """Scored ones, of the targets."""
    sources_cut: int = 0
    targets_cut: int = 0
    subwords_cut: int = 0
    """Subwords of the targets that are not scored."""

    def counted(self, scores: Iterable[PairScore]) -> Iterator[PairScore]:
        """The same scores; each is added when it is taken."""
        for score in scores:
            self.pairs += 1
            self.log_probability += score.log_probability
            self.subwords += score.subwords
            self.sources_cut += score.source_cut > 0
            self.targets_cut += score.target_cut > 0
            self.subwords_cut += score.target_cut
            yield score

    @property
    def perplexity(self) -> float:
        """Per subword."""
        return perplexity(-self.log_probability, self.subwords)


class ForcedDecoder:
    """Scores given outputs by a model, or by the mean probability of several; all share one tokenizer."""

    def __init__(self, models: Sequence[Transformer], tokenizer: Tokenizer, decoding: Decoding) -> None:
        positions = [model.config.max_positions for model in models if model.config.positions == "learned"]
        self.max_source = min([decoding.max_source, *(longest - 1 for longest in positions)])
        """Most subwords of a source, `</s>` not counted; the rest is cut off."""
        self.max_target = min([max(LONGEST_TARGET, decoding.max_source), *positions])
        """Most subwords of a target, `</s>` counted; the rest is not scored."""
        self._models, self._tokenizer, self._batch_tokens = models, tokenizer, batch_tokens(decoding, models)

    def stream(self, pairs: Iterable[tuple[str, str]]) -> Iterator[PairScore]:
        """Scores (source, target) lines as they come, in constant memory; one for each, in order.

        A blank target is `</s>` alone, a blank source too; a language model ignores its source.
        """
        for window in in_groups(pairs, WINDOW, WINDOW_TEXT):
            sources = self._tokenizer.source.encode_all([source.strip() for source, _ in window])
            targets = self._tokenizer.target.encode_all([target.strip() for _, target in window])
            whole = [(source, [*target, EOS]) for source, target in zip(sources, targets, strict=True)]
            cut = [(source[: self.max_source], target[: self.max_target]) for source, target in whole]
            scored = zip(self.log_probabilities(cut), whole, cut, strict=True)
            for log_probability, (source, target), (source_cut, target_cut) in scored:
                yield PairScore(
                    log_probability,
                    subwords=len(target_cut),
                    source_cut=len(source) - len(source_cut),
                    target_cut=len(target) - len(target_cut),
                )

    def log_probabilities(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[float]:
        """The log-probability of each target, ids with `</s>`, given its source, ids without."""
        return [float(tokens.sum()) for tokens in log_probabilities_of(self._models, pairs, self._batch_tokens)]


@torch.inference_mode()
def log_probabilities_of(
    models: Sequence[Transformer], pairs: Sequence[tuple[list[int], list[int]]], batch_tokens: int
) -> list[Tensor]:
    """(symbols,) fp64 log-probabilities of the symbols of each target, at least one, given its source, ids without
    `</s>`.

    Pairs of similar lengths make a batch. Neither side of it exceeds `batch_tokens`, padding counted, unless the batch
    is a single pair.
    """
    results = [torch.empty(0)] * len(pairs)
    sizes = [(max(len(source) + 1, len(target)), len(target)) for source, target in pairs]
    for rows in in_batches(sizes, batch_tokens):
        tokens = token_log_probabilities(models, _make_batch(models[0], [pairs[row] for row in rows])).double().cpu()
        for row, of_target in zip(rows, tokens.split([len(pairs[row][1]) for row in rows]), strict=True):
            results[row] = of_target
    return results


def _make_batch(model: Transformer, pairs: Sequence[tuple[list[int], list[int]]]) -> Batch:
    target_out = pad_ids([target for _, target in pairs])
    batch = Batch(
        source=pad_ids([source for source, _ in pairs], after=EOS) if model.has_source else None,
        target_in=pad_ids([target[:-1] for _, target in pairs], before=BOS),
        target_out=target_out,
        real=target_out.flatten().nonzero().flatten(),
    )
    return batch.to(model.output_embedding.weight.device)


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
