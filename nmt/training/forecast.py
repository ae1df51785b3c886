"""The dev chrF that a translator will have at the end of its run: before it starts, and from its scores so far.

How much the score will lack of 100 follows by least squares from whole runs on other data (curves.json), all in
logarithms: before the start from how many words there are and how many tokens are trained on, later from the words and
from what it lacks so far. The learning rates of those runs fell to zero, so this holds for such runs alone.
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

FIRST = 0.12  # share of a run before which its scores say too little
LAST = 0.95  # and after which they say enough
SHORTEST = 2000  # updates of a whole run; shorter ones still rise fast at a share at which these level off
WIDTH = 128  # of all models whose curves are known
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
        low, high = max(0.0, self.chrf - self.margin), min(100.0, self.chrf + self.margin)
        return f"about {self.chrf:.0f} ({low:.0f}–{high:.0f}) at the end"


@cache
def known_curves() -> tuple[DevCurve, ...]:
    """Return the runs that forecasts follow from; `benchmarks/curves.py` writes their file."""
    rows = json.loads(Path(__file__).with_name("curves.json").read_text(encoding="utf-8"))
    return tuple(
        DevCurve([DevPoint(*each) for each in row["scores"]], row["family"], Amount(*row["amount"])) for row in rows
    )


def tells(recipe: Recipe) -> bool:
    """Return whether runs of a recipe are like those that forecasts follow from: scored ones of a new translator."""
    training = recipe.training
    falls = training.schedule == "linear" and training.patience is None
    is_new = training.init_from is None and bool(recipe.data.valid)
    return falls and is_new and not recipe.task.has_trees and recipe.model.d_model == WIDTH


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
    known = [(_lacking(_chrf(curve, share)), curve.amount.words) for curve in curves]
    found = _by_least_squares(known, curves, (_lacking(chrf), words))
    return found._replace(chrf=max(chrf, found.chrf))


def forecast_before(amount: Amount, curves: Sequence[DevCurve]) -> Forecast:
    """Return the chrF that a run will end with that learns from so much."""
    return _by_least_squares([curve.amount for curve in curves], curves, amount)


def _lacking(chrf: float) -> float:
    return max(0.1, 100.0 - chrf)


def _by_least_squares(known: Sequence[Sequence[float]], curves: Sequence[DevCurve], at: Sequence[float]) -> Forecast:
    """Return the chrF at the end of a run of which the numbers `at` are known, as those `known` are of `curves`.

    The margin is that of forecasts of each run by those of other families.
    """
    features = _features(known)
    lacking = np.array([_lacking(curve.scores[-1].chrf) for curve in curves])  # (runs,)
    families = np.array([curve.family for curve in curves])
    all_runs = np.ones(len(curves), bool)

    def forecasts(fitted: NDArray[np.bool_], wanted: Array) -> Array:
        weights, *_ = np.linalg.lstsq(features[fitted], np.log(lacking[fitted]), rcond=None)
        return np.exp(wanted @ weights)  # type: ignore[no-any-return]

    errors = []
    for family in sorted(set(families)):
        others = families != family
        errors.append(lacking[~others] - forecasts(others, features[~others]))
    margin = EIGHT_OF_TEN * math.sqrt(float(np.square(np.concatenate(errors)).mean()))
    (lacks,) = forecasts(all_runs, _features([at]))
    return Forecast(max(0.0, 100.0 - float(lacks)), margin)


def _features(known: Sequence[Sequence[float]]) -> Array:
    """Return a constant and the logarithms of numbers (runs, n): (runs, 1 + n)."""
    return np.column_stack([np.ones(len(known)), np.log(known)])


def _chrf(run: DevCurve, share: float) -> float:
    """Return the chrF of a run at a share of it."""
    return float(np.interp(share, [score.share for score in run.scores], [score.chrf for score in run.scores]))
