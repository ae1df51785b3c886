"""The curves of a report drawn as SVG, as they stand on screen and on paper, with and without scripts.

Beside a chart stand its figures for curves.js, which draws it anew by the same rules where someone zooms in or changes
an axis, a text and a table.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nmt.report.curves import CHARTS, Chart, Curve, Points, curve, summary, table, thinned, window
from nmt.report.record import Column, RunRecord, labels

PARTS = ("training", "dev")
SIDE = 1000.0
"""Width and height of a chart in units of its paths; the page stretches it to its place."""
POINTS = 600
"""Most points of a path; zooming in shows the others."""
ASIDE = 0.015
"""Of the length of a run, before its first and after its last update"""
MARGIN = 0.05
"""Of the height of a chart, above and below what is seen of the curves"""
FAR = 1e5
"""Units that a path leaves a chart by at most; a run that diverges has figures no SVG can hold."""

# --- the section ----------------------------------------------------------------------------------------------------


def content(records: Sequence[RunRecord]) -> Mapping[str, Any] | None:
    """What the section shows, as plain values; None before the first figures."""
    names = labels(records)
    shown = [(chart, curves) for chart in CHARTS if (curves := _curves(records, chart))]
    if not shown:
        return None
    last = max(float(found.whole.steps[-1]) for _, curves in shown for found in curves)
    return {
        "charts": [
            _described(chart, curves, records, names) | {"drawing": drawing(curves, chart, last)}
            for chart, curves in shown
        ],
        "runs": names,
        "without": [name for record, name in zip(records, names, strict=True) if not record.step],
        "windows": sorted({window(found.points) for _, curves in shown for found in curves if found.smoothed}),
        "figures": [_figures(chart, curves, names) for chart, curves in shown],
    }


def _curves(records: Sequence[RunRecord], chart: Chart) -> list[Curve]:
    """The curves of a chart. A language model has no dev score but its perplexity, which has its own chart."""
    return [
        found
        for run, record in enumerate(records)
        if not (chart.name == "score" and record.recipe.kind.metric == "perplexity")
        for part in PARTS
        if (found := curve(record, run, chart, part)) is not None
    ]


def _described(chart: Chart, curves: Sequence[Curve], records: Sequence[RunRecord], names: list[str]) -> dict[str, Any]:
    """A chart as the template shows it."""
    headings = [names[found.run] if len(records) > 1 else "" for found in curves]
    if len(records) == 1 or len({found.part for found in curves}) > 1:
        named = zip(headings, curves, strict=True)
        headings = [f"{name}, {found.part}" if name else found.part for name, found in named]
    measures = dict.fromkeys(records[found.run].recipe.kind.label for found in curves)
    return {
        "name": chart.name,
        "title": f"Dev {' and '.join(measures)}" if chart.name == "score" else chart.title,
        "about": chart.about,
        "summaries": [(f.run, heading, summary(f, chart)) for heading, f in zip(headings, curves, strict=True)],
        "headings": headings,
        "rows": table(curves, chart),
    }


def _figures(chart: Chart, curves: Sequence[Curve], names: list[str]) -> dict[str, Any]:
    """What curves.js draws anew and reads under the pointer; a smoothed line, which is not read, has no name."""
    both = chart.logged and chart.validated
    lines = [
        {
            "run": found.run,
            "name": None if points is found.smoothed else names[found.run] + (f", {found.part}" if both else ""),
            "updates": _packed(points.steps),
            "tokens": _packed(points.tokens),
            "hours": _packed(points.hours),
            "values": _packed(points.values),
        }
        for found, points in lines_of(curves)
    ]
    shown = {"name": chart.name, "steep": chart.steep, "logarithmic": chart.logarithmic, "digits": chart.digits}
    return {**shown, "lines": lines}


def _packed(column: Column) -> str:
    """Single precision in base64: shorter than digits, and finer than any screen."""
    with np.errstate(over="ignore"):
        return base64.b64encode(column.astype("<f4").tobytes()).decode("ascii")


# --- drawing ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scale:
    """Maps values from `low` to `high` to units from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: Any) -> Any:
        """Place a value, or each of an array."""
        return self.start + (value - self.low) / ((self.high - self.low) or 1.0) * (self.end - self.start)

    def ticks(self, wanted: int = 3) -> list[float]:
        """Round values within the range, at least `wanted` and as few of them as there can be."""
        width = self.high - self.low
        if width <= 0:
            return [self.low]
        power = 10.0 ** math.floor(math.log10(width))
        for step in (power * factor for factor in (5, 2, 1, 0.5, 0.2, 0.1)):
            first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
            if last - first + 1 >= wanted:
                break
        return [number * step for number in range(first, last + 1)]


