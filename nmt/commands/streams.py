"""Standard streams, line input and output, and statistics of a search."""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from nmt.system.compression import compressed
from nmt.system.console import Advance, Console, shown, unseen
from nmt.system.errors import UserError, printable_lines
from nmt.system.files import whole_file
from nmt.text.lines import count_lines, count_rest, decoded, read_lines

if TYPE_CHECKING:
    from nmt.decoding.pipeline import LineResult


def open_standard_streams() -> None:
    """Reopen standard streams that were closed when the command was started, and set their encodings.

    Output to stderr is then discarded, and writing to stdout fails. Descriptors 0 to 2 are opened on /dev/null;
    otherwise the next opened file could become descriptor 2 and receive libraries' warnings.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)  # worker processes inherit them
    os.close(descriptor)
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(1, closefd=False)  # noqa: SIM115 - read-only: writing fails, so no result is lost
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # UTF-8, whatever the locale, except on a terminal of another encoding
            stream.reconfigure(encoding=None if stream.isatty() else "utf-8", errors="replace")


def release(stream: IO[str]) -> None:
    """Flush a standard stream; on failure, redirect it to /dev/null so that Python does not fail again at exit."""
    try:
        stream.flush()
    except (OSError, ValueError):
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def is_typed(path: Path | None) -> bool:
    """Return whether the input is typed at a terminal; a `path` of None means stdin."""
    return path is None and sys.stdin is not None and sys.stdin.isatty()


def read_input(path: Path | None, console: Console, expected: str = "one sentence per line") -> Iterator[str]:
    """Return an iterator over the lines of a file or stdin; raise UserError immediately if it is unreadable.

    At a terminal, report that the command is waiting for input, and what is `expected`.
    """
    if path is not None:
        return read_lines(path)
    if sys.stdin is None:
        raise UserError("stdin is closed", "name an input file, or send the lines through a pipe")
    if is_typed(path):
        console.say(f"reading from the terminal: {expected}, Ctrl-D to end")
    # Not sys.stdin itself: Python closes it at exit, while a thread may still be waiting for input.
    return decoded(open(sys.stdin.fileno(), "rb", closefd=False), "<stdin>")


def count_input(path: Path | None) -> int | None:
    """Count a file's lines or stdin's remaining lines; return None if they cannot be counted in advance."""
    if path is None:
        return count_rest(sys.stdin.fileno())
    return count_lines(path) if path.is_file() else None


def open_output(path: Path | None, held: ExitStack) -> Callable[[str], None]:
    """Return a function that writes text and a newline to a file or stdout.

    A file is complete when `held` is closed. On a terminal, control characters of a model's output are escaped.
    """
    is_shown = path is None and sys.stdout.isatty()
    if path is None:
        stream: IO[bytes] = sys.stdout.buffer
    else:
        stream = held.enter_context(compressed(held.enter_context(whole_file(path)), path))

    flushes = path is None or (path.exists() and not path.is_file())  # a pipe's reader may wait for each line

    def write(lines: str) -> None:
        stream.write((printable_lines(lines) if is_shown else lines).encode() + b"\n")
        if flushes:
            stream.flush()

    return write


def show(text: str) -> None:
    """Write text to stdout; a terminal breaks its lines between words, unless it is a JSON object."""
    click.echo(text if text.startswith("{") else "\n".join(shown(line, sys.stdout) for line in text.split("\n")))


@dataclass
class Counts:
    """Counts over a range of input lines."""

    lines: int = 0
    tokens: int = 0
    """Target symbols, including `</s>`"""
    warnings: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Each warning's number of occurrences and first line number"""

    def add(self, other: Counts) -> None:
        """Add the counts of other lines of the same input."""
        self.lines += other.lines
        self.tokens += other.tokens
        for warning, (count, line) in other.warnings.items():
            before, first = self.warnings.get(warning, (0, line))
            self.warnings[warning] = (before + count, min(first, line))


class Statistics:
    """Progress, speed and warnings of a search."""

    def __init__(self, doing: str, warnings: Mapping[str, Callable[[Any], int]], noun: str = "sentence") -> None:
        """Label the progress with `doing` and the lines with `noun`.

        Each function in `warnings` counts one kind of defect in a result.
        """
        self.counts = Counts()
        self._advance: Advance = unseen
        self.before = 0  # input lines that precede those of `counts`
        self._doing, self._warnings, self._noun = doing, warnings, noun
        self._tokens = 0  # since `_began`
        self._began: float | None = None

    def begin(self, before: int) -> Counts:
        """Reset and return the counts; from now on they cover the input after its first `before` lines."""
        self.counts, self.before = Counts(), before
        return self.counts

    @contextmanager
    def progress(self, console: Console, total: int | None, done: int = 0) -> Iterator[None]:
        """Show the search's progress, starting from `done` lines that an earlier run finished."""
        with console.progress(self._doing, total, "lines", done) as self._advance:
            yield

    def timed(self, lines: Iterator[Any]) -> Iterator[Any]:
        """Yield the lines; start the clock of `speed` at the first."""
        for line in lines:
            self._began = self._began or time.monotonic()
            yield line

    def searched(self, tokens: int) -> None:
        """Count a finished line's target symbols, including `</s>`; lines may finish out of order."""
        self.counts.tokens += tokens
        self._tokens += tokens
        self._advance(1, self.speed())

    def add(self, result: LineResult) -> int:
        """Count the next line's result; return its 1-based line number in the input."""
        self.counts.lines += 1
        number = self.before + self.counts.lines
        if not result.parts:
            self.searched(0)  # a blank line, which never reaches the engine
        occurred = {warning: (count, number) for warning, occurs in self._warnings.items() if (count := occurs(result))}
        self.counts.add(Counts(warnings=occurred))
        return number

    def speed(self) -> str:
        """Return the target symbols per second since the first line, as text."""
        seconds = 0.0 if self._began is None else time.monotonic() - self._began
        return f"{self._tokens / max(seconds, 1e-9):,.0f} tokens/s"

    def summary(self, typed: bool) -> str:
        """Format lines, speed and the warnings that occurred on one line; no speed if the lines were typed."""
        counts, known = self.counts, self.counts.warnings
        lines = f"{counts.lines:,} {self._noun}{'' if counts.lines == 1 else 's'}"
        found = ", ".join(f"{name} {known[name][0]:,}" for name in self._warnings if name in known)
        return lines + ("" if typed else f", {self.speed()}") + (found and f"; {found}")

    def check(self) -> None:
        """Raise UserError if any warning occurred, with the first line number of each."""
        known = self.counts.warnings
        found = ["{} {:,} (first in line {:,})".format(name, *known[name]) for name in self._warnings if name in known]
        if found:
            raise UserError(f"--strict: {', '.join(found)}", "use the output, which is complete, or leave out --strict")
