"""The curves of a report: each chart drawn as SVG, with its figures for curves.js, a text and a table beside it."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nmt.report.curves import CHARTS, Array, Chart, Curve, curve, summary, table, window
from nmt.report.drawing import drawing, lines_of
from nmt.report.record import RunRecord

PARTS = ("training", "dev")


def labels(records: Sequence[RunRecord]) -> list[str]:
    """A name for each run that no other on the page has."""
    names = [record.recipe.name for record in records]
    return [name if names.count(name) == 1 else str(record.path) for name, record in zip(names, records, strict=True)]


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


def _packed(column: Array) -> str:
    """Single precision in base64: shorter than digits, and finer than any screen."""
    with np.errstate(over="ignore"):
        return base64.b64encode(column.astype("<f4").tobytes()).decode("ascii")
