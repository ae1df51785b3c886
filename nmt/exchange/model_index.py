"""Scores in the metadata of a model card: the `model-index` that the Hugging Face hub reads and shows.

It has the scores that the bundle has, of the development set, and no others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nmt.checkpoint.reading import Bundle
from nmt.recipe import Dataset
from nmt.recipe.addresses import is_address


def model_index(bundle: Bundle, name: str) -> list[dict[str, Any]]:
    """Return the model-index of a translator called `name`; an empty list without scores."""
    metrics = list(_metrics(bundle))
    if not metrics:
        return []
    task = {"type": "translation", "name": f"Translation {'-'.join(bundle.recipe.data.languages)}"}
    return [{"name": name, "results": [{"task": task, "dataset": _development_set(bundle), "metrics": metrics}]}]


def _metrics(bundle: Bundle) -> Iterator[dict[str, Any]]:
    """Yield each finite score with its signature, if it has one; a score of one direction says so in its name."""
    for key, score in bundle.scores.items():
        kind, _, direction = key.partition(" ")
        if not math.isfinite(score):
            continue
        label = bundle.task.labels.get(kind, kind)
        metric: dict[str, Any] = {"type": kind, "name": f"{label} {direction}".strip(), "value": round(score, 2)}
        if key in bundle.signatures:
            metric["args"] = {"signature": bundle.signatures[key]}
        yield metric


def _development_set(bundle: Bundle) -> dict[str, str]:
    """Return what the hub asks of a data set: its name and type, and more of one that is on the hub."""
    data = bundle.recipe.data
    names = [name for dataset in data.valid for name in dataset_names(dataset)]
    found = {"type": data.name, "name": ", ".join(dict.fromkeys(names)) or "development set"}
    if len(data.valid) != 1 or data.valid[0].hub is None:
        return found
    only = data.valid[0]
    more = {"type": only.hub, "config": only.config, "split": only.split, "revision": only.revision}
    return found | {key: value for key, value in more.items() if value is not None}


def dataset_names(dataset: Dataset) -> list[str]:
    """Return the names of a data set's files without their folders, or of what it is on the hub or in sacreBLEU."""
    if dataset.take is not None:
        what = dataset.take if isinstance(dataset.take, str) else f"{dataset.take:,} sources"
        return [f"{what} set aside from the training data"]
    names = [name for name in (dataset.source, dataset.target, dataset.file) if name]
    files = [name if is_address(name) else Path(name).name for name in names]
    return [*files, *filter(None, (dataset.sacrebleu, dataset.hub, dataset.config))]
