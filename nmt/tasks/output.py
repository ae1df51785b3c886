"""Results as text and as JSON, and counts of what happened to the lines; imports no torch."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, Self

from nmt.errors import UserError
from nmt.tasks.lines import Line
from nmt.tasks.pipeline import Result
from nmt.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class LineResult:
    """The result of one line, whatever the task."""

    texts: list[str]
    """The outputs as text, best first: one, or up to as many as were asked for. No two are equal."""
    scores: list[float]
    """Length-normalised log-probability of each output, in nats; for a line split into parts, their sum."""
    ids: list[list[int]]
    """The symbols of each output, those of parts joined."""
    source: list[int]
    """The subwords of the line."""
    parts: int
    """Number of parts that the line was split into: 0 if it is blank, more than one beyond decoding.max_source."""
    capped: bool
    """Whether the best output was cut off at its cap."""
    unknown: int
    """Number of characters of the line for which the vocabulary has no subword."""

    @classmethod
    def of(cls, line: Line, ranks: Iterable[int], tokenizer: Tokenizer, texts: list[str], **own: Any) -> Self:
        """Collect what is known of the hypotheses of these ranks, which have these texts; `own` is for the task."""
        found, source = line.hypotheses, [symbol for part in line.parts for symbol in part.ids]
        kept = list(ranks)
        return cls(
            texts=texts,
            scores=[sum((part[rank].score for part in found), 0.0) for rank in kept],
            ids=[[symbol for part in found for symbol in part[rank].ids] for rank in kept],
            source=source,
            parts=len(line.parts),
            capped=any(not part[0].finished for part in found),
            unknown=tokenizer.source.count_unknown(source),
            **own,
        )


def best(number: int, result: LineResult) -> str:
    """Show the best output."""
    return result.texts[0]


def ranked(number: int, result: LineResult) -> str:
    """Show each output of input line `number` on a line: number, rank, score, text."""
    hypotheses = enumerate(zip(result.scores, result.texts, strict=True), 1)
    return "\n".join(f"{number}\t{rank}\t{score:.4f}\t{text}" for rank, (score, text) in hypotheses)


def as_json(
    number: int, result: LineResult, tokenizer: Tokenizer, hypotheses: list[dict[str, Any]], **more: int
) -> str:
    """Show all that is known of input line `number` as one JSON object; `more` is what its task adds."""
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
    """Counts lines, symbols per second, and warnings."""

    def __init__(self, warnings: Mapping[str, Callable[[Result], int]]) -> None:
        """`warnings` are those of the task: how often each occurs in a result."""
        self.lines = 0
        self._warnings = warnings
        self._tokens = 0
        self._began: float | None = None
        self._counts = dict.fromkeys(warnings, 0)
        self._first: dict[str, int] = {}  # the line of the first one of each

    def timed(self, lines: Iterator[str]) -> Iterator[str]:
        """Pass lines on; the time of `speed` begins when the first of them arrives."""
        first = list(islice(lines, 1))
        self._began = time.monotonic()
        yield from first
        yield from lines

    def add(self, result: Result) -> None:
        """Count the next line."""
        self.lines += 1
        for warning, occurs in self._warnings.items():
            if count := occurs(result):
                self._counts[warning] += count
                self._first.setdefault(warning, self.lines)

    def searched(self, tokens: int) -> None:
        """Count the target symbols, `</s>` included, of a line that is done and may have to wait for its turn."""
        self._tokens += tokens

    def speed(self) -> str:
        """Show target symbols per second since the first line arrived."""
        seconds = 0.0 if self._began is None else time.monotonic() - self._began
        return f"{self._tokens / max(seconds, 1e-9):,.0f} tokens/s"

    def summary(self) -> str:
        """Show all counts on one line."""
        counts = ", ".join(f"{warning} {count:,}" for warning, count in self._counts.items())
        return f"{self.lines:,} sentences, {self.speed()}; {counts}"

    def check(self) -> None:
        """Raise UserError if there was any warning, naming the line of the first one of each."""
        if self._first:
            found = [
                f"{warning} {count:,} (first in line {self._first[warning]:,})"
                for warning, count in self._counts.items()
                if count
            ]
            raise UserError(f"--strict: {', '.join(found)}", "use the output, which is complete, or leave out --strict")
