"""Files that exist whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nmt.errors import UserError


@contextmanager
def whole_directory(path: Path) -> Iterator[Path]:
    """Gives an empty directory to fill; at the end it is synced to disk and takes the place of `path`.

    Where the block fails, `path` is as it was. A full disk is a UserError.
    """
    part = path.parent / f".{path.name}@{os.getpid()}.tmp"
    try:
        if path.exists() and not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        clear_parts(path.parent, path.name)
        part.mkdir(parents=True)
        yield part
        for file in (*part.iterdir(), part):
            _sync(file)
        if path.exists():
            old = path.parent / f".{path.name}@old.tmp"
            path.rename(old)
            part.rename(path)
            shutil.rmtree(old)
        else:
            part.rename(path)
        _sync(path.parent)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(f"{path}: the disk is full", "free some space and run the same command again") from None
        if error.errno in (errno.EACCES, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
            raise UserError(f"{path}: cannot be written: {error.strerror}") from None
        raise
    finally:
        shutil.rmtree(part, ignore_errors=True)


def clear_parts(folder: Path, name: str) -> None:
    """Removes what a killed process left of directories called `name` (a glob pattern)."""
    for left in folder.glob(f".{name}@*.tmp"):
        shutil.rmtree(left, ignore_errors=True)


def write_json(path: Path, value: Any) -> None:
    """Writes readable JSON."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    """Reads JSON; raises UserError naming the file where it is missing or broken."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"{path}: is not valid JSON: {error}") from None


def sha256(path: Path) -> str:
    """Hexadecimal digest of a file's content."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
