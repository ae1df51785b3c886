"""The dev chrF that a translator will have at the end of its run: before it starts, and from its scores so far.

Both follow by least squares from whole runs on other data (curves.json). Before, from how many words there are and how
many tokens are trained on; later, from the chrF so far and the words, since the more there are the longer it will rise.
The learning rates of those runs fell to zero, so this holds for such runs alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.recipe import Recipe, Training
from nmt.training.log import read_lines
from nmt.training.optimizer import RISING

FIRST = 0.1  # share of a run before which its scores say too little
LAST = 0.95  # and after which they say enough
SHORTEST = 2000  # updates of a whole run; shorter ones still rise fast at a share at which these level off
FEWEST = 5  # runs that a forecast follows from
EIGHT_OF_TEN = 1.28  # standard deviations on both sides of the mean

Array = NDArray[np.float64]


class DevPoint(NamedTuple):
    """A score on the development set while a run goes on."""

    share: float
    """Share of the run that is done"""
    chrf: float


class Amount(NamedTuple):
    """How much a run learns from."""

    words: float
    """Number of words in the targets of its training pairs"""
    tokens: float
    """Number of target tokens that it trains on, in all epochs"""


class DevCurve(NamedTuple):
    """The scores of a whole run."""

    scores: Sequence[DevPoint]
    family: str
    """The kind of data, of which runs tell more of each other than of other kinds"""
    amount: Amount


class SoFar(NamedTuple):
    """The scores of a run that goes on."""

    warmup: float
    """Share of the run in which the learning rate rises, when scores are not to be compared"""
    scores: Sequence[DevPoint]


class Forecast(NamedTuple):
    """A dev chrF to come."""

    chrf: float
    margin: float
    """How far eight of ten runs on a kind of data that is not known end from it, at most"""

    def __str__(self) -> str:
        low, high = self.chrf - self.margin, min(100.0, self.chrf + self.margin)
        return f"about {self.chrf:.0f} ({low:.0f}–{high:.0f}) at the end"


@cache
def known_curves() -> tuple[DevCurve, ...]:
    """Return the runs that forecasts follow from; `benchmarks/curves.py` writes their file."""
    rows = json.loads(Path(__file__).with_name("curves.json").read_text(encoding="utf-8"))
    return tuple(
        DevCurve([DevPoint(*each) for each in row["scores"]], row["family"], Amount(*row["amount"])) for row in rows
    )


def tells(recipe: Recipe) -> bool:
    """Return whether runs of a recipe are like those that forecasts follow from: a translator's, from the beginning."""
    training = recipe.training
    falls = training.schedule == "linear" and training.patience is None
    return falls and training.init_from is None and not recipe.task.has_trees


def run_so_far(path: Path, step: int, share: float, training: Training) -> SoFar:
    """Return the scores in a run's log up to update `step`, by which `share` of it is done."""
    found = list[DevPoint]()
    for _, row in read_lines(path):
        if "new_dev_set" in row:
            found = []
        at, chrf = row.get("step"), row.get("valid_chrf")
        if at is not None and chrf is not None:
            found.append(DevPoint(share * at / step, chrf))
    warmup = share * training.warmup / step
    if training.is_timed:
        warmup = min(warmup, RISING)
    return SoFar(warmup, found)


def forecast(run: SoFar, words: float, curves: Sequence[DevCurve]) -> Forecast | None:
    """Return the chrF that a run with these scores and so many words to learn from will end with.

    Return None while the scores do not tell it.
    """
    if not run.scores:
        return None
    share, chrf = run.scores[-1]
    curves = [curve for curve in curves if curve.scores[0].share <= share]
    if not max(FIRST, run.warmup) <= share <= LAST or len(curves) < FEWEST:
        return None
    now = [_chrf(curve, share) for curve in curves]
    known = np.array([[1.0, at, math.log2(curve.amount.words)] for at, curve in zip(now, curves, strict=True)])
    rises = np.array([curve.scores[-1].chrf for curve in curves]) - now
    rise, margin = _by_least_squares(known, rises, curves, np.array([1.0, chrf, math.log2(words)]))
    return Forecast(min(100.0, chrf + max(0.0, rise)), margin)


def forecast_before(amount: Amount, curves: Sequence[DevCurve]) -> Forecast:
    """Return the chrF that a run will end with that learns from so much."""
    known = np.stack([_doublings(curve.amount) for curve in curves])
    ends = np.array([curve.scores[-1].chrf for curve in curves])
    chrf, margin = _by_least_squares(known, ends, curves, _doublings(amount))
    return Forecast(min(100.0, max(0.0, chrf)), margin)


def _doublings(amount: Amount) -> Array:
    return np.array([1.0, *map(math.log2, amount)])


def _by_least_squares(known: Array, wanted: Array, curves: Sequence[DevCurve], at: Array) -> tuple[float, float]:
    """Return what is wanted where `at` (features,) is known, from `known` (runs, features) and `wanted` (runs,).

    Return also how far eight of ten runs are from it, at most, each by the runs of other families.
    """
    families = np.array([curve.family for curve in curves])
    errors = []
    for family in sorted(set(families)):
        others = families != family
        weights, *_ = np.linalg.lstsq(known[others], wanted[others], rcond=None)
        errors.append(wanted[~others] - known[~others] @ weights)
    margin = EIGHT_OF_TEN * math.sqrt(float(np.square(np.concatenate(errors)).mean()))
    weights, *_ = np.linalg.lstsq(known, wanted, rcond=None)
    return float(at @ weights), margin


def _chrf(run: DevCurve, share: float) -> float:
    """Return the chrF of a run at a share of it."""
    return float(np.interp(share, [score.share for score in run.scores], [score.chrf for score in run.scores]))
