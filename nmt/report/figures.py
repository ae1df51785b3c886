"""The figures of a run's metrics.jsonl as arrays, read fast since long runs have many lines."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.json
from numpy.typing import NDArray

Column = NDArray[np.float64]
LOGGED = ("step", "epoch", "seconds", "tokens", "loss", "perplexity", "learning_rate", "gradient_norm",
          "tokens_per_second", "padding")  # fmt: skip
"""Figures that every run has, were it but as NaN."""
WANTED = pa.schema([(name, pa.float64()) for name in (*LOGGED, "valid_perplexity")])  # floats, even if all are whole


def read_figures(path: Path, metric: str) -> tuple[dict[str, Column], dict[str, Column]]:
    """Reads the figures of logged updates, each (logged steps,), and of dev scores, each (checkpoints,), by name.

    A figure that is missing, or was not finite, is NaN. Damaged lines are left out, as the last one of a killed process
    may be, and of several lines for one step the last one counts.
    """
    columns = _read(path)
    unknown = np.full(len(columns["step"]), np.nan)
    dev = {
        "score": columns.get(f"valid_{metric}", unknown),
        "perplexity": columns["valid_perplexity"],
        **{name: columns[name] for name in ("step", "seconds", "tokens")},
    }
    logged = _rows(columns, ~np.isnan(columns["learning_rate"]))
    validated = _rows(dev, ~(np.isnan(dev["score"]) & np.isnan(dev["perplexity"])))
    return {name: column for name, column in logged.items() if name in LOGGED or not np.isnan(column).all()}, validated


def _rows(columns: Mapping[str, Column], chosen: NDArray[np.bool_]) -> dict[str, Column]:
    """The chosen rows of columns, by step, and of those of the same step the last one."""
    newest_first = np.flatnonzero(chosen & ~np.isnan(columns["step"]))[::-1]
    _, first = np.unique(columns["step"][newest_first], return_index=True)
    return {name: column[newest_first[first]] for name, column in columns.items()}


def _read(path: Path) -> dict[str, Column]:
    """All lines as columns by name, NaN where a line lacks the figure."""
    content = b""
    with suppress(OSError):
        content = path.read_bytes()
    content = content[: content.rfind(b"\n") + 1]
    try:
        if not content.startswith(b"{"):  # PyArrow crashes if the first line is null
            raise pa.ArrowInvalid
        numbers = _numbers(content)
    except (pa.ArrowInvalid, UnicodeDecodeError):
        numbers = _numbers(b"".join(_whole(content.split(b"\n"))))
    return {name: np.where(np.isfinite(column), column, np.nan) for name, column in numbers.items()}


def _numbers(content: bytes) -> dict[str, Column]:
    """The columns of lines of JSON whose values are numbers; raises ArrowInvalid or UnicodeDecodeError."""
    table = _parse(content)
    kinds = (pa.types.is_floating, pa.types.is_integer)
    found = [name for name in table.column_names if any(are(table[name].type) for are in kinds)]
    return {name: table[name].cast(pa.float64()).to_numpy() for name in found}


def _parse(content: bytes) -> pa.Table:
    if not content:
        return WANTED.empty_table()
    options = pa.json.ParseOptions(explicit_schema=WANTED)
    return pa.json.read_json(pa.BufferReader(content), pa.json.ReadOptions(use_threads=False), options)


def _whole(lines: Iterable[bytes]) -> Iterable[bytes]:
    """The lines that hold an object whose values are numbers or null, each name once and every number finite."""
    for line in lines:
        with suppress(ValueError, RecursionError):
            values = json.loads(line, parse_int=float)
            if isinstance(values, dict) and {type(value) for value in values.values()} <= {float, type(None)}:
                finite = {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
                yield json.dumps(finite).encode() + b"\n"
