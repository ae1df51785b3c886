"""Text files as lines.

A line ends at `\\n` and nowhere else: not at U+2028, `\\x0b`, `\\x85` or a lone `\\r`. A `\\r` right before `\\n` is
not part of the line. Python's text mode, `str.splitlines` and most loaders split at some of these, which shifts all
later lines against their translations. Files whose names end in .gz are compressed. Bytes that are not UTF-8 become
U+FFFD.
"""

from __future__ import annotations

import gzip
import itertools
import os
import stat
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import IO, TypeVar, cast

from nmt.system.errors import UserError
from nmt.system.files import not_read

BLOCK = 1 << 20  # bytes that are read at a time to count lines
LONGEST = 1 << 24  # bytes of a line; a few kilobytes of a .gz can stand for gigabytes without a line end
REALIGN = "find the first line that the same line of the other file does not translate; only \\n ends a line"
"""Hint if one of two files has more lines"""

Texts = TypeVar("Texts", bound=tuple[str, ...])


def open_input(path: str | os.PathLike[str]) -> IO[bytes]:
    """Open a file for reading bytes; raises UserError naming it if that fails."""
    path = Path(path)
    try:
        return cast(IO[bytes], gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")
    except OSError as error:
        raise not_read(path, error, "name a file that is there and that you may read") from None


@contextmanager
def compressed(stream: IO[bytes], path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Give what to write to so that `stream` becomes the file `path`, compressed if its name ends in .gz."""
    if Path(path).suffix != ".gz":
        yield stream
        return
    with gzip.GzipFile("", "wb", fileobj=stream, mtime=0) as file:  # no name or time: equal texts give equal files
        yield cast(IO[bytes], file)


def decode(line: bytes) -> str:
    """Decode a line of a stream, without its end."""
    if line.endswith(b"\n"):
        line = line[:-2] if line.endswith(b"\r\n") else line[:-1]
    return line.decode("utf-8", errors="replace")


def decoded(stream: IO[bytes], name: str | os.PathLike[str]) -> Iterator[str]:
    """Yield the lines of a stream without their ends; raises UserError naming the first with more than LONGEST bytes.

    No more of that line is read.
    """
    for number, line in enumerate(iter(partial(stream.readline, LONGEST + 1), b""), 1):
        if len(line) > LONGEST:
            raise UserError(f"{name}:{number}: is longer than {LONGEST:,} bytes", "see that its lines end with \\n")
        yield decode(line)


def read_lines(path: str | os.PathLike[str]) -> Iterator[str]:
    """Open a file at once and yield its lines without their ends, in constant memory; raises UserError as `decoded`."""
    return _lines(open_input(path), path)


def _lines(stream: IO[bytes], path: str | os.PathLike[str]) -> Iterator[str]:
    with stream, _to_its_end(path):
        yield from decoded(stream, path)


@contextmanager
def _to_its_end(path: str | os.PathLike[str]) -> Iterator[None]:
    """Raise UserError naming the file if it cannot be read to its end."""
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read to its end: {error}", f"copy or download {path} again") from None


def read_parallel(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> Iterator[tuple[str, str]]:
    """Yield the lines of two files side by side, in constant memory; raises UserError if one has fewer."""
    for number, (one, other) in enumerate(zip_longest(read_lines(source), read_lines(target))):
        if one is None or other is None:
            ended, longer = (source, target) if one is None else (target, source)
            raise UserError(
                f"{ended} ends after {number:,} lines and {longer} goes on: "
                "line N of one must translate line N of the other",
                REALIGN,
            )
        yield one, other


def count_lines(path: str | os.PathLike[str]) -> int:
    """Count the lines that `read_lines` would yield, several times as fast."""
    with open_input(path) as stream, _to_its_end(path):
        return _count(iter(lambda: stream.read(BLOCK), b""))


def count_rest(descriptor: int) -> int | None:
    """Count the lines from the position of an open file, which stays, to its end; None for a pipe or a terminal."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        return None
    starts = itertools.count(os.lseek(descriptor, 0, os.SEEK_CUR), BLOCK)
    return _count(iter(lambda: os.pread(descriptor, BLOCK, next(starts)), b""))


def _count(blocks: Iterator[bytes]) -> int:
    count, last = 0, b"\n"
    for block in blocks:
        count += block.count(b"\n")
        last = block
    return count + (not last.endswith(b"\n"))


def one_line(text: str) -> str:
    """Replace line ends by spaces, so that the text stays one line wherever it is written."""
    return text.replace("\r", " ").replace("\n", " ")


def in_groups(pairs: Iterable[Texts], most: int, characters: int) -> Iterator[list[Texts]]:
    """Yield groups of neighbouring pairs: `most` of them, or fewer once they have so many `characters`."""
    group: list[Texts] = []
    size = 0
    for pair in pairs:
        group.append(pair)
        size += sum(map(len, pair))
        if len(group) == most or size >= characters:
            yield group
            group, size = [], 0
    if group:
        yield group
