"""Charts of a report: curves, downsampled and smoothed, their summaries and tables. The page's curves.js draws them."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmt.report.record import Column, RunRecord, labels

POINTS = 2000  # maximum points of a curve, about the width of a screen in pixels
ROWS = 30  # maximum rows of a chart's table
SMOOTHED_FROM = 100  # minimum points of a curve for it to be smoothed


@dataclass(frozen=True)
class Chart:
    """Definition of a chart, the same for every run."""

    name: str
    title: str
    about: str
    digits: str
    """Format specification of its values"""
    logged: str | None = None
    """Key of the training curve in `RunRecord.logged`"""
    validated: str | None = None
    """Key of the dev curve in `RunRecord.validated`"""
    best: str = "lowest"
    """Extreme that the summary names: `lowest` or `highest`"""
    noisy: bool = False
    """Whether to add a smoothed curve"""
    axis: str = "either"
    """Scale of the y-axis: `linear`, `log`, or `either`, as the switch says"""
    percent: bool = False


# fmt: off
CHARTS = (
    Chart("score", "Dev score", "On the development set, at each checkpoint", ".2f",
          validated="score", best="highest", axis="linear"),
    Chart("bleu", "Dev BLEU", "On the development set, at each checkpoint", ".2f",
          validated="bleu", best="highest", axis="linear"),
    Chart("loss", "Loss", "Label-smoothed cross-entropy, in nats per target token", ".3f",
          logged="loss", noisy=True),
    Chart("perplexity", "Perplexity", "Per target token", ",.2f",
          logged="perplexity", validated="perplexity", noisy=True, axis="log"),
    Chart("learning_rate", "Learning rate", "At the end of each log interval", ".3g",
          logged="learning_rate", best="highest"),
    Chart("speed", "Tokens per second", "Target tokens, on all devices", ",.0f",
          logged="tokens_per_second", best="highest", noisy=True),
    Chart("padding", "Padding", "Share of the cells of batches that hold no token, in %", ".1f",
          logged="padding", best="highest", noisy=True, axis="linear", percent=True),
    Chart("gradient_norm", "Gradient norm", "Before clipping, mean over each log interval", ".3f",
          logged="gradient_norm", best="highest", noisy=True),
)
# fmt: on


@dataclass(frozen=True)
class Points:
    """Points of a curve; all arrays have shape (points,)."""

    updates: Column
    tokens: Column
    """Target tokens, in millions"""
    hours: Column
    values: Column
    """NaN leaves a gap in the line"""

    def at(self, rows: NDArray[np.intp]) -> Points:
        """Return the points with these indices."""
        return Points(self.updates[rows], self.tokens[rows], self.hours[rows], self.values[rows])


@dataclass(frozen=True)
class Curve:
    """A run's training or dev curve in a chart."""

    run: int
    """Index of the run on the page"""
    part: str
    """`training` or `dev`"""
    whole: Points
    thin: Points
    """Downsampled points, which are drawn"""
    smoothed: Points | None
    """Moving average, drawn in front of `thin`; None for dev, short and smooth curves"""


