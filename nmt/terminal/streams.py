"""Where lines come from and where they go: stdin, stdout and files."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO

from nmt.console import Console
from nmt.errors import UserError, printable_lines
from nmt.files import whole_file
from nmt.text.lines import compressed, count_lines, count_rest, decoded, read_lines


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
