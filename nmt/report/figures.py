"""The figures of a run's metrics.jsonl as arrays, read fast since long runs have many lines."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.json
from numpy.typing import NDArray

Column = NDArray[np.float64]
LOGGED = ("step", "epoch", "seconds", "tokens", "loss", "perplexity", "learning_rate", "gradient_norm",
          "tokens_per_second", "padding")  # fmt: skip
"""Figures of logged updates that pages show."""


def read_figures(path: Path, metric: str) -> tuple[dict[str, Column], dict[str, Column]]:
    """Reads the figures of logged updates, each (logged steps,), and of dev scores, each (checkpoints,), by name.

    A figure that is missing, or was not finite, is NaN. Damaged lines are left out, as the last one of a killed process
    may be, and of several lines for one step the last one counts.
    """
    score = f"valid_{metric}"
    columns = _read(path, (*LOGGED, "valid_perplexity", score))
    dev = {
        "score": columns[score],
        "perplexity": columns["valid_perplexity"],
        **{name: columns[name] for name in ("step", "seconds", "tokens")},
    }
    logged = _rows({name: columns[name] for name in LOGGED}, ~np.isnan(columns["learning_rate"]))
    return logged, _rows(dev, ~(np.isnan(dev["score"]) & np.isnan(dev["perplexity"])))


def _rows(columns: Mapping[str, Column], chosen: NDArray[np.bool_]) -> dict[str, Column]:
    """The chosen rows of columns, by step, and of those of the same step the last one."""
    newest_first = np.flatnonzero(chosen & ~np.isnan(columns["step"]))[::-1]
    _, first = np.unique(columns["step"][newest_first], return_index=True)
    return {name: column[newest_first[first]] for name, column in columns.items()}


def _read(path: Path, names: Sequence[str]) -> dict[str, Column]:
    """The figures of all lines that have these names, NaN where a line lacks one."""
    content = b""
    with suppress(OSError):
        content = path.read_bytes() if path.is_file() else b""  # a pipe could be waited for in vain
    content = content[: content.rfind(b"\n") + 1]
    try:
        if not content.startswith(b"{"):  # PyArrow crashes if the first line is null
            raise pa.ArrowInvalid
        table = _parse(content, names)
    except (pa.ArrowInvalid, UnicodeDecodeError):
        table = _parse(b"".join(_whole(content.split(b"\n"), names)), names)
    columns = {name: table[name].to_numpy() for name in names}
    return {name: np.where(np.isfinite(column), column, np.nan) for name, column in columns.items()}


def _parse(content: bytes, names: Sequence[str]) -> pa.Table:
    """The figures of lines of JSON; raises ArrowInvalid or UnicodeDecodeError if one is no number.

    What has another name gets no column: a file could have as many names as lines.
    """
    wanted = pa.schema([(name, pa.float64()) for name in names])  # floats, even if all are whole
    if not content:
        return wanted.empty_table()
    options = pa.json.ParseOptions(explicit_schema=wanted, unexpected_field_behavior="ignore")
    return pa.json.read_json(pa.BufferReader(content), pa.json.ReadOptions(use_threads=False), options)


def _whole(lines: Iterable[bytes], names: Sequence[str]) -> Iterable[bytes]:
    """The figures of the lines that hold an object whose values are numbers or null, if they are finite."""
    for line in lines:
        with suppress(ValueError, RecursionError):
            values = json.loads(line, parse_int=float)
            if isinstance(values, dict) and {type(value) for value in values.values()} <= {float, type(None)}:
                found = {name: values[name] for name in names if values.get(name) is not None}
                yield (
                    json.dumps({name: value for name, value in found.items() if math.isfinite(value)}).encode() + b"\n"
                )
