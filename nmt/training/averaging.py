"""`nmt average --last auto`: how many of the newest checkpoints to average, by the development set."""

from __future__ import annotations

from pathlib import Path

import torch

from nmt.bundle import Bundle, Mean, averageable, load_weights
from nmt.console import Console
from nmt.training.validation import Validation


def average_by_score(directory: Path, out: Path | None, device: torch.device, console: Console) -> Bundle:
    """Averages the newest 1, 2, 3, 5, 8, … and all checkpoints of a run, and writes the average that scores best.

    The score is BLEU or F1 of the development set, searched as in training; among equals perplexity decides. Each
    checkpoint is read once. The bundle's bundle.json holds the scores and, as `curve`, those of every number tried.
    Raises UserError where there are no checkpoints, where they are of different runs, or where the prepared data that
    they were trained on is not there.
    """
    found, path = averageable(directory, out)
    newest = found[-1]
    validation, model = Validation.of(newest), newest.model(device)
    metric, label = newest.task.metric, newest.task.label
    mean, curve, best = Mean(newest), [], None
    tried = numbers_to_try(len(found))
    console.say(f"averaged  {f'dev {label}':>8}  dev ppl  updates")
    for count, bundle in enumerate(reversed(found), 1):
        mean.add(bundle)
        if count not in tried:
            continue
        weights = mean.weights()
        load_weights(model, weights, bundle.path)
        dev = validation(model)
        console.say(f"{count:8}  {dev.score:8.2f}  {dev.perplexity:7.2f}  {bundle.step:,} to {newest.step:,}")
        curve.append({"last": count, metric: dev.score, "perplexity": dev.perplexity})
        if best is None or (dev.score, -dev.perplexity) > (best[0].score, -best[0].perplexity):
            best = dev, count, weights
    assert best is not None
    dev, count, weights = best
    scores = {metric: dev.score, "perplexity": dev.perplexity}
    return mean.save(path, weights, count, scores=scores, signature=dev.signature, curve=curve)


def numbers_to_try(most: int) -> list[int]:
    """1, 2, 3, 5, 8, … below `most`, each the sum of the two before it, and `most`."""
    numbers, number, following = [], 1, 2
    while number < most:
        numbers.append(number)
        number, following = following, number + following
    return [*numbers, most]
