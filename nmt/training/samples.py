"""Outputs for sentences of the development set as they change in training: a run's dev.jsonl, a line per checkpoint."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from nmt.console import Console
from nmt.training.progress import DevExample, forget_after

SAMPLES = "dev.jsonl"
MOST, FEW = 1000, 5  # sentences that are kept, and that are shown while training goes on
OF_STEP = re.compile(rb'\{"step": ([0-9]+), ')

T = TypeVar("T")
Score = Callable[[Sequence[str], Sequence[str]], Sequence[float]]
"""From references and as many outputs to the score of each output, 0 to 100."""


@dataclass(frozen=True)
class DevOutputs:
    """What a checkpoint made of the development set."""

    step: int
    outputs: Sequence[str]
    """A translation or a tree for each kept sentence; blank where a parser found none."""
    scores: Sequence[float]
    """Of each: chrF or F1, 0 to 100."""


class Samples:
    """Keeps the outputs for up to `MOST` sentences of the development set in a file.

    Its first line has their sources and references, each other one what a checkpoint made of them. Where a line cannot
    be written, this is said once, and training goes on.
    """

    def __init__(
        self, path: Path, sources: Sequence[str], references: Sequence[str], score: Score, console: Console
    ) -> None:
        self._path, self._score, self._console, self._failed = path, score, console, False
        # A blank reference is a tree without words, which does not count.
        self._rows = spread([row for row, reference in enumerate(references) if reference], MOST)
        self.sources = [sources[row] for row in self._rows]
        self.references = [references[row] for row in self._rows]
        self._head = _line({"step": 0, "sources": self.sources, "references": self.references})

    def begin(self, step: int) -> None:
        """Removes the lines after a step, which the run will write again; all lines if they are of other sentences."""
        try:
            if not self._path.exists():
                return
            with self._path.open("rb") as file:
                is_same = file.readline() == self._head
            if is_same:
                forget_after(self._path, step)
            else:
                self._path.unlink()
        except OSError as error:
            self._fail(error)

    def add(self, step: int, hypotheses: Sequence[str]) -> list[DevExample]:
        """Writes what a checkpoint made of the sentences, given that for the whole development set.

        Returns `FEW` of them, at even distances.
        """
        outputs = [hypotheses[row] for row in self._rows]
        scores = [round(score, 2) for score in self._score(self.references, outputs)]
        try:
            self._append(_line(asdict(DevOutputs(step, outputs, scores))))
        except OSError as error:
            self._fail(error)
        examples = map(DevExample, self.sources, self.references, outputs, scores)
        return spread(list(examples), FEW)

    def _append(self, line: bytes) -> None:
        """Appends a line whole or not at all, after the first line if that is not there yet."""
        with self._path.open("ab", buffering=0) as file:
            size = file.tell()
            content = line if size else self._head + line
            try:
                while content:  # a disk with little room takes a part
                    content = content[file.write(content) :]
            except OSError:
                os.ftruncate(file.fileno(), size)
                raise

    def _fail(self, error: OSError) -> None:
        if not self._failed:
            self._console.say(f"{self._path}: cannot be written: {error.strerror}; training goes on without it")
        self._failed = True


def spread(items: Sequence[T], most: int) -> list[T]:
    """All items or, of more than `most`, that many at even distances."""
    return list(items) if len(items) <= most else [items[number * len(items) // most] for number in range(most)]


def read_samples(
    path: Path, choose: Callable[[Mapping[int, int]], Iterable[int]]
) -> tuple[list[str], list[str], list[DevOutputs]]:
    """Reads sources, references, and outputs by step.

    `choose` is given the size in bytes of each step's line, and gives the steps whose lines are to be read. What is
    damaged is left out, and so is everything where there is no such file.
    """
    lines: list[bytes] = []
    with suppress(OSError):
        lines = path.read_bytes().split(b"\n") if path.is_file() else []
    head = _values(lines[0]) if lines else {}
    sources, references = head.get("sources"), head.get("references", [])
    if not isinstance(sources, list) or not all(_is_list(texts, len(sources), str) for texts in (sources, references)):
        return [], [], []
    by_step = {int(found[1]): line for line in lines[1:] if (found := OF_STEP.match(line)) and line.endswith(b"}")}
    outputs = []
    for step in sorted(choose({step: len(line) for step, line in by_step.items()})):
        values = _values(by_step[step])
        texts, scores = values.get("outputs", []), values.get("scores", [])
        if _is_list(texts, len(sources), str) and _is_list(scores, len(sources), (int, float)):
            outputs.append(DevOutputs(step, texts, scores))
    return sources, references, outputs


def _is_list(values: object, size: int, kind: Any) -> bool:
    return isinstance(values, list) and len(values) == size and all(isinstance(value, kind) for value in values)


def _values(line: bytes) -> dict[str, Any]:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def _line(values: Any) -> bytes:
    return json.dumps(values, ensure_ascii=False).encode() + b"\n"
