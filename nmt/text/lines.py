"""Reading text files line by line.

Only `\\n` ends a line, not U+2028, `\\x0b`, `\\x85` or a lone `\\r`; a `\\r` before `\\n` is stripped. Python's text
mode, `str.splitlines` and most loaders also split elsewhere, which misaligns all later lines with their translations.
Files named *.gz and files in zip archives are decompressed. Invalid UTF-8 is decoded as U+FFFD.
"""

from __future__ import annotations

import itertools
import os
import stat
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import zip_longest
from typing import IO, TypeVar
from zipfile import BadZipFile

from nmt.system.archives import Member
from nmt.system.errors import UserError
from nmt.system.files import open_input

BLOCK = 1 << 20  # bytes read at a time when counting lines
LONGEST = 1 << 24  # maximum bytes in a line: a small .gz file can expand to gigabytes without a newline
REALIGN = "find the first line that the same line of the other file does not translate; only \\n ends a line"
"""Hint for parallel files of different lengths"""

Texts = TypeVar("Texts", bound=tuple[str, ...])


def decoded(stream: IO[bytes], name: str | os.PathLike[str]) -> Iterator[str]:
    """Yield a stream's lines without line endings.

    Raise UserError, citing `name` and line number, for a line of more than LONGEST bytes; the rest of it is not read.
    """
    for number, line in enumerate(iter(partial(stream.readline, LONGEST + 1), b""), 1):
        if len(line) > LONGEST:
            raise UserError(f"{name}:{number}: is longer than {LONGEST:,} bytes", "see that its lines end with \\n")
        yield line.removesuffix(b"\r\n").removesuffix(b"\n").decode("utf-8", errors="replace")


def read_lines(path: str | os.PathLike[str]) -> Iterator[str]:
    """Open a file immediately, then yield its lines lazily, without line endings.

    Raise UserError if the file cannot be opened or read, or as `decoded` does.
    """
    return _lines(_open(path), path)


def _lines(stream: IO[bytes], path: str | os.PathLike[str]) -> Iterator[str]:
    with stream, _read_errors(path):
        yield from decoded(stream, path)


def _open(path: str | os.PathLike[str]) -> IO[bytes]:
    return path.open() if isinstance(path, Member) else open_input(path)


@contextmanager
def _read_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Convert errors in reading a file into a UserError that names it."""
    try:
        yield
    except (OSError, EOFError, BadZipFile, zlib.error) as error:
        raise UserError(f"{path}: cannot be read to its end: {error}", f"copy or download {path} again") from None


def read_parallel(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> Iterator[tuple[str, str]]:
    """Yield pairs of lines from two files, in constant memory; raise UserError if one file has fewer lines."""
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
    """Count the lines that `read_lines` would yield, but several times faster."""
    with _open(path) as stream, _read_errors(path):
        return _count(iter(lambda: stream.read(BLOCK), b""))


def count_rest(descriptor: int) -> int | None:
    """Count an open file's remaining lines without moving its position; return None unless it is a regular file."""
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
    """Replace line breaks with spaces, so that the text can be written as one line."""
    return text.replace("\r", " ").replace("\n", " ")


def in_groups(pairs: Iterable[Texts], count: int, characters: int) -> Iterator[list[Texts]]:
    """Yield groups of consecutive pairs; a group ends once it has `count` pairs or `characters` characters."""
    group: list[Texts] = []
    size = 0
    for pair in pairs:
        group.append(pair)
        size += sum(map(len, pair))
        if len(group) == count or size >= characters:
            yield group
            group, size = [], 0
    if group:
        yield group
