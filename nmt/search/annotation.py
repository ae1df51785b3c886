"""What a model says of each subword of an output that is found: where it attends in its source, how probable it is.

An alignment is cross-attention of the decoder's penultimate layer, heads averaged, at the step that outputs the subword
(Garg et al. 2019, section 4.1). The model was not trained to align, so it is only an indication.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from nmt.batch import in_batches, pad_ids
from nmt.model.transformer import Transformer
from nmt.search.feed import Hypothesis, Source
from nmt.search.forced import log_probabilities_of
from nmt.text.symbols import BOS, EOS

TOKENS = 4096  # of both sides, padding counted, that are aligned together


def annotated(
    models: Sequence[Transformer], found: Sequence[tuple[Source, list[Hypothesis]]]
) -> list[tuple[Source, list[Hypothesis]]]:
    """Add alignments and log-probabilities of symbols to the hypotheses of sources, by the models that found them.

    They are computed in full precision, whatever the precision of the search.
    """
    pairs = [(source.ids, each.ids) for source, hypotheses in found for each in hypotheses]
    alignments, scores = iter(align(models, pairs)), iter(probabilities(models, pairs))
    return [
        (source, [replace(each, alignment=next(alignments), log_probabilities=next(scores)) for each in hypotheses])
        for source, hypotheses in found
    ]


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
