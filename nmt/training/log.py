"""A run's log, metrics.jsonl: a JSON object a line, for each logged update and each checkpoint.

`nmt.training.progress` writes it, and says what is in a line. The report's process starts often, so importing this
module loads neither torch nor pyarrow.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from nmt.system.files import whole_file

LOG = "metrics.jsonl"


def read_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each line of a file of JSON lines with the object in it, whose numbers are all floats.

    Skip damaged lines, such as the last one of a killed process, and whatever is no file: a pipe would never end.
    """
    if not path.is_file():
        return
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        values = None
        with suppress(ValueError, RecursionError):
            values = json.loads(line, parse_int=float)
        if isinstance(values, dict):
            yield line, values


def dev_scores(path: Path, metric: str) -> list[float]:
    """Return the scores of a run's checkpoints on its present development set, by update."""
    scores = list[float]()
    for _, figures in read_lines(path):
        if "new_dev_set" in figures:
            scores = []
        score = figures.get(f"valid_{metric}")
        if score is not None:  # it is None if it was not finite
            scores.append(score)
    return scores


def forget_after(path: Path, step: int, scored: bool = True) -> None:
    """Remove the lines after `step` from a file of JSON lines; the resumed run will write them again.

    Of `step` itself, keep only the training metrics, unless its checkpoint is `scored`.
    """
    if not path.is_file():
        return
    kept = []
    for line, figures in read_lines(path):
        with suppress(KeyError, TypeError):  # damaged: without a step, or with one that is no number
            if figures["step"] < step or (figures["step"] == step and (scored or "loss" in figures)):
                kept.append(line + "\n")
    with whole_file(path) as file:
        file.write("".join(kept).encode())
