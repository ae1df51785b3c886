"""Where lines come from and where they go, and what is counted of them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Generic, TypeVar

from nmt.system.console import Advance, Console, unseen
from nmt.system.errors import UserError, printable_lines
from nmt.system.files import whole_file
from nmt.text.lines import compressed, count_lines, count_rest, decoded, read_lines

if TYPE_CHECKING:
    from nmt.decoding.pipeline import LineResult

Result = TypeVar("Result", bound="LineResult")


def open_standard_streams() -> None:
    """Replaces standard streams that were closed when the command was started.

    What goes to stderr is thrown away then, and what would go to stdout is an error. The descriptors become those of
    /dev/null: else the next file that is opened would get the number of stderr, and the warnings of libraries in it.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)  # for worker processes, which would have the same trouble
    os.close(descriptor)
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(1, closefd=False)  # noqa: SIM115 - to write there is an error, so no result is lost


def release(stream: IO[str]) -> None:
    """Flushes a standard stream, or throws away what nobody takes; Python would try it again at its end and fail."""
    try:
        stream.flush()
    except (OSError, ValueError):
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def is_typed(path: Path | None) -> bool:
    """Whether the lines of a file, or of stdin where it is None, are those that somebody types at a terminal."""
    return path is None and sys.stdin is not None and sys.stdin.isatty()


def read_input(path: Path | None, console: Console) -> Iterator[str]:
    """The lines of a file, or of stdin; raises UserError at once where there is none.

    Somebody who sits at a terminal is told that the command waits for lines.
    """
    if path is not None:
        return read_lines(path)
    if sys.stdin is None:
        raise UserError("stdin is closed", "name an input file, or send the lines through a pipe")
    if is_typed(path):
        console.say("reading from the terminal: one sentence per line, Ctrl-D to end")
    descriptor = _descriptor(sys.stdin)
    # A thread that waits for its input must not keep sys.stdin itself, which Python wants to close at its end.
    stream = sys.stdin.buffer if descriptor is None else open(descriptor, "rb", closefd=False)  # noqa: SIM115
    return decoded(stream, "<stdin>")


def count_input(path: Path | None) -> int | None:
    """Lines of a file, or of what is left of stdin; None where nobody knows."""
    if path is not None:
        return count_lines(path) if path.is_file() else None
    descriptor = _descriptor(sys.stdin)
    return None if descriptor is None else count_rest(descriptor)


def _descriptor(stream: IO[str]) -> int | None:
    try:
        return stream.fileno()
    except OSError:  # it is no file of the system's
        return None


def open_output(path: Path | None, held: ExitStack) -> Callable[[str], None]:
    """A function that writes one or more lines, without the end of the last, to a file or to stdout.

    A file is whole when what is `held` ends. What a terminal would obey is escaped there: a model may spell any byte.
    """
    is_shown = path is None and sys.stdout.isatty()
    if path is None:
        stream: IO[bytes] = sys.stdout.buffer
    else:
        stream = held.enter_context(compressed(held.enter_context(whole_file(path)), path))

    read_at_once = path is None or (path.exists() and not path.is_file())  # a pipe: its reader waits for each line

    def write(lines: str) -> None:
        stream.write((printable_lines(lines) if is_shown else lines).encode() + b"\n")
        if read_at_once:
            stream.flush()

    return write


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
