"""A run's files that its report reads, chiefly dev.jsonl with outputs for the development set.

The report's process starts often, so this module does not import torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nmt.system.errors import UserError
from nmt.system.files import regular, whole_file

METRICS = "metrics.jsonl"
ABOUT = "run.json"
"""File with the parameter count, the base recipe and the data's report.json"""
SAMPLES = "dev.jsonl"
PAGE = "report.html"
MOST, FEW = 1000, 5  # sentences kept in dev.jsonl, and shown during training
OF_STEP = re.compile(rb'\{"step": ([0-9]+), ')

T = TypeVar("T")
Score = Callable[[Sequence[str], Sequence[str]], Sequence[float]]
"""Function from references and outputs to one score per output, 0 to 100"""
Finite = Annotated[float, Field(allow_inf_nan=False)]


def forget_after(path: Path, step: int, scored: bool = True) -> None:
    """Remove the lines after `step` from a metrics file; the resumed run will write them again.

    Unless its checkpoint is `scored`, keep only the training metrics of `step` itself.
    """
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            figures = json.loads(line)
            if figures["step"] < step or (figures["step"] == step and (scored or "loss" in figures)):
                kept.append(line + "\n")
        except (ValueError, KeyError, TypeError):  # a killed process may leave a truncated line
            continue
    with whole_file(path) as file:
        file.write("".join(kept).encode())


@dataclass(frozen=True)
class DevExample:
    """A checkpoint's output for one sentence of the development set."""

    source: str
    reference: str
    output: str
    score: float

    def markdown(self) -> str:
        """Return one line per field, indented so that TensorBoard shows it verbatim."""
        lines = {"source": self.source, "reference": self.reference, "output": self.output, "score": f"{self.score:g}"}
        return "\n".join(f"    {name:10}{line}" for name, line in lines.items())


class DevOutputs(BaseModel):
    """A checkpoint's outputs for the development set."""

    model_config = ConfigDict(strict=True)

    step: int
    outputs: list[str]  # a translation or tree per kept sentence; blank if the parser found none
    scores: list[Finite]  # chrF or F1 per output, 0 to 100


class _Sentences(BaseModel):
    """First line of dev.jsonl."""

    model_config = ConfigDict(strict=True)

    sources: list[str]
    references: list[str]


class Samples:
    """A run's dev.jsonl: outputs for up to `MOST` sentences of the development set.

    The first line holds sources and references, each further line the outputs of one checkpoint.
    """

    def __init__(self, path: Path, sources: Sequence[str], references: Sequence[str], score: Score) -> None:
        self._path, self._score = path, score
        # A blank reference is a tree without words; skip it, since it is not scored.
        self._rows = spread([row for row, reference in enumerate(references) if reference], MOST)
        self.sources = [sources[row] for row in self._rows]
        self.references = [references[row] for row in self._rows]
        self._head = _line({"step": 0, "sources": self.sources, "references": self.references})

    def begin(self, step: int) -> None:
        """Remove the lines after `step`, or the whole file if it holds other sentences."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            is_same = file.readline() == self._head
        if is_same:
            forget_after(self._path, step)
        else:
            self._path.unlink()

    def add(self, step: int, hypotheses: Sequence[str]) -> list[DevExample]:
        """Append a checkpoint's outputs, given its hypotheses for the whole development set.

        Return `FEW` of them, evenly spaced.
        """
        outputs = [hypotheses[row] for row in self._rows]
        scores = [round(score, 2) for score in self._score(self.references, outputs)]
        with self._path.open("ab") as file:
            line = _line(DevOutputs(step=step, outputs=outputs, scores=scores).model_dump())
            file.write(line if file.tell() else self._head + line)
        examples = map(DevExample, self.sources, self.references, outputs, scores)
        return spread(list(examples), FEW)


def spread(items: Sequence[T], most: int) -> list[T]:
    """Return at most `most` of the items, evenly spaced."""
    return list(items) if len(items) <= most else [items[number * len(items) // most] for number in range(most)]


def read_samples(
    path: Path, choose: Callable[[Mapping[int, int]], Iterable[int]]
) -> tuple[list[str], list[str], list[DevOutputs]]:
    """Read sources, references, and the chosen steps' outputs from dev.jsonl.

    `choose` maps {step: size of its line in bytes} to the steps to read. Damaged lines are skipped. All lists are empty
    if the file is missing or its first line is damaged.
    """
    try:
        lines = regular(path).read_bytes().split(b"\n")
        head = _Sentences.model_validate_json(lines[0])
    except (OSError, UserError, ValidationError):
        return [], [], []
    count = len(head.sources)
    by_step = {int(found[1]): line for line in lines[1:] if (found := OF_STEP.match(line)) and line.endswith(b"}")}
    outputs = []
    for step in sorted(choose({step: len(line) for step, line in by_step.items()})):
        try:
            read = DevOutputs.model_validate_json(by_step[step])
        except ValidationError:
            continue
        if len(read.outputs) == len(read.scores) == count:
            outputs.append(read)
    return (head.sources, head.references, outputs) if len(head.references) == count else ([], [], [])


def _line(values: dict[str, Any]) -> bytes:
    """Encode a line of dev.jsonl."""
    return json.dumps(values, ensure_ascii=False).encode() + b"\n"
