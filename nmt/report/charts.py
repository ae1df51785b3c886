"""The curves of a report, drawn by Bokeh, with a text and a table of the same figures for whoever does not see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nmt.report.record import RunRecord


def bokeh_script() -> str:
    """Bokeh's own script, which draws the charts."""
    import bokeh

    return (Path(bokeh.__file__).parent / "server/static/js/bokeh.min.js").read_text(encoding="utf-8")


def content(records: Sequence[RunRecord]) -> Mapping[str, Any] | None:
    """What the section shows, as plain values; None before the first figures."""
    return {}