def path(x: Column, y: Column, across: Scale, up: Scale) -> str:
    """The points of a curve as the path of SVG, with a gap where y is not finite."""
    parts, pen = [], "M"
    for a, b in zip(across(x), np.clip(up(y), -FAR, FAR), strict=True):
        if math.isfinite(b):
            parts.append(f"{pen}{a:.1f},{b:.1f}")
            pen = "L"
        else:
            pen = "M"
    return "".join(parts)


def dots(x: Column, y: Column, across: Scale, up: Scale) -> str:
    """The points as lines without length: their round ends stay round however the chart is stretched."""
    seen = np.isfinite(y)
    return "".join(f"M{a:.1f},{b:.1f}h0" for a, b in zip(across(x[seen]), np.clip(up(y[seen]), -FAR, FAR), strict=True))


def lines_of(curves: Sequence[Curve]) -> list[tuple[Curve, Points]]:
    """What is drawn of curves, one in front of the other."""
    return [(found, points) for found in curves for points in (found.thin, found.smoothed) if points is not None]


def drawing(curves: Sequence[Curve], chart: Chart, last: float) -> Mapping[str, Any]:
    """A chart up to an update: its paths, each with its place in `lines_of`, and its ticks in percent of both sides."""
    lines = lines_of(curves)
    across = Scale(-ASIDE * last, (1 + ASIDE) * last, 0, SIDE)
    up = _up([points for _, points in lines], last / 10 if chart.steep else 0.0)
    paths = []
    for place, (found, points) in enumerate(lines):
        drawn = points.at(thinned(points.values, POINTS))
        style = "smooth" if points is found.smoothed else "faint" if found.smoothed else ""
        shapes = {"line": path} | ({"dots": dots} if found.part == "dev" else {})
        for shape, draw in shapes.items():
            d = draw(drawn.steps, drawn.values, across, up)
            paths.append({"line": place, "run": found.run, "style": f"{shape} {style}".strip(), "d": d})
    return {
        "paths": paths,
        "across": [(f"{across(tick) / SIDE:.2%}", tick_label(tick)) for tick in across.ticks()],
        "up": [(f"{up(tick) / SIDE:.2%}", tick_label(tick)) for tick in up.ticks()],
    }


def _up(lines: Sequence[Points], settled: float) -> Scale:
    """The vertical scale: down to the lowest value, and up to the highest one from an update on, if there is one."""
    finite = np.concatenate([points.values[np.isfinite(points.values)] for points in lines])
    late = np.concatenate([points.values[np.isfinite(points.values) & (points.steps >= settled)] for points in lines])
    low, high = float(finite.min()), float((late if len(late) else finite).max())
    margin = (high - low) * MARGIN or abs(high) * MARGIN or 1.0
    return Scale(low - margin, high + margin, SIDE, 0)


def tick_label(tick: float) -> str:
    """A round value as an axis has it: 12,000, 0.0005 or 1e+12."""
    return f"{tick:.3g}" if abs(tick) >= 1e9 else f"{tick:,.10f}".rstrip("0").rstrip(".")


def sparkline(x: Column, y: Column, best: int, width: int = 320, height: int = 64) -> Mapping[str, Any] | None:
    """A bare curve with a dot at its best point, which stands at this position; None of fewer than two points."""
    finite = np.isfinite(y)
    if finite.sum() < 2:
        return None
    across = Scale(float(x[finite][0]), float(x[finite][-1]), 5, width - 5)
    up = Scale(float(y[finite].min()), float(y[finite].max()), height - 5, 5)
    return {
        "width": width,
        "height": height,
        "d": path(x[finite], y[finite], across, up),
        "x": round(float(across(x[best])), 1),
        "y": round(float(up(y[best])), 1),
    }
