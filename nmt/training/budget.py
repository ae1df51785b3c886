"""When a run ends and when it saves: updates, minutes, patience, and the intervals between checkpoints."""

from __future__ import annotations

import math
from typing import NamedTuple

from nmt.recipe import Training
from nmt.training.run_files import BestScore, RunState

# Validations' worth of time after the last update: the last checkpoint, its average, two ways to split lines, and again
ENDING = 4
SCORING = 10  # minimum ratio of the seconds between checkpoints of a run with training.minutes to those of a validation


class Requests(NamedTuple):
    """Requests after an update: one rank's, or those that all have agreed on."""

    stop: int = 0  # signal number; 0 to continue
    checkpoint: bool = False
    finish: bool = False  # because training.minutes are used up


def seconds_left(state: RunState, settings: Training) -> float:
    """Return the seconds until the last update within training.minutes; infinity without them."""
    return math.inf if settings.minutes is None else 60 * settings.minutes - state.seconds - ENDING * state.scoring


def is_over(state: RunState, settings: Training) -> bool:
    """Return whether all updates are done or training.minutes are used up."""
    return state.step >= settings.updates or 0 < (settings.minutes or 0) <= state.minutes


def is_out_of_patience(best: BestScore, settings: Training) -> bool:
    """Return whether training.patience is exhausted."""
    return settings.patience is not None and best.without_improvement >= settings.patience


def is_checkpoint_due(state: RunState, settings: Training, step: int, seconds: float) -> bool:
    """Return whether to save a checkpoint after the next update, `seconds` after the previous one, saved at `step`.

    It remains due until it is saved: an update may be skipped, after which nothing is.
    """
    if every := settings.checkpoint_updates:
        return (state.step + 1) // every > step // every
    if settings.checkpoint_minutes is None or seconds < 60 * settings.checkpoint_minutes:
        return False
    return settings.minutes is None or seconds >= SCORING * state.scoring  # scoring shall not use up the time
