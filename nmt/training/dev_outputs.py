"""A run's dev.jsonl: what its checkpoints make of some sentences of the development set.

The report's process starts often, so importing this module loads neither torch nor pyarrow.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TypeVar

from pydantic import BaseModel, FiniteFloat, ValidationError

from nmt.system.console import JsonLines
from nmt.system.errors import UserError
from nmt.system.files import regular
from nmt.training.log import forget_after

SAMPLES = "dev.jsonl"
MOST = 1000  # sentences kept in dev.jsonl
FEW = 5  # sentences shown during training
OF_STEP = re.compile(rb'\{"step": ([0-9]+), ')  # finds steps without parsing each long line

T = TypeVar("T")
Score = Callable[[Sequence[str], Sequence[str]], Sequence[float]]  # references and outputs to a score per output


@dataclass(frozen=True)
class DevExample:
    """A checkpoint's output for one sentence of the development set."""

    source: str
    reference: str
    output: str

    def rows(self) -> list[tuple[str, str]]:
        """Return the labelled texts that a terminal shows."""
        return [("source", self.source), ("ours", self.output or "(empty)"), ("reference", self.reference)]


class DevOutputs(BaseModel, strict=True):
    """A checkpoint's outputs for the development set."""

    step: int
    outputs: list[str]  # a translation or tree per kept sentence; blank if the parser found no tree
    scores: list[FiniteFloat]  # chrF or F1 per output, 0 to 100


class _Sentences(BaseModel, strict=True):
    """First line of dev.jsonl."""

    sources: list[str]
    references: list[str]


class Samples:
    """A run's dev.jsonl: outputs for up to `MOST` sentences of the development set.

    The first line holds sources and references, each further line the outputs of one checkpoint.
    """

    def __init__(
        self,
        out: Path,
        sources: Sequence[str],
        references: Sequence[str],
        score: Score,
        say: Callable[[str], None],
    ) -> None:
        self._score = score
        # A blank reference is a tree without words; skip it, since it is not scored.
        self._rows = spread([row for row, reference in enumerate(references) if reference], MOST)
        self.sources = [sources[row] for row in self._rows]
        self.references = [references[row] for row in self._rows]
        self._lines = JsonLines(out / SAMPLES, say, {"step": 0, "sources": self.sources, "references": self.references})

    def begin(self, step: int) -> None:
        """Remove the lines after `step`, or the whole file if it holds other sentences."""
        path = self._lines.path
        if path.is_file() and not path.read_bytes().startswith(self._lines.head):
            path.unlink()
        forget_after(path, step)

    def add(self, step: int, hypotheses: Sequence[str]) -> DevExample:
        """Append a checkpoint's outputs, given its hypotheses for the whole development set.

        Return one of `FEW` evenly spaced ones, drawn by the step, so that repeating it shows the same.
        """
        outputs = [hypotheses[row] for row in self._rows]
        scores = [round(score, 2) for score in self._score(self.references, outputs)]
        self._lines.append(DevOutputs(step=step, outputs=outputs, scores=scores).model_dump())
        examples = list(map(DevExample, self.sources, self.references, outputs))
        return Random(step).choice(spread(examples, FEW))


def spread(items: Sequence[T], most: int) -> list[T]:
    """Return at most `most` of the items, evenly spaced."""
    if len(items) <= most:
        return list(items)
    return [items[number * len(items) // most] for number in range(most)]


def read_samples(
    path: Path, choose: Callable[[Mapping[int, int]], Iterable[int]]
) -> tuple[list[str], list[str], list[DevOutputs]]:
    """Read sources, references, and the chosen steps' outputs from dev.jsonl.

    `choose` maps {step: size of its line in bytes} to the steps to read. Damaged lines are skipped. All lists are empty
    if the file is missing or its first line is damaged.
    """
    try:
        first, *lines = regular(path).read_bytes().split(b"\n")
        head = _Sentences.model_validate_json(first)
    except (OSError, UserError, ValidationError):
        return [], [], []
    count = len(head.sources)
    if len(head.references) != count:
        return [], [], []
    by_step = dict[int, bytes]()
    for line in lines:
        found = OF_STEP.match(line)
        if found and line.endswith(b"}"):
            by_step[int(found[1])] = line
    sizes = {step: len(line) for step, line in by_step.items()}
    outputs = []
    for step in sorted(choose(sizes)):
        with suppress(ValidationError):
            read = DevOutputs.model_validate_json(by_step[step])
            if len(read.outputs) == len(read.scores) == count:
                outputs.append(read)
    return head.sources, head.references, outputs
