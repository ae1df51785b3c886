"""The first screen of a report: what is trained, on what, how far, how well; for several runs a table of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nmt.report.record import RunRecord


def content(records: Sequence[RunRecord]) -> Mapping[str, Any]:
    """What the first screen shows, as plain values."""
    return {"title": " · ".join(record.recipe.name for record in records)}
