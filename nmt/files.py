"""Files and directories that exist whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from nmt.errors import UserError

OPEN_ALREADY = re.compile(r"/dev/(stdout|stderr|fd/\d+)|/proc/[^/]+/fd/\d+")


@contextmanager
def whole_directory(path: Path, replaceable: str) -> Iterator[Path]:
    """Gives an empty directory to fill; at the end it is synced to disk and takes the place of `path`, or of what a
    link called `path` points to.

    Only a directory that holds a file `replaceable`, or nothing, is replaced; anything else is a UserError, and so is
    a full disk. Where the block fails, `path` is as it was.
    """
    if os.path.islink(path):
        path = Path(os.path.realpath(path))
    part = path.parent / f".{path.name}@{os.getpid()}.tmp"
    try:
        if path.exists() and not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        old = path.parent / f".{path.name}@old.tmp"
        if old.exists() and not path.exists():
            old.rename(path)  # a process was killed between the two renames below
        if path.exists() and any(path.iterdir()) and not (path / replaceable).is_file():
            raise UserError(f"{path}: exists and holds something else", "name another directory, or move it away")
        clear_parts(path.parent, path.name)
        part.mkdir(parents=True)
        yield part
        for file in (*part.iterdir(), part):
            _sync(file)
        if path.exists():
            path.rename(old)
            part.rename(path)
            shutil.rmtree(old)
        else:
            part.rename(path)
        _sync(path.parent)
    except OSError as error:
        raise _not_written(path, error) from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Gives a file to write; at the end it is synced to disk and takes the place of `path`, or of what a link called
    `path` points to. Devices, pipes and files that are open already, such as /dev/stdout, are written directly.

    Raises UserError where `path` cannot be written. Where the block fails, `path` is as it was.
    """
    direct = OPEN_ALREADY.fullmatch(os.path.abspath(path)) or (path.exists() and not path.is_file())
    target = Path(os.path.realpath(path))
    part = path if direct else target.parent / f".{target.name}@{os.getpid()}.tmp"
    try:
        stream = part.open("ab" if direct else "wb")
    except OSError as error:
        raise _not_written(path, error) from None
    try:
        with stream:
            yield stream
        if not direct:
            if target.exists():
                shutil.copymode(target, part)
            _sync(part)
            part.replace(target)
            _sync(target.parent)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):  # others may be of anything that the block did
            raise _not_written(path, error) from None
        raise
    finally:
        if not direct:
            part.unlink(missing_ok=True)


def clear_parts(folder: Path, name: str) -> None:
    """Removes what a killed process left of directories called `name` (a glob pattern)."""
    for left in folder.glob(f".{name}@*.tmp"):
        shutil.rmtree(left, ignore_errors=True)


def remove_directory(path: Path) -> None:
    """Removes a directory so that it is there whole or not at all, whenever the process is killed."""
    gone = path.parent / f".{path.name}@gone.tmp"
    path.rename(gone)
    shutil.rmtree(gone)


@contextmanager
def exclusive(lock: Path, what: str, wait: bool = False) -> Iterator[None]:
    """Holds a lock file while the block runs.

    Where another process on this machine holds it, waits for it to end or else raises UserError.
    """
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = lock.open("w")
    except OSError as error:
        raise UserError(f"{what}: cannot be written: {error.strerror}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{what}: another nmt is at work there", "wait for it to end, or stop it") from None
        yield


def write_json(path: Path, value: Any) -> None:
    """Writes readable JSON."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def replace_json(path: Path, value: Any) -> None:
    """Writes readable JSON over a file, which is the old or the new one whole, whenever the process is killed.

    Raises UserError where it cannot be written; what is there then stays.
    """
    part = path.with_name(f".{path.name}@{os.getpid()}.tmp")
    try:
        write_json(part, value)
        _sync(part)
        part.replace(path)
        _sync(path.parent)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise _not_written(path, error) from None


def regular(path: Path) -> Path:
    """Gives back the path of a regular file, or of a link to one.

    Raises UserError where there is none. To open a pipe or a device in its place could wait forever.
    """
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}", remedy(path)) from None
    if not stat.S_ISREG(mode):
        raise UserError(f"{path}: is not a regular file", remedy(path))
    return path


def remedy(path: Path) -> str:
    """Says what to do about a file that is missing or damaged, by the directory it stands in."""
    folder = path.parent
    if os.path.lexists(folder / "fingerprint.json"):
        return f"remove {folder}, and nmt preprocess writes it anew"
    if re.fullmatch(r"step-\d{8,}", folder.name):
        return f"take another copy of {folder}, or move it away: the run goes on from the checkpoint before it"
    return f"take it from another copy of {folder}"


def read_json(path: Path) -> Any:
    """Reads JSON; raises UserError naming the file where it is missing or broken."""
    try:
        return json.loads(regular(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}", remedy(path)) from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: damaged: is not valid JSON: {error}", remedy(path)) from None


def sha256(path: Path) -> str:
    """Hexadecimal digest of a file's content."""
    try:
        with regular(path).open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None


def _not_written(path: Path, error: OSError) -> UserError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return UserError(f"{path}: the disk is full", "free some space and run the same command again")
    return UserError(f"{path}: cannot be written: {error.strerror or error}")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
