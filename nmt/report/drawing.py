"""Geometry of a report's drawings: scales with their ticks, paths of SVG, and labels that keep apart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nmt.report.record import Column

SIDE = 1000.0  # width and height of a chart in SVG units; the page scales both to fit
APART = 7.0  # minimum distance of the names at the ends of lines, in percent of the height
FAR = 1e5  # bound of path coordinates: SVG cannot represent the values of a diverging run


@dataclass(frozen=True)
class Scale:
    """Linear map from the range `low` to `high` onto `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: Any) -> Any:
        """Map a value or an array."""
        return self.start + (value - self.low) / ((self.high - self.low) or 1.0) * (self.end - self.start)

    def ticks(self, wanted: int = 3) -> list[float]:
        """Return round values within the range: as few as possible, but at least `wanted`."""
        width = self.high - self.low
        if width <= 0:
            return [self.low]
        power = 10.0 ** math.floor(math.log10(width))
        for step in (power * factor for factor in (5, 2, 1, 0.5, 0.2, 0.1)):
            first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
            if last - first + 1 >= wanted:
                break
        return [number * step for number in range(first, last + 1)]


def path(x: Column, y: Column, across: Scale, up: Scale, dots: bool = False) -> str:
    """Return a curve as an SVG path, with gaps where `y` is not finite.

    With `dots`, draw zero-length lines at its points: their round caps stay round when the chart is stretched.
    """
    parts, pen = [], "M"
    for a, b in zip(across(x), np.clip(up(y), -FAR, FAR), strict=True):
        if math.isfinite(b):
            parts.append(f"M{a:.1f},{b:.1f}h0" if dots else f"{pen}{a:.1f},{b:.1f}")
        pen = "L" if math.isfinite(b) else "M"
    return "".join(parts)


def powers(scale: Scale) -> list[float]:
    """Return the common logarithms of round values within a scale of common logarithms."""
    width = scale.high - scale.low
    factors = (1, 2, 5) if width < 2 else (1,)
    every = math.ceil(width / 6)
    found = [p + math.log10(f) for p in range(math.floor(scale.low), math.ceil(scale.high) + 1, every) for f in factors]
    within = [tick for tick in found if scale.low <= tick <= scale.high]
    if len(within) > 1:
        return within
    linear = Scale(10**scale.low, 10**scale.high, 0, 1)
    return [math.log10(tick) for tick in linear.ticks() if tick > 0]


def spaced(tops: Sequence[float]) -> list[float]:
    """Return positions in percent, moved as little as needed to be at least `APART` from each other."""
    order = sorted(range(len(tops)), key=lambda index: tops[index])
    found, lowest = list(tops), -math.inf
    for index in order:
        lowest = found[index] = max(found[index], lowest + APART)
    highest = 100.0 + APART
    for index in reversed(order):
        highest = found[index] = min(found[index], highest - APART)
    return [round(top, 2) for top in found]


def tick_label(tick: float) -> str:
    """Format a tick's label: 12,000, 0.0005 or 1e+12."""
    return f"{tick:.3g}" if abs(tick) >= 1e9 else f"{tick:,.10f}".rstrip("0").rstrip(".")


def sparkline(
    x: Column, y: Column, best: int, shared: Sequence[Column], width: int = 320, height: int = 64
) -> Mapping[str, Any]:
    """Draw a curve of at least two finite points without axes, with a dot at index `best`.

    `shared` holds the x and y of all curves on its scale.
    """
    finite, all_x, all_y = np.isfinite(y), *(column[np.isfinite(shared[1])] for column in shared)
    across = Scale(float(all_x.min()), float(all_x.max()), 5, width - 5)
    up = Scale(float(all_y.min()), float(all_y.max()), height - 5, 5)
    at = {"x": round(float(across(x[best])), 1), "y": round(float(up(y[best])), 1)}
    return {"width": width, "height": height, "d": path(x[finite], y[finite], across, up), **at}
