"""The curves of a report, drawn by Bokeh; beside each chart a text, a table and a still picture of the same figures.

The still pictures stand for the charts on paper and where no script runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nmt.report.curves import CHARTS, Chart, Curve, curve, drawn, summary, table, window
from nmt.report.record import RunRecord
from nmt.report.stills import still

HEIGHT = 260
"""Of a chart, in pixels"""
MUTED = 0.1
"""Opacity of the curves of a run that is muted"""
TOUCH = ".bk-events { touch-action: pan-y pinch-zoom !important; }"
"""Lets a finger scroll the page over a chart, which Bokeh would catch"""
PARTS = {"training": "training", "dev": "dev"}
TOOLTIP = """<div class="reading"><b>$name</b> @y{{{digits}}}<br>
<span>update @updates{{0,0}} · @tokens{{0,0.[00]}} M tokens · @hours{{0.00}} h</span></div>"""


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
    smoothed = [len(c) for chart, curves in shown if chart.noisy for c in curves if len(drawn(c, chart)) > 1]
    return {
        "charts": [_described(chart, curves, records, names) for chart, curves in shown],
        "runs": names,
        "without": [name for run, name in enumerate(names) if all(run not in {c.run for c in cs} for _, cs in shown)],
        "windows": sorted({window(points) for points in smoothed}),
        "document": _document(shown, names),
    }


def _curves(records: Sequence[RunRecord], chart: Chart) -> list[Curve]:
    """The whole curves of a chart. A language model has no dev score but its perplexity, which has its own chart."""
    return [
        found
        for run, record in enumerate(records)
        if not (chart.name == "score" and record.recipe.kind.metric == "perplexity")
        for part in PARTS
        if (found := curve(record, run, chart, part)) is not None
    ]


def _described(chart: Chart, curves: Sequence[Curve], records: Sequence[RunRecord], names: list[str]) -> dict[str, Any]:
    """A chart for those who read it, and its still picture."""
    headings = [names[curve.run] if len(records) > 1 else "" for curve in curves]
    if len({curve.part for curve in curves}) > 1 or len(records) == 1:
        parts = [PARTS[curve.part] for curve in curves]
        headings = [f"{name}, {part}" if name else part for name, part in zip(headings, parts, strict=True)]
    measures = dict.fromkeys(records[curve.run].recipe.kind.label for curve in curves)
    return {
        "name": chart.name,
        "title": f"Dev {' and '.join(measures)}" if chart.name == "score" else chart.title,
        "about": chart.about,
        "summaries": [(heading, summary(c, chart)) for heading, c in zip(headings, curves, strict=True)],
        "headings": headings,
        "rows": table(curves, chart),
        "still": still([part for whole in curves for part in drawn(whole, chart)], chart),
    }


def _document(shown: Sequence[tuple[Chart, list[Curve]]], names: list[str]) -> str:
    """All figures as one Bokeh document, so that they share the range of x; JSON that may stand in a script element."""
    from bokeh.core.json_encoder import serialize_json
    from bokeh.document import Document
    from bokeh.models import Range1d

    document, shared = Document(), Range1d(0, 1)
    for chart, curves in shown:
        document.add_root(_figure(chart, curves, names, shared))
    return serialize_json(document.to_json(deferred=False)).replace("<", "\\u003c")


def _figure(chart: Chart, curves: Sequence[Curve], names: list[str], shared: Any) -> Any:
    """One chart. Its colours, ranges and the kind of its axes are set by curves.js, which knows scheme and switches."""
    from bokeh.models import BoxZoomTool, HoverTool, NumeralTickFormatter, Range1d, WheelZoomTool
    from bokeh.plotting import figure

    plot = figure(
        name=chart.name,
        tags=[chart.logarithmic, chart.steep],
        height=HEIGHT,
        sizing_mode="stretch_width",
        x_range=shared,
        y_range=Range1d(0, 1),
        toolbar_location=None,
        tools=[],
        background_fill_color=None,
        border_fill_color=None,
        outline_line_color=None,
        min_border_left=56,
        stylesheets=[TOUCH],
    )
    hovered = [line for curve in curves for line in _draw(plot, curve, chart, names)]
    digits = {".3g": "0.00e+0", ",.0f": "0,0"}.get(chart.digits, "0,0." + "0" * int(chart.digits[-2]))
    hover = HoverTool(mode="vline", renderers=hovered, tooltips=TOOLTIP.format(digits=digits), attachment="horizontal")
    box = BoxZoomTool(dimensions="width")
    plot.add_tools(hover, box, WheelZoomTool(dimensions="width", modifiers="ctrl"))
    plot.toolbar.active_drag = box
    plot.xaxis.formatter = NumeralTickFormatter(format="0,0.[0000]")
    plot.yaxis.formatter = NumeralTickFormatter(format="0,0.[0000000]")
    return plot


def _draw(plot: Any, curve: Curve, chart: Chart, names: list[str]) -> list[Any]:
    """Draws a curve; gives what shows its values under the pointer: the dots of checkpoints, else the line."""
    name = f"{names[curve.run]}, {PARTS[curve.part]}"
    first, *smoothed = drawn(curve, chart)
    strength = {"line_width": 1, "line_alpha": 0.35} if smoothed else {"line_width": 2}
    line = plot.line("updates", "y", source=_source(first), name=name, tags=[curve.run], muted_alpha=MUTED, **strength)
    for part in smoothed:
        plot.line("updates", "y", source=_source(part), tags=[curve.run], line_width=2, muted_alpha=MUTED)
    if curve.part == "training":
        return [line]
    return [
        plot.scatter("updates", "y", source=line.data_source, name=name, tags=[curve.run], size=7, muted_alpha=MUTED)
    ]


def _source(part: Curve) -> Any:
    """Columns of single precision: half the page, and finer than any screen."""
    from bokeh.models import ColumnDataSource

    columns = {"updates": part.steps, "tokens": part.tokens, "hours": part.hours, "y": part.values}
    return ColumnDataSource({name: column.astype(np.float32) for name, column in columns.items()})
