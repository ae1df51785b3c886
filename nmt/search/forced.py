"""Forced decoding: how probable a model finds given translations, or a language model sentences; nothing is searched.

Log-probabilities are those of training: over the whole vocabulary, `</s>` counted, no label smoothing, in nats. Knows
no files and prints nothing. A sentence's numbers do not depend on what shares its batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nmt.batch import Batch, pad_ids
from nmt.model.likelihood import log_probabilities, perplexity
from nmt.model.transformer import Transformer
from nmt.recipe import Decoding
from nmt.search.engine import batch_tokens
from nmt.text.lines import in_groups
from nmt.text.symbols import BOS, EOS
from nmt.text.tokenizer import Tokenizer

WINDOW, WINDOW_TEXT = 2048, 1 << 22  # pairs, and about their characters, that are sorted and scored together
LONGEST_TARGET = 8192  # subwords; the time that a line takes grows with the square of them


@dataclass(frozen=True)
class PairScore:
    """What a model says of one pair of lines."""

    log_probability: float
    """Of the target's subwords and `</s>` given the source, in nats."""
    subwords: int
    """Of the target, `</s>` counted; all that the log-probability is a sum over."""
    source_cut: int
    """Subwords at the source's end that the model did not see: those beyond its limit."""
    target_cut: int
    """Subwords at the target's end, `</s>` among them, that are not scored: those beyond the limit."""


@dataclass
class Totals:
    """Sums over pairs."""

    pairs: int = 0
    log_probability: float = 0.0
    subwords: int = 0
    """That the log-probability is a sum over."""
    sources_cut: int = 0
    targets_cut: int = 0
    subwords_cut: int = 0
    """Of targets: those that the log-probability lacks."""

    def counted(self, scores: Iterable[PairScore]) -> Iterator[PairScore]:
        """The same scores, each added as it goes by."""
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
    """A model, or an ensemble by the mean of its probabilities, with the tokenizer that all of them share."""

    def __init__(self, models: Sequence[Transformer], tokenizer: Tokenizer, decoding: Decoding) -> None:
        positions = [model.config.max_positions for model in models if model.config.positions == "learned"]
        self.max_source = min([decoding.max_source, *(longest - 1 for longest in positions)])
        """Most subwords of a source, `</s>` not counted; the rest is cut off."""
        self.max_target = min([max(LONGEST_TARGET, decoding.max_source), *positions])
        """Most subwords of a target, `</s>` counted; the rest is not scored."""
        self._models, self._tokenizer, self._batch_tokens = models, tokenizer, batch_tokens(decoding, models)

    def stream(self, pairs: Iterable[tuple[str, str]]) -> Iterator[PairScore]:
        """Scores (source, target) lines as they come, in constant memory; one for each, in order.

        A blank target is `</s>` alone, a blank source too; a language model looks at no source.
        """
        for window in in_groups(pairs, WINDOW, WINDOW_TEXT):
            sources = self._tokenizer.source.encode_all([source.strip() for source, _ in window])
            targets = self._tokenizer.target.encode_all([target.strip() for _, target in window])
            seen = [ids[: self.max_source] for ids in sources]
            scored = [[*ids, EOS][: self.max_target] for ids in targets]
            for log_probability, source, target, source_seen, target_scored in zip(
                self.log_probabilities(seen, scored), sources, targets, seen, scored, strict=True
            ):
                yield PairScore(
                    log_probability,
                    subwords=len(target_scored),
                    source_cut=len(source) - len(source_seen),
                    target_cut=len(target) + 1 - len(target_scored),
                )

    @torch.inference_mode()
    def log_probabilities(self, sources: Sequence[list[int]], targets: Sequence[list[int]]) -> list[float]:
        """Of each of the targets, ids with `</s>`, given its source, ids without; batches are of similar lengths.

        Neither side of a batch exceeds decoding.batch_tokens, padding counted, unless by a pair alone.
        """
        device = next(self._models[0].parameters()).device
        widths = [max(len(source) + 1, len(target)) for source, target in zip(sources, targets, strict=True)]
        by_width = sorted(range(len(widths)), key=lambda i: (widths[i], len(targets[i])), reverse=True)
        results = [0.0] * len(widths)
        while by_width:
            size = max(1, self._batch_tokens // widths[by_width[0]])
            rows, by_width = by_width[:size], by_width[size:]
            chosen = [targets[i] for i in rows]
            seen = [sources[i] for i in rows] if self._models[0].has_source else None
            batch = _make_batch(seen, chosen).to(device)
            found = token_log_probabilities(self._models, batch).double().cpu()
            for row, tokens in zip(rows, found.split([len(target) for target in chosen]), strict=True):
                results[row] = float(tokens.sum())
        return results


def token_log_probabilities(models: Sequence[Transformer], batch: Batch) -> Tensor:
    """(tokens,) log-probability of each target symbol of a batch, row after row, given its source, if any, and those
    before.

    In nats, at least fp32; of several models the logarithm of their mean probability.
    """
    answers = batch.target_out.flatten().index_select(0, batch.real)
    found = []
    for model in models:
        states = model.states(batch.source, batch.target_in).flatten(0, 1)
        found.append(log_probabilities(states.index_select(0, batch.real), model.output_embedding.weight, answers))
    return torch.stack(found).logsumexp(0) - math.log(len(models))


def _make_batch(sources: Sequence[list[int]] | None, targets: Sequence[list[int]]) -> Batch:
    target_out = pad_ids(targets)
    return Batch(
        source=None if sources is None else pad_ids(sources, after=EOS),
        target_in=pad_ids([target[:-1] for target in targets], before=BOS),
        target_out=target_out,
        real=target_out.flatten().nonzero().flatten(),
    )
