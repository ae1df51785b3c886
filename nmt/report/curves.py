"""The figures behind a report's charts: which there are, thinned for drawing, and told in words and numbers.

This knows nothing of how charts are drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nmt.report.record import Column, RunRecord

POINTS = 2000
"""Most points of a drawn curve; a screen has no more columns."""
ROWS = 30
"""Most rows of a chart's table."""
SMOOTHED_FROM = 100
"""Fewer points than this are not smoothed: one sees through their noise."""


@dataclass(frozen=True)
class Chart:
    """What a chart shows of every run."""

    name: str
    title: str
    about: str
    digits: str
    """How its values are written, as `format` takes it"""
    logged: str | None = None
    """Figure of `RunRecord.logged`"""
    validated: str | None = None
    """Figure of `RunRecord.validated`"""
    best: str = "lowest"
    """What is worth telling of its values: the lowest or the highest"""
    noisy: bool = False
    """Whether a smoothed curve helps"""
    logarithmic: bool = True
    """Whether the switch to a logarithmic axis applies"""
    steep: bool = False
    """Whether a linear axis fits the values from the second tenth of the run on, since those before are far above"""
    percent: bool = False


# fmt: off
CHARTS = (
    Chart("score", "Dev score", "On the development set, at each checkpoint", ".2f",
          validated="score", best="highest", logarithmic=False),
    Chart("loss", "Loss", "Label-smoothed cross-entropy, in nats per target token", ".3f",
          logged="loss", noisy=True),
    Chart("perplexity", "Perplexity", "Per target token; the linear axis fits all but the first tenth of the run",
          ",.2f", logged="perplexity", validated="perplexity", noisy=True, steep=True),
    Chart("learning_rate", "Learning rate", "At the end of each log interval", ".3g",
          logged="learning_rate", best="highest"),
    Chart("speed", "Tokens per second", "Target tokens, on all devices", ",.0f",
          logged="tokens_per_second", best="highest", noisy=True),
    Chart("padding", "Padding", "Share of the cells of batches that hold no token, in %", ".1f",
          logged="padding", best="highest", noisy=True, logarithmic=False, percent=True),
    Chart("gradient_norm", "Gradient norm", "Before clipping, mean over each log interval", ".3f",
          logged="gradient_norm", best="highest", noisy=True),
)
# fmt: on


@dataclass(frozen=True)
class Points:
    """Points of a curve, each array of shape (points,)."""

    steps: Column
    tokens: Column
    """Target tokens, in millions"""
    hours: Column
    values: Column
    """NaN leaves a gap"""

    def at(self, rows: NDArray[np.intp]) -> Points:
        """These points only."""
        return Points(self.steps[rows], self.tokens[rows], self.hours[rows], self.values[rows])


@dataclass(frozen=True)
class Curve:
    """A figure of a run in a chart."""

    run: int
    """Position of the run on the page"""
    part: str
    """`training` or `dev`"""
    whole: Points
    thin: Points
    """What is drawn of them"""
    smoothed: Points | None
    """Drawn in front of them, where that helps"""

    @property
    def points(self) -> int:
        """Number of points before they are thinned."""
        return len(self.whole.values)


