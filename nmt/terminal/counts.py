"""What is counted of a search: lines, symbols, speed and warnings."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Generic

from nmt.console import Advance, Console, unseen
from nmt.errors import UserError
from nmt.tasks.pipeline import Result


@dataclass
class Counts:
    """What is counted of some lines."""

    lines: int = 0
    tokens: int = 0
    """Target symbols, `</s>` among them."""
    warnings: dict[str, tuple[int, int]] = field(default_factory=dict)
    """How often each warning occurred, and the number of the first line with it; only of those that occurred."""

    def add(self, other: Counts) -> None:
        """Count what others counted, of other lines of the same input."""
        self.lines += other.lines
        self.tokens += other.tokens
        for warning, (count, line) in other.warnings.items():
            before, first = self.warnings.get(warning, (0, line))
            self.warnings[warning] = (before + count, min(first, line))


class Statistics(Generic[Result]):
    """Counts what is searched, how fast, and the warnings."""

    def __init__(self, doing: str, warnings: Mapping[str, Callable[[Result], int]]) -> None:
        """`doing` is what the progress of the search is called, and `warnings` are those of the task."""
        self.counts = Counts()
        self._advance: Advance = unseen
        self._doing, self._warnings = doing, warnings
        self._before = 0  # lines of the input before those of the counts
        self._tokens = 0  # found since `_began`
        self._began: float | None = None

    def begin(self, before: int) -> Counts:
        """Begin to count anew, the lines that come after the first `before` lines of the input; returns it."""
        self.counts, self._before = Counts(), before
        return self.counts

    @contextmanager
    def progress(self, console: Console, total: int | None, done: int = 0) -> Iterator[None]:
        """Shows how much of the input is searched; its first `done` lines were searched before."""
        with console.progress(self._doing, total, "lines", done) as self._advance:
            yield

    def timed(self, lines: Iterator[Any]) -> Iterator[Any]:
        """The same lines; the time that `speed` counts begins when the first line of the first iterator is there."""
        first = list(islice(lines, 1))
        if self._began is None:
            self._began = time.monotonic()
        yield from first
        yield from lines

    def searched(self, tokens: int) -> None:
        """Counts the target symbols of a line that is done, `</s>` among them, before its turn comes."""
        self.counts.tokens += tokens
        self._tokens += tokens
        self._advance(1, self.speed())

    def add(self, result: Result) -> int:
        """Counts the result of the next line, and returns the number of that line in the input, from 1 on."""
        self.counts.lines += 1
        number = self._before + self.counts.lines
        if not result.parts:
            self.searched(0)  # a blank line, which no engine has searched
        occurred = {warning: (count, number) for warning, occurs in self._warnings.items() if (count := occurs(result))}
        self.counts.add(Counts(warnings=occurred))
        return number

    def speed(self) -> str:
        """Target symbols over the time since the first line came."""
        seconds = 0.0 if self._began is None else time.monotonic() - self._began
        return f"{self._tokens / max(seconds, 1e-9):,.0f} tokens/s"

    def summary(self) -> str:
        """All in one line."""
        counts = ", ".join(f"{warning} {self.counts.warnings.get(warning, (0, 0))[0]:,}" for warning in self._warnings)
        sentences = f"{self.counts.lines:,} sentence{'' if self.counts.lines == 1 else 's'}"
        return f"{sentences}, {self.speed()}; {counts}"

    def check(self) -> None:
        """Raises UserError if there was any warning, naming the line of the first of each."""
        found = [
            f"{warning} {self.counts.warnings[warning][0]:,} (first in line {self.counts.warnings[warning][1]:,})"
            for warning in self._warnings
            if warning in self.counts.warnings
        ]
        if found:
            raise UserError(f"--strict: {', '.join(found)}", "use the output, which is complete, or leave out --strict")
