"""Results as lines, and the ledger of what became of the inputs; imports no torch."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Generic, Protocol

from nmt.errors import UserError
from nmt.tasks.pipeline import Result
from nmt.text.tokenizer import Tokenizer


class LineResult(Protocol):
    """What became of one line, be it a translation or a parse."""

    @property
    def texts(self) -> list[str]:
        """Of each hypothesis, best first."""
        ...

    @property
    def scores(self) -> list[float]:
        """Of each hypothesis."""
        ...

    @property
    def source(self) -> list[int]:
        """Subwords of the line."""
        ...

    @property
    def parts(self) -> int:
        """How many pieces the line was split into; 0 where it is blank."""
        ...

    @property
    def capped(self) -> bool:
        """Whether the best output was cut off at its cap."""
        ...

    @property
    def unknown(self) -> int:
        """Characters of the line for which the vocabulary has no subword."""
        ...


def best(number: int, result: LineResult) -> str:
    """The line of the best hypothesis."""
    return result.texts[0]


def ranked(number: int, result: LineResult) -> str:
    """A line for each hypothesis of input line `number`: number, rank, score, text."""
    hypotheses = enumerate(zip(result.scores, result.texts, strict=True), 1)
    return "\n".join(f"{number}\t{rank}\t{score:.4f}\t{text}" for rank, (score, text) in hypotheses)


def as_json(
    number: int, result: LineResult, tokenizer: Tokenizer, hypotheses: list[dict[str, Any]], **more: int
) -> str:
    """What is known of the result of input line `number` as one JSON object, with what its task adds."""
    line = {
        "line": number,
        "source": tokenizer.source.pieces(result.source),
        "hypotheses": hypotheses,
        "parts": result.parts,
        "capped": result.capped,
        "unknown": result.unknown,
        **more,
    }
    return json.dumps(line, ensure_ascii=False)


class Ledger(Generic[Result]):
    """Counts what was searched, how fast, and the warnings."""

    def __init__(self, warnings: Mapping[str, Callable[[Result], int]]) -> None:
        """`warnings` are those of the task."""
        self.lines = 0
        self._warnings = warnings
        self._tokens = 0
        self._began: float | None = None
        self._counts = dict.fromkeys(warnings, 0)
        self._first: dict[str, int] = {}  # line with the first of each

    def timed(self, lines: Iterator[str]) -> Iterator[str]:
        """The same lines; the time that `speed` counts begins when the first of them is there."""
        first = list(islice(lines, 1))
        self._began = time.monotonic()
        yield from first
        yield from lines

    def add(self, result: Result) -> None:
        """Counts the next line."""
        self.lines += 1
        for warning, occurs in self._warnings.items():
            if count := occurs(result):
                self._counts[warning] += count
                self._first.setdefault(warning, self.lines)

    def searched(self, tokens: int) -> None:
        """Counts the target symbols of a line that is done, `</s>` among them, before its turn comes."""
        self._tokens += tokens

    def speed(self) -> str:
        """Target symbols over the time since the first line came."""
        seconds = 0.0 if self._began is None else time.monotonic() - self._began
        return f"{self._tokens / max(seconds, 1e-9):,.0f} tokens/s"

    def summary(self) -> str:
        """All in one line."""
        counts = ", ".join(f"{warning} {count:,}" for warning, count in self._counts.items())
        return f"{self.lines:,} sentences, {self.speed()}; {counts}"

    def check(self) -> None:
        """Raises UserError if there was any warning, naming the line of the first of each."""
        if self._first:
            found = [
                f"{warning} {count:,} (first in line {self._first[warning]:,})"
                for warning, count in self._counts.items()
                if count
            ]
            raise UserError(f"--strict: {', '.join(found)}", "use the output, which is complete, or leave out --strict")