def curve(record: RunRecord, run: int, chart: Chart, part: str) -> Curve | None:
    """A run's figure in a chart; None if the run has no finite value of it."""
    figures, key = (record.validated, chart.validated) if part == "dev" else (record.logged, chart.logged)
    if key is None or key not in figures or not np.isfinite(figures[key]).any():
        return None
    values = figures[key] * (100 if chart.percent else 1)
    tokens, seconds = (_at_steps(record, figures, name) for name in ("tokens", "seconds"))
    whole = Points(figures["step"], tokens / 1e6, seconds / 3600, values)
    smooth = None
    if chart.noisy and part == "training" and len(values) >= SMOOTHED_FROM:
        rows = np.unique(np.linspace(0, len(values) - 1, POINTS // 4).astype(np.intp))
        smooth = Points(whole.steps, whole.tokens, whole.hours, smoothed(values)).at(rows)
    return Curve(run, part, whole, whole.at(thinned(values)), smooth)


def _at_steps(record: RunRecord, figures: Mapping[str, Column], name: str) -> Column:
    """A figure at each step; where it is missing, as earlier versions left it out, by the log lines around it."""
    known = np.isfinite(record.logged[name])
    if not known.any():
        return figures[name]
    between = np.interp(figures["step"], record.logged["step"][known], record.logged[name][known])
    return np.where(np.isfinite(figures[name]), figures[name], between)


def thinned(values: Column, most: int = POINTS) -> NDArray[np.intp]:
    """Positions of at most `most` of the values: the lowest and the highest of each bucket, so that no spike is lost.

    The first and the last value stay, and so does a gap as wide as a bucket.
    """
    if len(values) <= most:
        return np.arange(len(values))
    edges = np.linspace(0, len(values), most // 2).astype(np.intp)[:-1]
    bucket = np.searchsorted(edges, np.arange(len(values)), side="right")
    ascending = np.lexsort((values, bucket))  # by bucket, then by value; NaN comes last
    counts = np.bincount(bucket, minlength=len(edges) + 1)[1:]
    finite = np.bincount(bucket[np.isfinite(values)], minlength=len(edges) + 1)[1:]
    starts = np.cumsum(counts) - counts
    lowest, highest = ascending[starts], ascending[starts + np.maximum(finite - 1, 0)]
    return np.unique([0, len(values) - 1, *lowest, *highest]).astype(np.intp)


def window(points: int) -> int:
    """How many points a smoothed curve is the mean of: an odd number, a fiftieth of all of them."""
    return points // 50 // 2 * 2 + 3


def smoothed(values: Column) -> Column:
    """Means of the finite values in a window around each point, which is cut at the ends; NaN where there are none."""
    half = window(len(values)) // 2
    finite = np.isfinite(values)
    sums = np.cumsum(np.concatenate([[0.0], np.where(finite, values, 0.0)]))
    counts = np.cumsum(np.concatenate([[0], finite]))
    position = np.arange(len(values))
    first, end = np.maximum(position - half, 0), np.minimum(position + half + 1, len(values))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((sums[end] - sums[first]) / (counts[end] - counts[first]))


def summary(found: Curve, chart: Chart) -> str:
    """The first, the best and the last value in words."""
    finite = np.isfinite(found.whole.values)
    values, steps = found.whole.values[finite], found.whole.steps[finite]
    best = int(values.argmin() if chart.best == "lowest" else values.argmax())
    written = [written_value(value, chart) for value in (values[0], values[best], values[-1])]
    if len(values) == 1:
        return f"{written[0]} at update {steps[0]:,.0f}"
    first, last = f"{written[0]} at update {steps[0]:,.0f}", f"{written[2]} at {steps[-1]:,.0f}"
    if best == len(values) - 1:
        return f"{first}, {chart.best} and last {last}"
    return f"{first}, {chart.best} {written[1]} at {steps[best]:,.0f}, last {last}"


def written_value(value: float, chart: Chart) -> str:
    """A value as the page writes it."""
    return "–" if not np.isfinite(value) else f"{value:{chart.digits}}" + (" %" if chart.percent else "")


def table(curves: Sequence[Curve], chart: Chart) -> list[list[str]]:
    """Rows of the update and each curve's value there, at the steps of checkpoints or, without any, of log lines.

    A figure of training is the last one that was logged up to that step; a run that did not get there has a dash.
    """
    dev = [found.whole.steps for found in curves if found.part == "dev"]
    steps = np.unique(np.concatenate(dev or [found.whole.steps for found in curves]))
    if len(steps) > ROWS:
        steps = steps[np.unique(np.linspace(0, len(steps) - 1, ROWS).astype(np.intp))]
    return [[f"{step:,.0f}", *(written_value(_value_at(found, step), chart) for found in curves)] for step in steps]


def _value_at(found: Curve, step: float) -> float:
    steps = found.whole.steps
    row = int(np.searchsorted(steps, step, side="right")) - 1
    missing = row < 0 or step > steps[-1] or (found.part == "dev" and steps[row] != step)
    return float("nan") if missing else float(found.whole.values[row])