def curve(record: RunRecord, run: int, chart: Chart, part: str) -> Curve | None:
    """Return a run's curve in a chart; None if it has no finite value."""
    figures, key = (record.validated, chart.validated) if part == "dev" else (record.logged, chart.logged)
    if key is None or key not in figures or not np.isfinite(figures[key]).any():
        return None
    values = figures[key] * (100 if chart.percent else 1)
    whole = Points(figures["step"], figures["tokens"] / 1e6, figures["seconds"] / 3600, values)
    smooth = None
    if chart.noisy and part == "training" and len(values) >= SMOOTHED_FROM:
        rows = np.unique(np.linspace(0, len(values) - 1, POINTS // 4).astype(np.intp))
        smooth = Points(whole.updates, whole.tokens, whole.hours, smoothed(values)).at(rows)
    return Curve(run, part, whole, whole.at(thinned(values)), smooth)


def thinned(values: Column, most: int = POINTS) -> NDArray[np.intp]:
    """Return the indices of at most `most` values: each bucket's minimum and maximum, so that no spike is lost.

    The first and last value are kept, and so are gaps as wide as a bucket.
    """
    if len(values) <= most:
        return np.arange(len(values))
    edges = np.linspace(0, len(values), most // 2).astype(np.intp)[:-1]
    bucket = np.searchsorted(edges, np.arange(len(values)), side="right")
    ascending = np.lexsort((values, bucket))  # by bucket, then by value; NaN sorts last
    counts = np.bincount(bucket, minlength=len(edges) + 1)[1:]
    finite = np.bincount(bucket[np.isfinite(values)], minlength=len(edges) + 1)[1:]
    starts = np.cumsum(counts) - counts
    lowest, highest = ascending[starts], ascending[starts + np.maximum(finite - 1, 0)]
    return np.unique([0, len(values) - 1, *lowest, *highest]).astype(np.intp)


def window(points: int) -> int:
    """Return the width of the smoothing window: an odd number of points, about 2% of all."""
    return points // 50 // 2 * 2 + 3


def smoothed(values: Column) -> Column:
    """Return the centred moving average of the finite values, truncated at both ends; NaN where a window has none."""
    half = window(len(values)) // 2
    finite = np.isfinite(values)
    sums = np.cumsum(np.concatenate([[0.0], np.where(finite, values, 0.0)]))
    counts = np.cumsum(np.concatenate([[0], finite]))
    position = np.arange(len(values))
    first, end = np.maximum(position - half, 0), np.minimum(position + half + 1, len(values))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((sums[end] - sums[first]) / (counts[end] - counts[first]))


def summary(found: Curve, chart: Chart) -> str:
    """Describe a curve's first, best and last value."""
    finite = np.isfinite(found.whole.values)
    values, steps = found.whole.values[finite], found.whole.updates[finite]
    best = int(values.argmin() if chart.best == "lowest" else values.argmax())
    written = [written_value(value, chart) for value in (values[0], values[best], values[-1])]
    if len(values) == 1:
        return f"{written[0]} at update {steps[0]:,.0f}"
    first, last = f"{written[0]} at update {steps[0]:,.0f}", f"{written[2]} at {steps[-1]:,.0f}"
    if best == len(values) - 1:
        return f"{first}, {chart.best} and last {last}"
    return f"{first}, {chart.best} {written[1]} at {steps[best]:,.0f}, last {last}"


def written_value(value: float, chart: Chart) -> str:
    """Format a value for the page."""
    return "–" if not np.isfinite(value) else f"{value:{chart.digits}}" + (" %" if chart.percent else "")


def table(curves: Sequence[Curve], chart: Chart) -> list[list[str]]:
    """Return a row per checkpoint, or per logged step without dev curves: the step and each curve's value there.

    A training curve's value is the last one logged by then. A run that ended earlier has a dash.
    """
    dev = [found.whole.updates for found in curves if found.part == "dev"]
    steps = np.unique(np.concatenate(dev or [found.whole.updates for found in curves]))
    if len(steps) > ROWS:
        steps = steps[np.unique(np.linspace(0, len(steps) - 1, ROWS).astype(np.intp))]
    return [[f"{step:,.0f}", *(written_value(_value_at(found, step), chart) for found in curves)] for step in steps]


def _value_at(found: Curve, step: float) -> float:
    steps = found.whole.updates
    row = int(np.searchsorted(steps, step, side="right")) - 1
    missing = row < 0 or step > steps[-1] or (found.part == "dev" and steps[row] != step)
    return float("nan") if missing else float(found.whole.values[row])


# --- template values -------------------------------------------------------------------------------------------------

PARTS = ("training", "dev")
LONG = 2  # hours from which on time is in hours, else in minutes


def content(records: Sequence[RunRecord]) -> Mapping[str, Any] | None:
    """Return the values for the section's template; None if there are no curves."""
    names = labels(records)
    shown = [(chart, curves) for chart in CHARTS if (curves := _curves(records, chart))]
    if not shown:
        return None
    drawn = [found for _, curves in shown for found in curves]
    hours = max(float(np.nanmax(found.whole.hours, initial=0.0)) for found in drawn)
    return {
        "time": "hours" if hours >= LONG else "minutes",
        "charts": [_described(chart, curves, records, names) for chart, curves in shown],
        "runs": names,
        "without": [name for record, name in zip(records, names, strict=True) if not record.step],
        "windows": sorted({window(len(found.whole.values)) for found in drawn if found.smoothed}),
    }


def _curves(records: Sequence[RunRecord], chart: Chart) -> list[Curve]:
    """Return a chart's curves, except a language model's dev score: it is the perplexity, which has its own chart."""
    return [
        found
        for run, record in enumerate(records)
        if not (chart.name == "score" and record.task.metric == "perplexity")
        for part in PARTS
        if (found := curve(record, run, chart, part)) is not None
    ]


def _described(
    chart: Chart, curves: Sequence[Curve], records: Sequence[RunRecord], names: Sequence[str]
) -> dict[str, Any]:
    """Return a chart's values for the template, `figures` for curves.js; `names` are the runs' labels."""
    headings = [names[found.run] if len(records) > 1 else "" for found in curves]
    if len(records) == 1 or len({found.part for found in curves}) > 1:
        named = zip(headings, curves, strict=True)
        headings = [f"{name}, {found.part}" if name else found.part for name, found in named]
    measures = dict.fromkeys(records[found.run].task.label for found in curves)
    lines = [line for found, heading in zip(curves, headings, strict=True) for line in _lines(found, heading)]
    return {
        "name": chart.name,
        "title": f"Dev {' and '.join(measures)}" if chart.name == "score" else chart.title,
        "about": chart.about,
        "summaries": [(f.run, heading, summary(f, chart)) for heading, f in zip(headings, curves, strict=True)],
        "headings": headings,
        "rows": table(curves, chart),
        "figures": {"name": chart.name, "axis": chart.axis, "digits": chart.digits, "lines": lines},
    }


def _lines(found: Curve, name: str) -> Iterator[dict[str, Any]]:
    """Yield a curve's lines for curves.js, back to front: a smoothed line is drawn in front of a faint one."""
    styles = [("faint", found.thin), ("smooth", found.smoothed)] if found.smoothed else [("", found.thin)]
    for style, points in styles:
        packed = {key: _packed(column) for key, column in vars(points).items()}
        yield {"run": found.run, "name": name, "dev": found.part == "dev", "style": style, **packed}


def _packed(column: Column) -> str:
    """Encode a column as base64 of single precision: shorter than digits, and precise enough for a screen."""
    with np.errstate(over="ignore"):
        return base64.b64encode(column.astype("<f4").tobytes()).decode("ascii")
