"""Text files in zip archives, read as streams.

Nothing is extracted, so the paths in an archive are not used on this machine.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile

from nmt.system.errors import UserError
from nmt.system.files import not_read

LISTED = 5  # maximum names in an error
DAMAGED = (BadZipFile, EOFError, RuntimeError, ValueError, struct.error)  # RuntimeError: encrypted


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


def members(archive: Path, endings: Sequence[str]) -> tuple[Member, ...]:
    """Return the file for each ending, such as Europarl.de-en.de for de, in a zip archive of parallel text.

    Raise UserError if the archive is damaged, or does not have exactly one file for each ending.
    """
    with _opened(archive) as opened:  # programs of macOS add a second file of the same ending to __MACOSX/
        names = [name for name in opened.namelist() if not name.startswith("__MACOSX/")]
    found = []
    for ending in endings:
        of_ending = [name for name in names if name.endswith(f".{ending}")]
        if len(of_ending) != 1:
            listed = ", ".join((of_ending or names)[:LISTED]) or "it is empty"
            raise UserError(
                f"{archive}: has {len(of_ending)} files whose names end in .{ending}, not one ({listed})",
                f"pack one text file for each language, such as {' and '.join(f'text.{each}' for each in endings)}",
            )
        found.append(Member(archive, *of_ending))
    return tuple(found)


@contextmanager
def _opened(path: Path) -> Iterator[ZipFile]:
    """Open a zip archive; convert the errors of the block to UserError. Files opened in the block outlive it."""
    try:
        with ZipFile(path) as archive:
            yield archive
    except OSError as error:
        raise not_read(path, error, "check the path and its permissions") from None
    except DAMAGED as error:
        raise UserError(
            f"{path}: is not a zip archive that can be read: {error}", f"copy or download {path} again"
        ) from None
