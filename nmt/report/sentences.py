"""Dev sentences with what the checkpoints made of them, small enough to stand in a page.

An output that several checkpoints share is stored once. The outputs of a sentence stand side by side, so that deflate
finds what they have in common. The page inflates them, and compares words where it shows them.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from nmt.metrics.brackets import DELETED
from nmt.report.charts import labels
from nmt.report.record import RunRecord


def content(records: Sequence[RunRecord]) -> Mapping[str, Any] | None:
    """The packed sentences of the runs that have dev outputs, and what of them is compared."""
    shown = [record for record in records if record.dev_outputs]
    if not shown:
        return None
    parts = sorted({"constituents" if record.recipe.kind.has_trees else "words" for record in shown})
    return {"packed": pack(sentences(shown)), "parts": " or ".join(parts)}


def pack(values: Mapping[str, Any]) -> str:
    """Write values as `sentences.js` reads them: JSON, deflated, in base64."""
    plain = json.dumps(values, ensure_ascii=False, separators=(",", ":"))
    return base64.b64encode(zlib.compress(plain.encode("utf-8", "replace"))).decode("ascii")


def sentences(records: Sequence[RunRecord]) -> dict[str, Any]:
    """Collect development sets, which several runs may share, and what the checkpoints of each run made of them."""
    sets: dict[tuple[tuple[str, ...], tuple[str, ...]], int] = {}
    runs = []
    for name, record in zip(labels(records), records, strict=True):
        texts = tuple(record.sources), tuple(record.references)
        runs.append({"set": sets.setdefault(texts, len(sets)), "name": name, **_run(record)})
    return {
        "sets": [{"sources": sources, "references": references} for sources, references in sets],
        "runs": runs,
        "unscored": sorted(DELETED),
    }


def _run(record: RunRecord) -> dict[str, Any]:
    kind, data = record.recipe.kind, record.recipe.data
    dev_scores = _by_step(record.validated)
    steps = [checkpoint.step for checkpoint in record.dev_outputs]
    return {
        "languages": [data.source, data.source if kind.has_trees else data.target],
        "trees": kind.has_trees,
        "metric": kind.label,
        "measure": "F1" if kind.has_trees else "chrF",
        "steps": steps,
        "devScores": [dev_scores.get(step) for step in steps],
        "sentences": [_sentence(record, number) for number in range(len(record.sources))],
    }


def _sentence(record: RunRecord, number: int) -> list[list[Any]]:
    """The distinct outputs for a sentence, their scores, and for each checkpoint which of them it gave."""
    scores: dict[str, float | None] = {}
    for checkpoint in record.dev_outputs:
        scores.setdefault(checkpoint.outputs[number], _rounded(checkpoint.scores[number], 1))
    place = {output: index for index, output in enumerate(scores)}
    given = [place[checkpoint.outputs[number]] for checkpoint in record.dev_outputs]
    return [list(scores), list(scores.values()), given]


def _by_step(validated: Mapping[str, Any]) -> dict[int, float | None]:
    if "step" not in validated or "score" not in validated:
        return {}
    pairs = zip(validated["step"], validated["score"], strict=True)
    return {int(step): _rounded(float(score), 2) for step, score in pairs}


def _rounded(figure: float, digits: int) -> float | None:
    """Round a figure; None, which JSON can hold, if it is not finite."""
    return round(figure, digits) if math.isfinite(figure) else None
