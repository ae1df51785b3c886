"""Reading text files line by line: the one place that decides on encoding, byte order marks and blank lines.

Only `\\n` ends a line, not U+2028, `\\x0b`, `\\x85` or a lone `\\r`; a `\\r` before `\\n` is stripped. Python's text
mode, `str.splitlines` and most loaders also split elsewhere, which misaligns all later lines with their translations.
A text with `\\r` alone at the ends of its lines, as old programs wrote it, is refused.
Text is UTF-8: invalid bytes are decoded as U+FFFD, UTF-16 and UTF-32 are refused. A byte order mark is stripped from
any line, since joined files have it inside. `nmt/system/compression.py` decompresses.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count, zip_longest
from pathlib import Path
from typing import TypeVar
from zipfile import BadZipFile

from nmt.system.compression import DAMAGED, FORMATS, Member, decompressed, open_input, split_suffix, suffix_of
from nmt.system.errors import UserError, counted

BLOCK = 1 << 20  # bytes read at a time when counting lines
LONGEST = 1 << 24  # maximum bytes in a line: a small .gz file can expand to gigabytes without a newline
LONE = re.compile(rb"\r[^\r\n]")  # `\r` amid a line, or at the end of one that has no `\n`
USUAL = 4096  # bytes a lone `\r`, on average: with fewer bytes, they are line ends; with more, they are strays
DOCUMENTS = {
    b"PK\3\4": ("a zip archive, as .docx, .xlsx, .odt and .epub are", "pandoc -t plain"),
    b"%PDF-": ("a PDF", "pdftotext - - <"),
    b"{\\rtf": ("RTF", "pandoc -t plain"),
    b"\xd0\xcf\x11\xe0": ("a document of Office before 2007", "catdoc -d utf-8"),
}
"""What a file is, and a command to make it text, by its first bytes"""
STRAY = 4  # NULs and invalid bytes that the beginning of a text may have, beside 2% of its bytes
VISIBLE = re.compile(
    r"[^\s\0-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    r"\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""A character other than whitespace, control characters and those that Unicode calls default ignorable"""
REALIGN = "find the first line that the same line of the other file does not translate; only \\n ends a line"
"""Hint for parallel files of different lengths"""

Texts = TypeVar("Texts", bound=tuple[str, ...])


def decoded(stream: io.BufferedReader, name: str | os.PathLike[str]) -> Iterator[str]:
    """Yield a stream's lines without line endings and byte order marks.

    Raise UserError, citing `name`, if the stream's beginning is not UTF-8 text. Raise it, citing also the line number,
    for a line of more than LONGEST bytes; the rest of it is not read.
    """
    _check_beginning(stream.peek(1), name)
    lines = iter(partial(stream.readline, LONGEST + 1), b"")
    for number, line in enumerate(lines, 1):
        if len(line) > LONGEST:
            raise UserError(f"{name}:{number}: is longer than {LONGEST:,} bytes", "see that its lines end with \\n")
        yield line.decode("utf-8", "replace").removesuffix("\r\n").removesuffix("\n").removeprefix("\ufeff")


def _check_beginning(head: bytes, name: str | os.PathLike[str]) -> None:
    """Raise UserError if a text's first bytes are an archive, compressed, UTF-16, UTF-32, binary, or lines that end in
    `\\r` alone.
    """
    if head[257:262] == b"ustar":  # the magic number of tar stands there
        hint = f"extract its files, and name them: tar -xf {name}"
        raise UserError(f"{name}: is a tar archive, not text", hint)
    other = _other_than_text(head)
    if other:
        what, command = other
        hint = f"make it text in UTF-8, by: {command} {_redirected(name)}"
        if other in DOCUMENTS.values() and os.fspath(name).endswith((".csv", ".tsv")):
            hint = "open it in the program that wrote it, and save it as .csv in UTF-8"
        raise UserError(f"{name}: is {what}", hint)


def _redirected(name: str | os.PathLike[str]) -> str:
    """Return arguments of a shell that let a command read a file and write another of the same ending."""
    path = Path(name)
    if isinstance(name, Member) or not path.is_file() or split_suffix(name)[1]:
        return "FILE > NEW"
    return f"{shlex.quote(str(path))} > {shlex.quote(str(path.with_name(f'utf8-{path.name}')))}"


