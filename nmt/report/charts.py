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
    logged: str = ""
    """Key of the training curve in `RunRecord.logged`"""
    validated: str = ""
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
    Chart("mfu", "Share of the peak", "The model's FLOPs, of those that the GPUs could do in 16 bits (MFU)", ".1f",
          logged="mfu", best="highest", noisy=True, axis="linear", percent=True),
    Chart("padding", "Padding", "Share of the cells of batches that hold no token, in %", ".1f",
          logged="padding", best="highest", noisy=True, axis="linear", percent=True),
    Chart("gradient_norm", "Gradient norm", "Before clipping, mean over each log interval", ".3f",
          logged="gradient_norm", best="highest", noisy=True),
)
# fmt: on


@dataclass(frozen=True)
class Curve:
    """A run's training or dev curve in a chart."""

    run: int
    """Index of the run on the page"""
    part: str
    """`training` or `dev`"""
    points: Mapping[str, Column]
    """Columns of shape (points,): updates, tokens in millions, hours and values, where NaN leaves a gap in the line"""
    is_smoothed: bool
    """Whether a moving average is drawn in front of it: not of dev, short and smooth curves"""


def curve(record: RunRecord, run: int, chart: Chart, part: str) -> Curve | None:
    """Return a run's curve in a chart; None if it has no finite value."""
    figures, key = (record.validated, chart.validated) if part == "dev" else (record.logged, chart.logged)
    if key not in figures or not np.isfinite(figures[key]).any():
        return None
    values = figures[key] * (100 if chart.percent else 1)
    points = {"updates": figures["step"], "tokens": figures["tokens"] / 1e6, "hours": figures["seconds"] / 3600}
    is_smoothed = chart.noisy and part == "training" and len(values) >= SMOOTHED_FROM
    return Curve(run, part, {**points, "values": values}, is_smoothed)


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
    finite = np.isfinite(found.points["values"])
    values, steps = found.points["values"][finite], found.points["updates"][finite]
    best = int(values.argmin() if chart.best == "lowest" else values.argmax())
    told = [f"{written_value(values[row], chart)} at {steps[row]:,.0f}" for row in (0, best, -1)]
    first = told[0].replace("at", "at update")
    if len(values) == 1:
        return first
    if best == len(values) - 1:
        return f"{first}, {chart.best} and last {told[2]}"
    return f"{first}, {chart.best} {told[1]}, last {told[2]}"


def written_value(value: float, chart: Chart) -> str:
    """Format a value for the page."""
    return "–" if not np.isfinite(value) else f"{value:{chart.digits}}" + (" %" if chart.percent else "")


def table(curves: Sequence[Curve], chart: Chart) -> list[list[str]]:
    """Return a row per checkpoint, or per logged step without dev curves: the step and each curve's value there.

    A training curve's value is the last one logged by then. A run that ended earlier has a dash.
    """
    dev = [found.points["updates"] for found in curves if found.part == "dev"]
    steps = np.unique(np.concatenate(dev or [found.points["updates"] for found in curves]))
    if len(steps) > ROWS:
        steps = steps[spaced(len(steps), ROWS)]
    return [[f"{step:,.0f}", *(written_value(_value_at(found, step), chart) for found in curves)] for step in steps]


def _value_at(found: Curve, step: float) -> float:
    steps = found.points["updates"]
    row = int(np.searchsorted(steps, step, side="right")) - 1
    missing = row < 0 or step > steps[-1] or (found.part == "dev" and steps[row] != step)
    return float("nan") if missing else float(found.points["values"][row])


def spaced(count: int, most: int) -> NDArray[np.intp]:
    """Return at most `most` of `count` indices, evenly spaced, among them the first and the last."""
    return np.unique(np.linspace(0, count - 1, most).astype(np.intp))


# --- template values -------------------------------------------------------------------------------------------------

LONG = 2  # hours from which on time is in hours, else in minutes


def content(records: Sequence[RunRecord]) -> Mapping[str, Any] | None:
    """Return the values for the section's template; None if there are no curves."""
    names = labels(records)
    kinds = [(run, record, part) for run, record in enumerate(records) for part in ("training", "dev")]
    shown: dict[Chart, list[Curve]] = {}
    for chart in CHARTS:
        for run, record, part in kinds:
            if found := curve(record, run, chart, part):
                shown.setdefault(chart, []).append(found)
    if not shown:
        return None
    drawn = [found for curves in shown.values() for found in curves]
    hours = max(float(np.nanmax(found.points["hours"], initial=0.0)) for found in drawn)
    return {
        "time": "hours" if hours >= LONG else "minutes",
        "charts": [_described(chart, curves, records, names) for chart, curves in shown.items()],
        "runs": names,
        "without": [name for record, name in zip(records, names, strict=True) if not record.step],
        "windows": sorted({window(len(found.points["values"])) for found in drawn if found.is_smoothed}),
    }


def _described(
    chart: Chart, curves: Sequence[Curve], records: Sequence[RunRecord], names: Sequence[str]
) -> dict[str, Any]:
    """Return a chart's values for the template, `figures` for curves.js; `names` are the runs' labels."""
    form = "{1}" if len(records) == 1 else "{0}, {1}" if len({found.part for found in curves}) > 1 else "{0}"
    headings = [form.format(names[found.run], found.part) for found in curves]
    measures = dict.fromkeys(records[found.run].task.label for found in curves)
    named = list(zip(headings, curves, strict=True))
    lines = [line for heading, found in named for line in _lines(found, heading)]
    return {
        "name": chart.name,
        "title": f"Dev {' and '.join(measures)}" if chart.name == "score" else chart.title,
        "about": chart.about,
        "summaries": [(found.run, heading, summary(found, chart)) for heading, found in named],
        "headings": headings,
        "rows": table(curves, chart),
        "figures": {"name": chart.name, "axis": chart.axis, "digits": chart.digits, "lines": lines},
    }


def _lines(found: Curve, name: str) -> Iterator[dict[str, Any]]:
    """Yield a curve's lines for curves.js, back to front: a smoothed line is drawn in front of a faint one.

    Columns are base64 of single precision: shorter than digits, and precise enough for a screen.
    """
    values = found.points["values"]
    lines = [("", values, thinned(values))]
    if found.is_smoothed:
        lines = [("faint", *lines[0][1:]), ("smooth", smoothed(values), spaced(len(values), POINTS // 4))]
    for style, drawn, rows in lines:
        with np.errstate(over="ignore"):
            columns = {k: column[rows].astype("<f4") for k, column in {**found.points, "values": drawn}.items()}
        packed = {key: base64.b64encode(column.tobytes()).decode() for key, column in columns.items()}
        yield {"run": found.run, "name": name, "dev": found.part == "dev", "style": style, **packed}
