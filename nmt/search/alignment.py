"""Which subword of its source each subword of an output looks at.

What attention tells of an alignment without having been trained for it: cross-attention of the decoder's penultimate
layer, heads averaged, at the step that gives the subword (Garg et al. 2019, section 4.1). An indication, no more.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import replace

import torch

from nmt.batch import pad_ids
from nmt.model.transformer import Transformer
from nmt.search.feed import Engine, Feed, Hypothesis, Source
from nmt.text.symbols import BOS, EOS

TOKENS = 4096  # padded, of both sides, that are looked at together

Found = tuple[int, list[Hypothesis]]


class AligningEngine:
    """An engine whose hypotheses are given their alignments, by the model or models that it searches with."""

    def __init__(self, engine: Engine, models: Sequence[Transformer]) -> None:
        self._engine, self._models = engine, models

    def search(self, feed: Feed, n_best: int) -> Generator[Found, None, None]:
        """See `feed.Engine`."""
        held = _Held(feed)
        while not held.over:  # the engine's search ends, too, before it would wait while something is held
            with closing(self._engine.search(held, n_best)) as found:
                for number, hypotheses in found:
                    held.put(number, hypotheses)
                    if held.starved or held.tokens >= TOKENS:
                        yield from self._align(held)
            yield from self._align(held)

    def _align(self, held: _Held) -> list[Found]:
        """What is held, with alignments; nothing is held any more."""
        sources, found = held.release()
        pairs = [
            (source.ids, h.ids) for source, (_, hypotheses) in zip(sources, found, strict=True) for h in hypotheses
        ]
        alignments = iter(align(self._models, pairs))
        return [(number, [replace(h, alignment=next(alignments)) for h in hypotheses]) for number, hypotheses in found]


class _Held:
    """A feed that remembers its sources, and what was found for them until it is given on."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._sources: dict[int, Source] = {}
        self._found: list[Found] = []
        self.tokens = 0
        """Of both sides of what was found"""
        self.starved = False
        """Whether the feed had nothing more when it was last asked, so that no one gains by waiting"""
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
        """Holds what was found for a source."""
        self._found.append((number, hypotheses))
        self.tokens += sum(len(self._sources[number].ids) + len(hypothesis.ids) for hypothesis in hypotheses)

    def release(self) -> tuple[list[Source], list[Found]]:
        """What was found, each with its source."""
        found, self._found, self.tokens = self._found, [], 0
        return [self._sources.pop(number) for number, _ in found], found


def align(models: Sequence[Transformer], pairs: Sequence[tuple[list[int], list[int]]]) -> list[list[int]]:
    """For each subword of each (source, output) the index of the source subword with the most attention.

    Neither side holds `</s>`, whose attention is left out.
    """
    alignments: list[list[int]] = [[] for _ in pairs]
    by_length = sorted((i for i, (_, output) in enumerate(pairs) if output), key=lambda i: -sum(map(len, pairs[i])))
    while by_length:
        size = max(1, TOKENS // (sum(map(len, pairs[by_length[0]])) + 1))
        batch, by_length = by_length[:size], by_length[size:]
        weights = _attention(models, [pairs[i][0] for i in batch], [pairs[i][1] for i in batch])
        for index, rows in zip(batch, weights, strict=True):  # (output, source), both padded
            source, output = pairs[index]
            alignments[index] = rows[: len(output), : len(source)].argmax(-1).tolist()
    return alignments


@torch.inference_mode()
def _attention(models: Sequence[Transformer], sources: list[list[int]], outputs: list[list[int]]) -> torch.Tensor:
    """(pairs, output length, source length), summed over the models."""
    device = models[0].output_embedding.weight.device
    source = pad_ids(sources, after=EOS).to(device)
    target_in = pad_ids([output[:-1] for output in outputs], before=BOS).to(device)
    penultimate = (max(0, model.config.decoder_depth - 2) for model in models)
    weights = [model.cross_attention(source, target_in, i) for model, i in zip(models, penultimate, strict=True)]
    return torch.stack(weights).sum(0).cpu()