def _other_than_text(head: bytes) -> tuple[str, str] | None:
    """Return what a file is that begins with these bytes, and a command to make it UTF-8; None if it is that.

    A text may have a few stray bytes.
    """
    suffix = suffix_of(head)
    if suffix:
        return f"compressed ({suffix})", f"{FORMATS[suffix][0]} -dc"
    if head.startswith((b"\xff\xfe\0\0", b"\0\0\xfe\xff")):
        return "UTF-32, not UTF-8", "iconv -f UTF-32 -t UTF-8"
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "UTF-16, not UTF-8", "iconv -f UTF-16 -t UTF-8"
    for magic, document in DOCUMENTS.items():
        if head.startswith(magic):
            return document
    nuls = head.count(0)
    text = head.decode("utf-8", "replace")
    if nuls and nuls + text.count("\ufffd") > STRAY + len(head) // 50:
        order = "LE" if head[1::2].count(0) > head[::2].count(0) else "BE"
        return "UTF-16 or not text, since it has NUL bytes", f"iconv -f UTF-16{order} -t UTF-8"
    lines = head.split(b"\n")
    damaged = sum(_is_damaged(line) for line in lines)
    others = sum(each > "\x7f" and each != "\ufffd" for each in text)
    if damaged > max(STRAY, len(lines) // 10, others):
        return "in another encoding than UTF-8, such as LATIN1 or WINDOWS-1251", "iconv -f ENCODING -t UTF-8"
    if b"\n" not in head and len(LONE.findall(head)) > len(head) // USUAL:
        return "text whose lines end in \\r alone", "tr '\\r' '\\n' <"
    return None


def _is_damaged(line: bytes) -> bool:
    """Return whether a line is not UTF-8."""
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return True
    return False


def read_lines(path: str | os.PathLike[str]) -> Iterator[str]:
    """Open a file immediately, then yield its lines lazily, without line endings.

    Raise UserError if the file cannot be opened or read, or as `decoded` does.
    """

    def lines() -> Iterator[str]:
        with opened(path) as stream:
            yield ""  # for the `next` below
            yield from decoded(stream, path)

    found = lines()
    next(found)  # opens the file
    return found


@contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[io.BufferedReader]:
    """Open a file, decompressed; convert errors in reading it into a UserError that names it."""
    file = path.open() if isinstance(path, Member) else open_input(path)
    try:
        with file, decompressed(file, path) as stream:
            yield stream
    except (*DAMAGED, BadZipFile) as error:
        raise UserError(f"{path}: cannot be read to its end: {error}", f"copy or download {path} again") from None


def read_parallel(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> Iterator[tuple[str, str]]:
    """Yield pairs of lines from two files, in constant memory; raise UserError if one file has fewer lines."""
    for number, (one, other) in enumerate(zip_longest(read_lines(source), read_lines(target))):
        if one is None:
            raise _ends_early(source, number, target)
        if other is None:
            raise _ends_early(target, number, source)
        yield one, other


def _ends_early(path: str | os.PathLike[str], lines: int, longer: str | os.PathLike[str]) -> UserError:
    problem = f"{path} ends after {counted(lines, 'line')} and {longer} goes on"
    return UserError(f"{problem}: line N of one must translate line N of the other", REALIGN)


def stripped(text: str) -> str:
    """Strip surrounding whitespace; return an empty string if only invisible characters are left."""
    return text.strip() if VISIBLE.search(text) else ""


def count_lines(path: str | os.PathLike[str]) -> int:
    """Count the lines that `read_lines` would yield, but several times faster."""
    with opened(path) as stream:
        _check_beginning(stream.peek(1), path)
        return _count(iter(lambda: stream.read(BLOCK), b""))


def count_rest(descriptor: int) -> int | None:
    """Count the lines that an open file, such as stdin, still has, without moving its position.

    Return None unless it is a regular file: a pipe cannot be read twice.
    """
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        return None
    starts = count(os.lseek(descriptor, 0, os.SEEK_CUR), BLOCK)
    return _count(iter(lambda: os.pread(descriptor, BLOCK, next(starts)), b""))


def _count(blocks: Iterator[bytes]) -> int:
    found = 0
    last = b"\n"
    for block in blocks:
        found += block.count(b"\n")
        last = block
    return found + (not last.endswith(b"\n"))


def one_line(text: str) -> str:
    """Replace line breaks with spaces, so that the text can be written as one line."""
    return text.replace("\r", " ").replace("\n", " ")


def in_groups(pairs: Iterable[Texts], count: int, characters: int) -> Iterator[list[Texts]]:
    """Yield groups of consecutive pairs; a group ends with the pair by which it has `count` pairs or `characters`."""
    group: list[Texts] = []
    size = 0
    for pair in pairs:
        group.append(pair)
        size += sum(map(len, pair))
        if len(group) == count or size >= characters:
            yield group
            group = []
            size = 0
    if group:
        yield group
