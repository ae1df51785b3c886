"""The section about where the outputs of runs on one development set differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nmt.metrics.differences import ChangedLine, Differences, Means, parts
from nmt.report.record import RunRecord, labels

SHOWN = 10  # sentences that gained, and that lost most
SOURCE, REFERENCE = "Source", "Reference"


def content(records: Sequence[RunRecord]) -> Mapping[str, Any] | None:
    """Compare the last outputs of each run with those of the first one; return None if no two runs can be compared."""
    shown = [pair for pair in zip(labels(records), records, strict=True) if pair[1].dev_outputs]
    if not shown:
        return None
    (first, baseline), *others = shown
    pairs = [
        _compared(name, record, first, baseline)
        for name, record in others
        if (record.sources, record.references) == (baseline.sources, baseline.references)
    ]
    return {"pairs": pairs} if pairs else None


def _compared(name: str, record: RunRecord, first: str, baseline: RunRecord) -> dict[str, Any]:
    newest = record.dev_outputs[-1]
    before = baseline.dev_outputs[-1]
    outputs = {f"{first}, update {before.step:,}": before.outputs, f"{name}, update {newest.step:,}": newest.outputs}
    texts = {SOURCE: record.sources, REFERENCE: record.references, **outputs}
    differences = Differences(newest.scores, before.scores, texts)
    means = {"Words of the source": differences.by_length(record.sources)}
    if record.unseen:
        means[f"Words of the source that training of {name} has not seen"] = differences.by_unseen(record.unseen)
    return {
        "name": name,
        "baseline": first,
        "measure": "F1" if record.task.has_trees else "chrF",
        "means": {heading: list(map(_cells, rows)) for heading, rows in means.items()},
        "changed": {
            "Gained most": list(map(_sentence, differences.gained(SHOWN))),
            "Lost most": list(map(_sentence, differences.lost(SHOWN))),
        },
    }


def _cells(means: Means) -> tuple[str, ...]:
    scores = (f"{means.baseline:.2f}", f"{means.score:.2f}", f"{means.difference:+.2f}")
    return means.words, f"{means.lines:,}", *scores


def _sentence(line: ChangedLine) -> dict[str, Any]:
    """Return a sentence's heading and its texts, each as parts."""
    texts = dict[str, list[tuple[str, bool]]]()
    for name, text in line.texts.items():
        if name in (SOURCE, REFERENCE):
            texts[name] = [(text, False)]
        else:
            texts[name] = parts(text, line.texts[REFERENCE])
    scores = f"{line.baseline:.1f} to {line.score:.1f}, {line.difference:+.1f}"
    return {"number": line.number, "scores": scores, "texts": texts}
