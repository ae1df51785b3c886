"""The ledger of a search: how many lines, how fast, and what there is to warn of."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Generic

from nmt.console import Advance
from nmt.errors import UserError
from nmt.tasks.pipeline import Result


class Ledger(Generic[Result]):
    """Counts what was searched, how fast, and the warnings."""

    def __init__(self, warnings: Mapping[str, Callable[[Result], int]]) -> None:
        """`warnings` are those of the task."""
        self.lines = 0
        self.advance: Advance = lambda more, figures=None: None
        """Moves a progress bar, if there is one."""
        self._warnings = warnings
        self._tokens = 0
        self._began: float | None = None
        self._counts = dict.fromkeys(warnings, 0)
        self._first: dict[str, int] = {}  # line with the first of each

    def timed(self, lines: Iterator[Any]) -> Iterator[Any]:
        """The same lines; the time that `speed` counts begins when the first of them is there."""
        first = list(islice(lines, 1))
        self._began = time.monotonic()
        yield from first
        yield from lines

    def searched(self, tokens: int) -> None:
        """Counts the target symbols of a line that is done, `</s>` among them, before its turn comes."""
        self._tokens += tokens
        self.advance(1, self.speed())

    def add(self, result: Result) -> int:
        """Counts the result of the next line, and returns the number of that line, from 1 on."""
        self.lines += 1
        if not result.parts:
            self.searched(0)  # a blank line, which no engine has searched
        for warning, occurs in self._warnings.items():
            if count := occurs(result):
                self._counts[warning] += count
                self._first.setdefault(warning, self.lines)
        return self.lines

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
