"""The files of a run that its report is made from, above all dev.jsonl with outputs for the development set.

The process that writes the report starts often, so this module does not import torch.
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
"""The file with the number of parameters, the recipe that the run's recipe extends, and its data's report.json"""
SAMPLES = "dev.jsonl"
PAGE = "report.html"
MOST, FEW = 1000, 5  # sentences that are kept, and that are shown during training
OF_STEP = re.compile(rb'\{"step": ([0-9]+), ')

T = TypeVar("T")
Score = Callable[[Sequence[str], Sequence[str]], Sequence[float]]
"""A function from references and as many outputs to the score of each output, 0 to 100"""
Finite = Annotated[float, Field(allow_inf_nan=False)]


def forget_after(path: Path, step: int, scored: bool = True) -> None:
    """Remove the lines of a metrics file after a step, which a resumed run will write again.

    If its checkpoint is not scored yet, only the training figures of that step stay.
    """
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            figures = json.loads(line)
            if figures["step"] < step or (figures["step"] == step and (scored or "loss" in figures)):
                kept.append(line + "\n")
        except (ValueError, KeyError, TypeError):  # the last line of a killed process may be cut short
            continue
    with whole_file(path) as file:
        file.write("".join(kept).encode())


@dataclass(frozen=True)
class DevExample:
    """What a checkpoint made of one sentence of the development set."""

    source: str
    reference: str
    output: str
    score: float

    def markdown(self) -> str:
        """Return a line for each field, indented so that TensorBoard shows it verbatim."""
        lines = {"source": self.source, "reference": self.reference, "output": self.output, "score": f"{self.score:g}"}
        return "\n".join(f"    {name:10}{line}" for name, line in lines.items())


class DevOutputs(BaseModel):
    """What a checkpoint made of the development set."""

    model_config = ConfigDict(strict=True)

    step: int
    outputs: list[str]  # a translation or a tree for each kept sentence; blank where a parser found none
    scores: list[Finite]  # of each output: chrF or F1, 0 to 100


class _Sentences(BaseModel):
    """The first line of dev.jsonl."""

    model_config = ConfigDict(strict=True)

    sources: list[str]
    references: list[str]


class Samples:
    """The dev.jsonl of a run: outputs for up to `MOST` sentences of the development set.

    The first line has their sources and references, each other line the outputs of a checkpoint.
    """

    def __init__(self, path: Path, sources: Sequence[str], references: Sequence[str], score: Score) -> None:
        self._path, self._score = path, score
        # A blank reference is a tree without words, which is not scored.
        self._rows = spread([row for row, reference in enumerate(references) if reference], MOST)
        self.sources = [sources[row] for row in self._rows]
        self.references = [references[row] for row in self._rows]
        self._head = _line({"step": 0, "sources": self.sources, "references": self.references})

    def begin(self, step: int) -> None:
        """Remove the lines after a step, which the run will write again; all lines if they are of other sentences."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            is_same = file.readline() == self._head
        if is_same:
            forget_after(self._path, step)
        else:
            self._path.unlink()

    def add(self, step: int, hypotheses: Sequence[str]) -> list[DevExample]:
        """Write the outputs of a checkpoint, given its hypotheses for the whole development set.

        Return `FEW` of them, at even distances.
        """
        outputs = [hypotheses[row] for row in self._rows]
        scores = [round(score, 2) for score in self._score(self.references, outputs)]
        with self._path.open("ab") as file:
            line = _line(DevOutputs(step=step, outputs=outputs, scores=scores).model_dump())
            file.write(line if file.tell() else self._head + line)
        examples = map(DevExample, self.sources, self.references, outputs, scores)
        return spread(list(examples), FEW)


def spread(items: Sequence[T], most: int) -> list[T]:
    """Return all items or, of more than `most`, that many at even distances."""
    return list(items) if len(items) <= most else [items[number * len(items) // most] for number in range(most)]


def read_samples(
    path: Path, choose: Callable[[Mapping[int, int]], Iterable[int]]
) -> tuple[list[str], list[str], list[DevOutputs]]:
    """Read sources, references, and outputs by step.

    `choose` maps the size in bytes of each step's line to the steps to read. Damaged lines are left out; without the
    file, or with a damaged first line, nothing is returned.
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
    """Format a line of dev.jsonl."""
    return json.dumps(values, ensure_ascii=False).encode() + b"\n"
