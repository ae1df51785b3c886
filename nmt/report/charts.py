"""The curves of a report, drawn by Bokeh; beside each chart a text, a table and a still picture of the same figures.

The still pictures stand for the charts on paper and where no script runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nmt.report.curves import CHARTS, Chart, Curve, Points, curve, summary, table, window
from nmt.report.record import RunRecord
from nmt.report.stills import still

HEIGHT = 260
"""Of a chart, in pixels"""
MUTED = 0.1
"""Opacity of the curves of a run that is muted"""
PARTS = {"training": "training", "dev": "dev"}


def labels(records: Sequence[RunRecord]) -> list[str]:
    """A name for each run that no other on the page has."""
    names = [record.recipe.name for record in records]
    return [name if names.count(name) == 1 else str(record.path) for name, record in zip(names, records, strict=True)]


def bokeh_script() -> str:
    """Bokeh's own script, which draws the charts."""
    import bokeh

    return (Path(bokeh.__file__).parent / "server/static/js/bokeh.min.js").read_text(encoding="utf-8")


def content(records: Sequence[RunRecord]) -> Mapping[str, Any] | None:
    """What the section shows, as plain values; None before the first figures."""
    names = labels(records)
    shown = [(chart, curves) for chart in CHARTS if (curves := _curves(records, chart))]
    if not shown:
        return None
    return {
        "charts": [_described(chart, curves, records, names) for chart, curves in shown],
        "runs": names,
        "without": [name for record, name in zip(records, names, strict=True) if not record.step],
        "windows": sorted({window(found.points) for _, curves in shown for found in curves if found.smoothed}),
        "document": _document(shown, names),
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
    """A chart for those who read it, and its still picture."""
    headings = [names[found.run] if len(records) > 1 else "" for found in curves]
    if len(records) == 1 or len({found.part for found in curves}) > 1:
        parts = [PARTS[found.part] for found in curves]
        headings = [f"{name}, {part}" if name else part for name, part in zip(headings, parts, strict=True)]
    measures = dict.fromkeys(records[found.run].recipe.kind.label for found in curves)
    return {
        "name": chart.name,
        "title": f"Dev {' and '.join(measures)}" if chart.name == "score" else chart.title,
        "about": chart.about,
        "summaries": [(f.run, heading, summary(f, chart)) for heading, f in zip(headings, curves, strict=True)],
        "headings": headings,
        "rows": table(curves, chart),
        "still": still(curves, chart),
    }


def _document(shown: Sequence[tuple[Chart, list[Curve]]], names: list[str]) -> str:
    """All figures as one Bokeh document, so that they share the range of x; JSON that may stand in a script element."""
    from bokeh.core.json_encoder import serialize_json
    from bokeh.document import Document
    from bokeh.models import Range1d
    from bokeh.models.annotations import Span

    document, shared, cursor = Document(), Range1d(start=0, end=1), Span(dimension="height", line_dash=[3, 3])
    for chart, curves in shown:
        document.add_root(_figure(chart, curves, names, shared, cursor))
    return serialize_json(document.to_json(deferred=False)).replace("<", "\\u003c")


def _figure(chart: Chart, curves: Sequence[Curve], names: list[str], shared: Any, cursor: Any) -> Any:
    """One chart. Its colours, ranges and the kind of its axes are set by curves.js, which knows scheme and switches."""
    from bokeh.models import BasicTicker, BoxZoomTool, CrosshairTool, NumeralTickFormatter, Range1d, WheelZoomTool
    from bokeh.plotting import figure

    plot = figure(
        name=chart.name,
        tags=[{"logarithmic": chart.logarithmic, "steep": chart.steep, "digits": chart.digits}],
        height=HEIGHT,
        sizing_mode="stretch_width",
        x_range=shared,
        y_range=Range1d(start=0, end=1),
        toolbar_location=None,
        tools=[],
        background_fill_color=None,
        border_fill_color=None,
        outline_line_color=None,
        min_border_left=56,
    )
    for found in curves:
        name = names[found.run] + (f", {PARTS[found.part]}" if chart.logged and chart.validated else "")
        _draw(plot, found, name)
    box = BoxZoomTool(dimensions="width")
    plot.add_tools(CrosshairTool(overlay=cursor), box, WheelZoomTool(dimensions="width", modifiers="ctrl"))
    plot.toolbar.active_drag = box
    plot.xaxis.ticker = BasicTicker(desired_num_ticks=4)  # on a phone, more numbers of updates would touch each other
    plot.xaxis.formatter = NumeralTickFormatter(format="0,0.[0000]")
    plot.yaxis.formatter = NumeralTickFormatter(format="0,0.[0000000]")
    return plot


def _draw(plot: Any, found: Curve, name: str) -> None:
    """Draw a curve. The line with a name is the one whose values are read under the pointer."""
    source = _source(found.thin)
    strength = {"line_width": 1, "line_alpha": 0.4} if found.smoothed else {"line_width": 2}
    lines = [plot.line("updates", "y", source=source, name=name, muted_alpha=MUTED, **strength)]
    if found.smoothed:
        lines.append(plot.line("updates", "y", source=_source(found.smoothed), line_width=2, muted_alpha=MUTED))
    if found.part == "dev":
        lines.append(plot.scatter("updates", "y", source=source, size=7, muted_alpha=MUTED))
    for line in lines:
        line.tags = [found.run]


def _source(points: Points) -> Any:
    """Columns of single precision: half the page, and finer than any screen."""
    from bokeh.models import ColumnDataSource

    columns = {"updates": points.steps, "tokens": points.tokens, "hours": points.hours, "y": points.values}
    return ColumnDataSource({name: column.astype(np.float32) for name, column in columns.items()})
