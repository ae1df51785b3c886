"""A run takes the place of the model that it began with, if it scores as well on the development set."""

from __future__ import annotations

import os
import shlex
from contextlib import ExitStack, suppress
from pathlib import Path

import torch

from nmt.checkpoint.reading import AVERAGED, Bundle, load_weights
from nmt.checkpoint.writing import add_info, mix
from nmt.exchange.resolve import resolve
from nmt.metrics.significance import SIGNIFICANT
from nmt.system.console import Console
from nmt.system.errors import UserError
from nmt.system.processes import claimed
from nmt.training.directory import DECIDED, FIRST, LOCK, PLACES, place_of
from nmt.training.validation import Validation

SHARES = (1.0, 0.7, 0.4)
"""Weights of the new model in its average with the old one, in the order in which they are tried"""
DECISION = 2.5
"""Cost of a decision, in validations, most of which is searching: by the old model, and by one to three shares"""


def succeed(run: Path, result: Bundle, device: torch.device, console: Console) -> Path:
    """Put a run in the place of the model of training.init_from, which stays beside it; return where the run is then.

    If its average, `result`, scores lower by more than chance, an average with the old model takes the place. The run
    stays where it is if these score lower, too, or if it cannot take the place. The old model is the one before all
    corrections, if that is still here, so that small losses do not add up. Raise UserError if another process trains
    there. A process that is killed on the way has the next one decide, or do what was decided.
    """
    start = Path(result.recipe.training.init_from or "")
    if PLACES in result.written:
        place, kept = map(Path, result.written[PLACES])
        if not os.path.lexists(place):  # killed between the two renames
            os.rename(run, place)
            return _in_place(run, place, kept, "accepted", console)
    first = _before_corrections(start)
    before, _ = resolve(first)
    scores = _accepted(before, result, device, console)
    if scores is None:
        console.say(f"{start} stays as it is, and {run} has what was learned")
        return _decided(run)
    folder = place_of(start)
    if folder is None:
        console.say(f"accepted: {scores}; {start} cannot be replaced, so the new model is {run}")
        return _decided(run)
    kept = _free_name(folder)
    from_here = os.path.relpath(kept if first == start else first, folder.parent)
    add_info(result.path, {PLACES: [str(folder), str(kept)], FIRST: [from_here, before.info.run]})
    with ExitStack() as held:
        if (folder / LOCK).exists() and not held.enter_context(claimed(folder / LOCK, alone=True)):
            raise UserError(f"{folder}: another process is training there", f"the new model is {run}")
        try:
            os.rename(folder, kept)
            try:
                os.rename(run, folder)
            except OSError:
                os.rename(kept, folder)
                raise
        except OSError as error:  # on another disk, or in a folder that is not to be written to
            reason = f"{folder} cannot be renamed ({error.strerror})"
            console.say(f"accepted: {scores}; {reason}, so the new model is {run}")
            console.say(f"to put it there: {_move(folder, kept)} && {_move(run, folder)}")
            return _decided(run)
    return _in_place(run, folder, kept, f"accepted: {scores}", console)


def _before_corrections(start: Path) -> Path:
    """Return the model that `start` was before it learned corrections: itself if it has learned none, or it is gone."""
    learned, _ = resolve(start)
    place = place_of(start)
    if place is None or FIRST not in learned.written:
        return start
    from_here, run = learned.written[FIRST]
    first = place.parent / str(from_here)
    with suppress(UserError):
        if resolve(first)[0].info.run == run:
            return first
    return start


def _in_place(run: Path, place: Path, kept: Path, accepted: str, console: Console) -> Path:
    """Say that what was `run` is at `place` now, and what was there is `kept`; return the place."""
    console.say(f"{accepted}; {place} is the new model, {kept} the one before")
    console.say(f"to take it back: {_move(place, run)} && {_move(kept, place)}")
    return _decided(place)


def _decided(run: Path) -> Path:
    """Note in a run's average that it is where it is to be; return the run."""
    add_info(run / AVERAGED, {DECIDED: True})
    return run


def _move(path: Path, other: Path) -> str:
    return shlex.join(["mv", str(path), str(other)])


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
        scores = f"dev {label} {comparison.system.score:.2f}, before {comparison.baseline.score:.2f}"
        scores += f" (p = {comparison.p_value:.3f})"
        if share < 1:
            scores = f"{share:.0%} of what was learned: {scores}"
        if comparison.difference >= 0 or comparison.p_value >= SIGNIFICANT:
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
