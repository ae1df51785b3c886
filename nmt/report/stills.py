"""Small pictures of curves as SVG: sparklines, and what stands for a chart on paper and where no script runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nmt.report.curves import Array, Chart, Curve

WIDTH, HEIGHT, LEFT, BOTTOM = 420, 190, 48, 24
POINTS = 300
"""Most points of a line: paper shows no more at this size."""


@dataclass(frozen=True)
class Scale:
    """Maps values from `low` to `high` to pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: Any) -> Any:
        """The pixel of a value, or of each of an array."""
        return self.start + (value - self.low) / ((self.high - self.low) or 1.0) * (self.end - self.start)

    def ticks(self, wanted: int) -> list[float]:
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


def polyline(x: Array, y: Array, across: Scale, up: Scale) -> str:
    """The finite points of a curve, thinned, as SVG writes them."""
    finite = np.flatnonzero(np.isfinite(y))
    chosen = finite[np.unique(np.linspace(0, len(finite) - 1, min(POINTS, len(finite))).astype(np.intp))]
    pairs = zip(across(x[chosen]), up(y[chosen]), strict=True)
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in pairs)


def still(curves: Sequence[Curve], chart: Chart) -> Mapping[str, Any]:
    """A picture of a chart over updates: its lines and the ticks of its axes, in pixels."""
    drawn = [(found, points) for found in curves for points in (found.thin, found.smoothed) if points is not None]
    last = max(float(points.steps[-1]) for _, points in drawn)
    start = last / 10 if chart.steep else 0.0
    settled = np.concatenate([points.values[points.steps >= start] for _, points in drawn])
    if not np.isfinite(settled).any():  # the run diverged early
        settled = np.concatenate([points.values for _, points in drawn])
    settled = settled[np.isfinite(settled)]
    across = Scale(0, last, LEFT, WIDTH - 12)
    up = Scale(float(settled.min()), float(settled.max()), HEIGHT - BOTTOM, 10)
    lines = [
        {
            "run": found.run,
            "style": "smooth" if points is found.smoothed else "faint" if found.smoothed else "",
            "points": polyline(points.steps, np.where(points.values <= up.high, points.values, np.nan), across, up),
        }
        for found, points in drawn
    ]
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "left": LEFT,
        "bottom": HEIGHT - BOTTOM,
        "lines": lines,
        "across": [(round(across(tick), 1), f"{tick:,.0f}") for tick in across.ticks(4)],
        "up": [(round(up(tick), 1), f"{tick:,.6g}") for tick in up.ticks(3)],
    }


def sparkline(x: Array, y: Array, best: int, width: int = 320, height: int = 64) -> Mapping[str, Any] | None:
    """A bare curve with a dot at its best point, which stands at this position; None of fewer than two points."""
    finite = np.isfinite(y)
    if finite.sum() < 2:
        return None
    across = Scale(float(x[finite][0]), float(x[finite][-1]), 5, width - 5)
    up = Scale(float(y[finite].min()), float(y[finite].max()), height - 5, 5)
    return {
        "width": width,
        "height": height,
        "points": polyline(x, y, across, up),
        "x": round(float(across(x[best])), 1),
        "y": round(float(up(y[best])), 1),
    }
