"""Compressed files, and text files in zip archives.

On reading, a file's first bytes tell its compression, whatever the name; on writing, the name's suffix. Archives are
read as streams: nothing is extracted, so the paths in an archive are not used on this machine.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import re
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import IO, cast
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile

from nmt.system.errors import UserError
from nmt.system.files import reading

zstd = import_module("compression.zstd") if find_spec("_zstd") else None  # since Python 3.14
FORMATS = {".gz": ("gzip", gzip), ".bz2": ("bzip2", bz2), ".xz": ("xz", lzma), ".zst": ("zstd", zstd)}
"""Program and library by the suffix of names, which may be in upper case"""
MAGIC = re.compile(rb"(\x1f\x8b\x08)|(BZh[1-9](?:1AY&SY|\x17rE8P\x90))|(\xfd7zXZ\0)|(\x28\xb5\x2f\xfd)")
"""The first bytes of files, a group for each of FORMATS; bzip2 has others for an empty text"""
DAMAGED = (OSError, EOFError, zlib.error, lzma.LZMAError, *((zstd.ZstdError,) if zstd else ()))
"""What reading a damaged file raises"""

UNREADABLE = "check the path and its permissions"


def open_input(path: str | os.PathLike[str]) -> io.BufferedReader:
    """Open a file for reading bytes as they are; raise UserError on failure."""
    with reading(Path(path), UNREADABLE):
        return Path(path).open("rb")


def split_suffix(name: str | os.PathLike[str]) -> tuple[str, str]:
    """Split a name before its suffix of compression, which is returned in lower case, or empty if there is none."""
    stem, suffix = os.path.splitext(name)
    suffix = suffix.lower()
    if suffix in FORMATS:
        return stem, suffix
    return os.fspath(name), ""


def suffix_of(head: bytes) -> str:
    """Return the suffix for the format of a file that begins with `head`; an empty string if it is not compressed."""
    found = MAGIC.match(head)
    if found is None or found.lastindex is None:
        return ""
    return list(FORMATS)[found.lastindex - 1]


def _open(stream: IO[bytes], mode: str, suffix: str, name: str | os.PathLike[str]) -> IO[bytes]:
    if suffix == ".gz" and mode == "wb":  # without name and time: equal texts give equal files
        return cast(IO[bytes], gzip.GzipFile("", mode, fileobj=stream, mtime=0))
    program, library = FORMATS[suffix]
    if library is None:
        hint = f"use the program, such as {program} -d FILE, or .gz, .bz2 or .xz"
        raise UserError(f"{name}: Python reads and writes {program} from version 3.14 on", hint)
    return cast(IO[bytes], library.open(stream, mode))


@contextmanager
def decompressed(stream: io.BufferedReader, name: str | os.PathLike[str]) -> Iterator[io.BufferedReader]:
    """Yield a stream's content, decompressed if it is compressed; raise UserError if it is not, but `name` says so."""
    suffix = suffix_of(stream.peek(1))
    _, claimed = split_suffix(name)
    if suffix:
        stream = io.BufferedReader(cast(io.RawIOBase, _open(stream, "rb", suffix, name)))
    elif claimed:
        hint = "rename it if it is plain text; else copy or download it again"
        raise UserError(f"{name}: ends in {claimed}, but is not compressed, or is damaged", hint)
    with stream:
        yield stream


@contextmanager
def compressed(stream: IO[bytes], path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Yield a stream that writes to `stream`, compressed if the suffix of `path` says so."""
    _, suffix = split_suffix(path)
    if not suffix:
        yield stream
        return
    with _open(stream, "wb", suffix, path) as file:
        yield file


# --- zip archives ---------------------------------------------------------------------------------------------------

LISTED = 5  # maximum names in an error
BAD_ARCHIVE = (BadZipFile, EOFError, RuntimeError, ValueError, struct.error)  # RuntimeError: encrypted


@dataclass(frozen=True)
class Member:
    """A file in a zip archive; as a path, ARCHIVE/NAME, for messages."""

    archive: Path
    name: str

    def __fspath__(self) -> str:
        return f"{self.archive}/{self.name}"

    __str__ = __fspath__

    def open(self) -> io.BufferedReader:
        """Open the file for reading bytes; raise UserError if the archive is damaged or encrypted."""
        with _opened(self.archive) as archive:
            method = archive.getinfo(self.name).compress_type
            if method not in (ZIP_STORED, ZIP_DEFLATED):
                raise BadZipFile(f"{self.name} is compressed by method {method}, not 8 (deflate)")
            return io.BufferedReader(cast(io.RawIOBase, archive.open(self.name)))


def names_in(archive: Path) -> list[str]:
    """Return the names of the files in a zip archive, without those that programs of macOS add."""
    with _opened(archive) as opened:
        return [name for name in opened.namelist() if not name.startswith("__MACOSX/")]


def members(archive: Path, endings: Sequence[str], is_same: Callable[[str, str], bool]) -> tuple[Member, ...]:
    """Return the file for each ending, such as Europarl.de-en.de for de, in a zip archive of parallel text.

    If no name has the ending itself, one that `is_same` counts. Raise UserError if the archive is damaged, or does not
    have exactly one file for each ending.
    """
    names = names_in(archive)
    found = []
    for ending in endings:
        of_ending = [name for name in names if name.endswith(f".{ending}")]
        if not of_ending:
            of_ending = [name for name in names if is_same(Path(name).suffix[1:], ending)]
        if len(of_ending) != 1:
            listed = ", ".join((of_ending or names)[:LISTED]) or "it is empty"
            problem = f"{archive}: has {len(of_ending)} files whose names end in .{ending}, not one ({listed})"
            examples = " and ".join(f"text.{each}" for each in endings)
            hint = f"name a file in it, extracted, or pack one text file for each language, such as {examples}"
            raise UserError(problem, hint)
        found.append(Member(archive, *of_ending))
    return tuple(found)


@contextmanager
def _opened(path: Path) -> Iterator[ZipFile]:
    """Open a zip archive; convert the errors of the block to UserError. Files opened in the block outlive it."""
    try:
        with reading(path, UNREADABLE), ZipFile(path) as archive:
            yield archive
    except BAD_ARCHIVE as error:
        problem = f"{path}: is not a zip archive that can be read: {error}"
        raise UserError(problem, f"copy or download {path} again") from None
