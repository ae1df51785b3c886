"""What a model says of each subword of an output that is found: where it attends in its source, how probable it is.

An alignment is cross-attention of the decoder's penultimate layer, heads averaged, at the step that outputs the subword
(Garg et al. 2019, section 4.1). The model was not trained to align, so it is only an indication.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace

import torch

from nmt.batch import in_batches, pad_ids
from nmt.model.transformer import Transformer
from nmt.search.feed import Engine, Feed, Hypothesis, Source
from nmt.search.forced import log_probabilities_of
from nmt.text.symbols import BOS, EOS

TOKENS = 4096  # of both sides, padding counted, that are aligned together

Found = tuple[int, list[Hypothesis]]


class AnnotatingEngine:
    """Adds alignments and log-probabilities of symbols to the hypotheses of an engine, by the models that it searches
    with; they are computed in full precision, whatever the precision of the search."""

    def __init__(self, engine: Engine, models: Sequence[Transformer]) -> None:
        self._engine, self._models = engine, models

    def search(self, feed: Feed, n_best: int) -> Generator[Found, None, None]:
        """See `feed.Engine`."""
        yield from self._annotated(feed, lambda held: self._engine.search(held, n_best))

    def sample(self, feed: Feed, count: int) -> Generator[Found, None, None]:
        """See `feed.Engine`."""
        yield from self._annotated(feed, lambda held: self._engine.sample(held, count))

    def _annotated(self, feed: Feed, search: Callable[[Feed], Generator[Found, None, None]]) -> Iterator[Found]:
        held = _Held(feed)
        while not held.over:  # the engine's search also ends before it would wait while hypotheses are held
            with closing(search(held)) as found:
                for number, hypotheses in found:
                    held.put(number, hypotheses)
                    if held.starved or held.tokens >= TOKENS:
                        yield from self._annotate(held)
            yield from self._annotate(held)

    def _annotate(self, held: _Held) -> list[Found]:
        """Releases what is held, with what is added."""
        sources, found = held.release()
        pairs = [
            (source.ids, h.ids) for source, (_, hypotheses) in zip(sources, found, strict=True) for h in hypotheses
        ]
        alignments, scores = iter(align(self._models, pairs)), iter(probabilities(self._models, pairs))
        return [
            (
                number,
                [replace(h, alignment=next(alignments), log_probabilities=next(scores)) for h in hypotheses],
            )
            for number, hypotheses in found
        ]


class _Held:
    """A feed that remembers its sources, and holds the hypotheses of them that have not been released yet."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._sources: dict[int, Source] = {}
        self._found: list[Found] = []
        self.tokens = 0
        """Of both sides of what is held"""
        self.starved = False
        """Whether the feed had nothing more when it was last asked, so that waiting gains nothing"""
        self.over = False
        """Whether the feed has ended the search"""

    def take(self, tokens: int, wait: bool) -> list[Source]:
        """See `feed.Feed`."""
        if wait and self._found:
            return []
        taken = self._feed.take(tokens, wait)
        self._sources.update({source.number: source for source in taken})
        self.starved = not taken
        self.over = wait and not taken
        return taken

    def put(self, number: int, hypotheses: list[Hypothesis]) -> None:
        """Holds the hypotheses of a source."""
        self._found.append((number, hypotheses))
        self.tokens += sum(len(self._sources[number].ids) + len(hypothesis.ids) for hypothesis in hypotheses)

    def release(self) -> tuple[list[Source], list[Found]]:
        """What is held, each with its source."""
        found, self._found, self.tokens = self._found, [], 0
        return [self._sources.pop(number) for number, _ in found], found


def align(models: Sequence[Transformer], pairs: Sequence[tuple[list[int], list[int]]]) -> list[list[int]]:
    """For each subword of each output of (source, output) the index of the source subword that it attends to most.

    Neither side holds `</s>`, whose attention is left out.
    """
    alignments: list[list[int]] = [[] for _ in pairs]
    filled = [index for index, (_, output) in enumerate(pairs) if output]
    for rows in in_batches([(sum(map(len, pairs[index])) + 1,) for index in filled], TOKENS):
        batch = [filled[row] for row in rows]
        for index, weights in zip(batch, _attention(models, [pairs[index] for index in batch]), strict=True):
            source, output = pairs[index]  # weights are (output, source), both padded
            alignments[index] = weights[: len(output), : len(source)].argmax(-1).tolist()
    return alignments


def probabilities(models: Sequence[Transformer], pairs: Sequence[tuple[list[int], list[int]]]) -> list[list[float]]:
    """The log-probability of each symbol of each output of (source, output), in nats, without those of `</s>`."""
    scores: list[list[float]] = [[] for _ in pairs]
    filled = [index for index, (_, output) in enumerate(pairs) if output]
    found = log_probabilities_of(models, [pairs[index] for index in filled], TOKENS)
    for index, of_output in zip(filled, found, strict=True):
        scores[index] = of_output.tolist()
    return scores


@torch.inference_mode()
def _attention(models: Sequence[Transformer], pairs: Sequence[tuple[list[int], list[int]]]) -> torch.Tensor:
    """(pairs, output length, source length), summed over the models."""
    device = models[0].output_embedding.weight.device
    source = pad_ids([source for source, _ in pairs], after=EOS).to(device)
    target_in = pad_ids([output[:-1] for _, output in pairs], before=BOS).to(device)
    penultimate = (max(0, model.config.decoder_depth - 2) for model in models)
    weights = [model.cross_attention(source, target_in, i) for model, i in zip(models, penultimate, strict=True)]
    return torch.stack(weights).sum(0).cpu()
