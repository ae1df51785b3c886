"""`nmt average --last auto`: chooses by dev score how many of the newest checkpoints to average."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from nmt.bundle import Bundle, Mean, averageable, load_weights
from nmt.console import Console
from nmt.model.transformer import Transformer
from nmt.training.validation import PERPLEXITY, DevScores, Validation


class _Average(NamedTuple):
    """The average of a run's newest checkpoints."""

    last: int
    """Number of checkpoints"""
    oldest: Bundle
    weights: dict[str, Tensor]
    dev: DevScores

    def rank(self) -> tuple[float, float]:
        """What grows with how good the average is."""
        return self.oldest.kind.rank(self.dev.score), -self.dev.perplexity


def average_by_score(directory: Path, out: Path | None, device: torch.device, console: Console) -> Bundle:
    """Averages the newest 1, 2, 3, 5, 8, … and all checkpoints of a run, and writes the average that scores best.

    The score is BLEU or F1 of the development set, searched as in training, or the perplexity of a language model;
    perplexity decides between equals, then the smaller number. Each checkpoint is read once. The bundle's bundle.json
    holds the scores and, as `curve`, those of every number tried. Raises UserError where there are no checkpoints,
    where they are of different runs, or where the data they were trained on is not prepared here.
    """
    found, path = averageable(directory, out)
    newest, kind = found[-1], found[-1].kind
    validation, mean = Validation.of(newest), Mean(newest)
    names = [f"dev {name}" for name in dict.fromkeys((kind.label, PERPLEXITY))]
    console.say("  ".join(["averaged", *names, "updates"]))
    best, curve = None, []
    sizes = numbers_to_try(len(found))
    with console.progress("scoring", len(sizes), "averages") as advance:
        for average in _averages(found, sizes, mean, validation, newest.model(device)):
            figures = zip(names, average.dev.shown(kind.label).values(), strict=True)
            cells = (f"{figure:{len(name)}.2f}" for name, figure in figures)
            console.say("  ".join([f"{average.last:8}", *cells, f"{average.oldest.step:,} to {newest.step:,}"]))
            curve.append({"last": average.last, **average.dev.by_name(kind.metric)})
            best = average if best is None or average.rank() > best.rank() else best
            advance(1, f"best dev {kind.label} {best.dev.score:.2f} of {best.last}")
    assert best is not None
    scores = best.dev.by_name(kind.metric)
    return mean.save(path, best.weights, best.last, scores=scores, signature=best.dev.signature, curve=curve)


def _averages(
    found: Sequence[Bundle], sizes: Sequence[int], mean: Mean, validation: Validation, model: Transformer
) -> Iterator[_Average]:
    """The averages of `sizes` checkpoints, scored one after another."""
    for count, bundle in enumerate(reversed(found), 1):
        mean.add(bundle)
        if count in sizes:
            weights = mean.weights()
            load_weights(model, weights, bundle.path)
            yield _Average(count, bundle, weights, validation(model))


def numbers_to_try(most: int) -> list[int]:
    """1, 2, 3, 5, 8, … below `most`, each the sum of the two before it, and `most`."""
    numbers, number, following = [], 1, 2
    while number < most:
        numbers.append(number)
        number, following = following, number + following
    return [*numbers, most]
