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


def curve_of(record: RunRecord, run: int, chart: Chart, part: str) -> Curve | None:
    """Return a run's curve in a chart; None if it has no finite value."""
    if part == "dev":
        figures = record.validated
        key = chart.validated
    else:
        figures = record.logged
        key = chart.logged
    if key not in figures or not np.isfinite(figures[key]).any():
        return None
    values = figures[key]
    if chart.percent:
        values = values * 100
    points = {
        "updates": figures["step"],
        "tokens": figures["tokens"] / 1e6,
        "hours": figures["seconds"] / 3600,
        "values": values,
    }
    is_smoothed = chart.noisy and part == "training" and len(values) >= SMOOTHED_FROM
    return Curve(run, part, points, is_smoothed)


def thinned(values: Column, most: int = POINTS) -> NDArray[np.intp]:
    """Return the indices of at most `most` values: each bucket's minimum and maximum, so that no spike is lost.

    The first and last value are kept, and so are gaps as wide as a bucket.
    """
    if len(values) <= most:
        return np.arange(len(values))
    edges = np.linspace(0, len(values), most // 2).astype(np.intp)[:-1]  # two values of each bucket
    bucket = np.searchsorted(edges, np.arange(len(values)), side="right")  # (values,), from 1
    ascending = np.lexsort((values, bucket))  # by bucket, then by value; NaN sorts last
    end = len(edges) + 1
    counts = np.bincount(bucket, minlength=end)[1:]  # (buckets,)
    finite = np.bincount(bucket[np.isfinite(values)], minlength=end)[1:]
    starts = np.cumsum(counts) - counts
    lowest = ascending[starts]
    highest = ascending[starts + np.maximum(finite - 1, 0)]  # the last one before a bucket's NaNs
    return np.unique([0, len(values) - 1, *lowest, *highest]).astype(np.intp)


def window(points: int) -> int:
    """Return the width of the smoothing window: an odd number of points, about 2% of all."""
    return points // 50 // 2 * 2 + 3


def smoothed(values: Column) -> Column:
    """Return the centred moving average of the finite values, truncated at both ends; NaN where a window has none."""
    half = window(len(values)) // 2
    finite = np.isfinite(values)
    sums = np.cumsum(np.concatenate([[0.0], np.where(finite, values, 0.0)]))  # (points + 1,): sums of all before
    counts = np.cumsum(np.concatenate([[0], finite]))
    position = np.arange(len(values))
    first = np.maximum(position - half, 0)
    end = np.minimum(position + half + 1, len(values))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((sums[end] - sums[first]) / (counts[end] - counts[first]))


def summary(curve: Curve, chart: Chart) -> str:
    """Describe a curve's first, best and last value."""
    finite = np.isfinite(curve.points["values"])
    values = curve.points["values"][finite]
    steps = curve.points["updates"][finite]

    def describe(row: int) -> str:
        return f"{written_value(values[row], chart)} at {steps[row]:,.0f}"

    first = describe(0).replace("at", "at update")
    last = len(values) - 1
    best = int(values.argmin() if chart.best == "lowest" else values.argmax())
    if last == 0:
        return first
    if best == last:
        return f"{first}, {chart.best} and last {describe(last)}"
    return f"{first}, {chart.best} {describe(best)}, last {describe(last)}"


def written_value(value: float, chart: Chart) -> str:
    """Format a value for the page."""
    if not np.isfinite(value):
        return "–"
    text = f"{value:{chart.digits}}"
    return f"{text} %" if chart.percent else text


def table(curves: Sequence[Curve], chart: Chart) -> list[list[str]]:
    """Return at most `ROWS` rows, one per checkpoint, or per logged step without dev curves: step and curves' values.

    A training curve's value is the last one logged by then. A run that ended earlier has a dash.
    """
    dev = [curve for curve in curves if curve.part == "dev"]
    steps = np.unique(np.concatenate([curve.points["updates"] for curve in dev or curves]))
    if len(steps) > ROWS:
        steps = steps[spaced(len(steps), ROWS)]
    rows = []
    for step in steps:
        values = [written_value(_value_at(curve, step), chart) for curve in curves]
        rows.append([f"{step:,.0f}", *values])
    return rows


def _value_at(curve: Curve, step: float) -> float:
    steps = curve.points["updates"]
    row = int(np.searchsorted(steps, step, side="right")) - 1
    if row < 0 or step > steps[-1]:
        return float("nan")
    if curve.part == "dev" and steps[row] != step:  # another run's checkpoint
        return float("nan")
    return float(curve.points["values"][row])


def spaced(count: int, most: int) -> NDArray[np.intp]:
    """Return at most `most` of `count` indices, evenly spaced, among them the first and the last."""
    return np.unique(np.linspace(0, count - 1, most).astype(np.intp))


# --- template values -------------------------------------------------------------------------------------------------

LONG = 2  # hours from which on time is in hours, else in minutes


def content(records: Sequence[RunRecord]) -> Mapping[str, Any] | None:
    """Return the values for the section's template; None if there are no curves."""
    names = labels(records)
    charts = []
    drawn: list[Curve] = []
    for chart in CHARTS:
        curves = _curves(records, chart)
        if curves:
            charts.append(_described(chart, curves, records, names))
            drawn += curves
    if not drawn:
        return None
    hours = 0.0
    windows = set()
    for curve in drawn:
        hours = max(hours, float(np.nanmax(curve.points["hours"], initial=0.0)))
        if curve.is_smoothed:
            windows.add(window(len(curve.points["values"])))
    return {
        "time": "hours" if hours >= LONG else "minutes",
        "charts": charts,
        "runs": names,
        "without": [name for record, name in zip(records, names, strict=True) if not record.step],
        "windows": sorted(windows),
    }


def _curves(records: Sequence[RunRecord], chart: Chart) -> list[Curve]:
    """Return the curves of all runs in a chart."""
    curves = []
    for run, record in enumerate(records):
        for part in ("training", "dev"):
            curve = curve_of(record, run, chart, part)
            if curve is not None:
                curves.append(curve)
    return curves


def _described(
    chart: Chart, curves: Sequence[Curve], records: Sequence[RunRecord], names: Sequence[str]
) -> dict[str, Any]:
    """Return a chart's values for the template, `figures` for curves.js; `names` are the runs' labels."""
    headings = _headings(curves, names)
    title = chart.title
    if chart.name == "score":
        measures = dict.fromkeys(records[curve.run].task.label for curve in curves)
        title = f"Dev {' and '.join(measures)}"
    summaries = []
    lines: list[dict[str, Any]] = []
    for curve, heading in zip(curves, headings, strict=True):
        summaries.append((curve.run, heading, summary(curve, chart)))
        lines += _lines(curve, heading)
    return {
        "name": chart.name,
        "title": title,
        "about": chart.about,
        "summaries": summaries,
        "headings": headings,
        "rows": table(curves, chart),
        "figures": {"name": chart.name, "axis": chart.axis, "digits": chart.digits, "lines": lines},
    }


def _headings(curves: Sequence[Curve], names: Sequence[str]) -> list[str]:
    """Name each curve of a chart by what tells it apart: its run, its part, or both."""
    has_both_parts = len({curve.part for curve in curves}) > 1
    headings = []
    for curve in curves:
        if len(names) == 1:
            headings.append(curve.part)
        elif has_both_parts:
            headings.append(f"{names[curve.run]}, {curve.part}")
        else:
            headings.append(names[curve.run])
    return headings


def _lines(curve: Curve, name: str) -> Iterator[dict[str, Any]]:
    """Yield a curve's lines for curves.js, back to front: a smoothed line is drawn in front of a faint one."""
    values = curve.points["values"]
    if curve.is_smoothed:
        yield _line(curve, name, "faint", values, thinned(values))
        yield _line(curve, name, "smooth", smoothed(values), spaced(len(values), POINTS // 4))  # without spikes, few do
    else:
        yield _line(curve, name, "", values, thinned(values))


def _line(curve: Curve, name: str, style: str, values: Column, rows: NDArray[np.intp]) -> dict[str, Any]:
    """Return a line through these rows of `values`, with a curve's other columns.

    Columns are base64 of single precision: shorter than digits, and precise enough for a screen.
    """
    packed = {}
    for key, column in {**curve.points, "values": values}.items():
        with np.errstate(over="ignore"):
            single = column[rows].astype("<f4")
        packed[key] = base64.b64encode(single.tobytes()).decode()
    return {"run": curve.run, "name": name, "dev": curve.part == "dev", "style": style, **packed}
