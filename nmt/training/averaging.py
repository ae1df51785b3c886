"""`nmt average --last auto`: how many of the newest checkpoints to average, by the development set."""

from __future__ import annotations

from pathlib import Path

import torch

from nmt.bundle import Bundle, Mean, averageable, load_weights
from nmt.console import Console
from nmt.training.validation import PERPLEXITY, Validation


def average_by_score(directory: Path, out: Path | None, device: torch.device, console: Console) -> Bundle:
    """Averages the newest 1, 2, 3, 5, 8, … and all checkpoints of a run, and writes the average that scores best.

    The score is BLEU or F1 of the development set, searched as in training, or of a language model its perplexity;
    among equals perplexity decides. Each checkpoint is read once. The bundle's bundle.json holds the scores and, as
    `curve`, those of every number tried.
    Raises UserError where there are no checkpoints, where they are of different runs, or where the prepared data that
    they were trained on is not there.
    """
    found, path = averageable(directory, out)
    newest = found[-1]
    validation, model = Validation.of(newest), newest.model(device)
    task = newest.kind
    mean, curve, best = Mean(newest), [], None
    tried = numbers_to_try(len(found))
    names = [f"dev {name}" for name in dict.fromkeys((task.label, PERPLEXITY))]
    console.say("  ".join(["averaged", *names, "updates"]))
    for count, bundle in enumerate(reversed(found), 1):
        mean.add(bundle)
        if count not in tried:
            continue
        weights = mean.weights()
        load_weights(model, weights, bundle.path)
        dev = validation(model)
        figures = zip(names, dev.shown(task.label).values(), strict=True)
        cells = (f"{figure:{len(name)}.2f}" for name, figure in figures)
        console.say("  ".join([f"{count:8}", *cells, f"{bundle.step:,} to {newest.step:,}"]))
        curve.append({"last": count, task.metric: dev.score, "perplexity": dev.perplexity})
        rank = task.rank(dev.score), -dev.perplexity
        if best is None or rank > best[0]:
            best = rank, dev, count, weights
    assert best is not None
    _, dev, count, weights = best
    scores = {task.metric: dev.score, "perplexity": dev.perplexity}
    return mean.save(path, weights, count, scores=scores, signature=dev.signature, curve=curve)


def numbers_to_try(most: int) -> list[int]:
    """1, 2, 3, 5, 8, … below `most`, each the sum of the two before it, and `most`."""
    numbers, number, following = [], 1, 2
    while number < most:
        numbers.append(number)
        number, following = following, number + following
    return [*numbers, most]
