"""A run takes the place of the model that it began with, if it scores as well on the development set."""

from __future__ import annotations

import os
import shlex
from contextlib import ExitStack
from pathlib import Path

import torch

from nmt.checkpoint.reading import Bundle, load_weights
from nmt.checkpoint.writing import add_info, mix
from nmt.exchange.resolve import resolve
from nmt.metrics.significance import SIGNIFICANT
from nmt.system.console import Console
from nmt.system.errors import UserError
from nmt.system.processes import claimed
from nmt.training.directory import LOCK
from nmt.training.validation import Validation

SHARES = (1.0, 0.5, 0.25)
"""Weights of the new model in its average with the old one, in the order in which they are tried"""
DECISION = 2.5
"""Cost of a decision, in validations, most of which is searching: by the old model, and by one to three shares"""


def succeed(run: Path, result: Bundle, device: torch.device, console: Console) -> Path:
    """Put a run in the place of the model of training.init_from, which stays beside it; return where the run is then.

    If its average, `result`, scores lower than that model by more than chance, an average of both takes its place. The
    run stays where it is if these score lower, too, or if the place is none of this machine. Raise UserError if another
    process trains there, or if a folder cannot be renamed.
    """
    start = Path(result.recipe.training.init_from or "")
    before, _ = resolve(start)
    scores = _accepted(before, result, device, console)
    if scores is None:
        console.say(f"{start} stays as it is, and {run} has what was learned")
        return run
    if not start.is_dir():
        console.say(f"accepted: {scores}; {start} cannot be replaced, so the new model is {run}")
        return run
    kept = _free_name(start)
    with ExitStack() as held:
        if (start / LOCK).exists() and not held.enter_context(claimed(start / LOCK, alone=True)):
            raise UserError(f"{start}: another process is training there", f"the new model is {run}")
        os.rename(start, kept)
        try:
            os.rename(run, start)
        except OSError:
            os.rename(kept, start)
            raise
    back = f"{shlex.join(['mv', str(start), str(run)])} && {shlex.join(['mv', str(kept), str(start)])}"
    console.say(f"accepted: {scores}; {start} is the new model, {kept} the one before")
    console.say(f"to take it back: {back}")
    return start


def _accepted(before: Bundle, result: Bundle, device: torch.device, console: Console) -> str | None:
    """Describe the dev scores of the largest share of what was learned that is no worse than the old model.

    Write that share as `result`. Return None if every share is significantly worse.
    """
    validation = Validation.of(result)
    label = result.task.label
    of_before = validation.sampled(validation.outputs(before.model(device)))
    model = result.model(device)
    learned = {name: weight.float() for name, weight in result.weights().items()}
    known = before.weights()
    for share in SHARES:
        if share < 1:
            weights = {name: known[name].float().lerp(weight, share) for name, weight in learned.items()}
            load_weights(model, weights, result.path)
        outputs = validation.outputs(model)
        comparison = validation.sampled(outputs).compared(of_before)
        # Of one line that differs, the randomisation is sure, for it does not count equal differences.
        p_value = max(comparison.p_value, comparison.p_bootstrap)
        scores = f"dev {label} {comparison.system.score:.2f}, before {comparison.baseline.score:.2f}"
        scores += f" (p = {p_value:.3f})"
        if share < 1:
            scores = f"{share:.0%} of what was learned: {scores}"
        if comparison.difference >= 0 or p_value >= SIGNIFICANT:
            if share < 1:
                mix([before, result], [1 - share, share], result.path)
            if share < 1 or not result.scores:
                # As the average of its run, it goes before that run's checkpoints.
                add_info(result.path, validation.info(validation.scored(model, outputs)) | {"run": result.info.run})
            return scores
        console.say(f"not accepted: {scores}")
    return None


def _free_name(path: Path) -> Path:
    """Return the path beside `path` with the first number behind its name that is free."""
    number = 1
    while os.path.lexists(path.with_name(f"{path.name}-{number}")):
        number += 1
    return path.with_name(f"{path.name}-{number}")
