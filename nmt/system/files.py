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
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from glob import escape
from itertools import count
from pathlib import Path
from typing import IO, Any

from nmt.system.errors import UserError

OPEN_ALREADY = re.compile(r"/dev/(stdout|stderr|fd/[0-9]+)|/proc/[^/]+/fd/[0-9]+")
LOOK = 0.1  # seconds between checks for a file that another process is writing
LARGEST = 1 << 25  # bytes of a file that is read whole: far more than of any vocabulary, and its JSON fits into 1 GiB
FULL = (errno.ENOSPC, errno.EDQUOT)
SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # the file may be intact
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # of flock on NFS or Lustre without locks


class OutOfResources(UserError):
    """A file that could not be read for lack of memory or descriptors, and may be intact."""


@contextmanager
def whole_directory(path: Path, replaceable: str | None) -> Iterator[Path]:
    """Give an empty directory to fill; at the end, sync it to disk and put it in the place of `path` or of its target.

    Only a directory that holds a file `replaceable`, or nothing, is replaced. Raises UserError for anything else, and
    if the directory cannot be written. If the block fails, `path` stays as it was.
    """
    if os.path.islink(path):
        path = Path(os.path.realpath(path))
    part, old = _part(path), path.with_name(f".{path.name}@old.tmp")
    try:
        with _naming(path):
            clear_parts(path.parent, escape(path.name))
            check_replaceable(path, replaceable)
            part.mkdir(parents=True)
            yield part
            for file in (*part.iterdir(), part):
                _sync(file)
            if path.exists():
                path.rename(old)  # `clear_parts` puts it back if the process is killed now
            part.rename(path)
            _sync(path.parent)
            shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(part, ignore_errors=True)


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Give a file to write; at the end, sync it to disk and put it in the place of `path`, or of the target of a link.

    Devices, pipes and files that are open already, such as /dev/stdout, are written directly. Raises UserError if
    `path` cannot be written. If the block fails, `path` stays as it was.
    """
    direct = OPEN_ALREADY.fullmatch(os.path.abspath(path)) or (path.exists() and not path.is_file())
    target = Path(os.path.realpath(path))
    part = path if direct else _part(target)
    try:
        with _naming(path):
            if not direct:
                clear_parts(target.parent, escape(target.name))
            stream = part.open("ab" if direct else "wb")
        with _naming(path, FULL), stream:  # other errors may be of anything that the block does
            yield stream
        if not direct:
            with _naming(path):
                if target.exists():
                    shutil.copymode(target, part)
                _sync(part)
                part.replace(target)
                _sync(target.parent)
    finally:
        if not direct:
            with suppress(OSError):  # its directory is missing, or may not be written
                part.unlink(missing_ok=True)


def check_replaceable(path: Path, replaceable: str | None) -> None:
    """Raise UserError unless `path` is missing, an empty directory or one that holds a file `replaceable`."""
    if path.exists() and not path.is_dir():
        problem = "exists and is not a directory"
    elif path.exists() and any(path.iterdir()) and not (replaceable and (path / replaceable).is_file()):
        problem = "holds other files, which would be lost"
    else:
        return
    raise UserError(f"{path}: {problem}", "name another directory, or move it away")


def clear_parts(folder: Path, name: str, locked: bool = False) -> None:
    """Remove the unfinished parts that killed processes left of `name`, a glob pattern, in a folder.

    A directory that such a process was replacing is put back. Parts of a running process stay, and so do those of
    other hosts, whose processes may be running. With `locked` these go too: the caller holds the lock under which
    these names are written.
    """
    for left in folder.glob(f".{name}@*.tmp"):
        whole, _, owner = left.name.removeprefix(".").removesuffix(".tmp").rpartition("@")
        if owner == "old" and not (folder / whole).exists():
            left.rename(folder / whole)  # killed between the two renames of whole_directory
        elif locked or owner in ("old", "gone") or _is_gone(owner):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)


def _part(path: Path) -> Path:
    """Return where this process writes what will be called `path`."""
    return path.with_name(f".{path.name}@{os.uname().nodename}-{os.getpid()}.tmp")


def _is_gone(owner: str) -> bool:
    """Has the process that writes a part, HOST-PID, run on this host and ended?

    A part with this process's own number was left by an earlier one, as in a container that is restarted.
    """
    host, _, number = owner.rpartition("-")
    if host != os.uname().nodename:
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return True
    except OSError:  # it runs as another user
        return False
    return int(number) == os.getpid()


def set_aside(path: Path) -> Path:
    """Rename `path` to damaged-NAME, or damaged-NAME-2 and so on if that is taken; return the new path.

    Raises UserError if it cannot be renamed.
    """
    names = (f"damaged-{path.name}" + (f"-{number}" if number > 1 else "") for number in count(1))
    free = next(other for other in map(path.with_name, names) if not os.path.lexists(other))
    try:
        path.rename(free)
    except OSError as error:
        raise UserError(
            f"{path}: cannot be renamed to {free.name}: {error.strerror}", "move it away, and run this again"
        ) from None
    return free


def wait_for(path: Path, patience: float, meanwhile: Callable[[], None]) -> None:
    """Wait at most `patience` seconds until another process, perhaps of another host, has written `path`.

    Calls `meanwhile` now and then, which may raise to end the wait. Raises UserError after the time.
    """
    until = time.monotonic() + patience
    while not path.exists():
        if time.monotonic() > until:
            raise UserError(
                f"{path}: another process did not write it within {patience:,.0f} s",
                "give an --out that all hosts share, or raise training.timeout_minutes",
            )
        meanwhile()
        time.sleep(LOOK)


def remove_directory(path: Path) -> None:
    """Remove a directory so that a kill leaves all of it or nothing.

    What cannot be removed stays under a hidden name, which `clear_parts` removes later.
    """
    gone = path.parent / f".{path.name}@gone.tmp"
    path.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


@contextmanager
def exclusive(lock: Path, what: str, say: Callable[[str], None], wait: bool = False) -> Iterator[None]:
    """Hold a lock file while the block runs.

    If another process on this machine holds it, `wait` for it, else raise UserError. If the file system has no locks,
    say so and run the block without one.
    """
    with _naming(Path(what)):
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = lock.open("ab")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{what}: another nmt is writing there", "wait until it ends, or stop it") from None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            say(f"{what}: cannot be locked ({error.strerror}): see that no other nmt writes there meanwhile")
        yield


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON."""
    path.write_text(_json(value), encoding="utf-8")


def replace_json(path: Path, value: Any) -> None:
    """Replace a file by indented JSON, so that a kill leaves the old or the new one whole.

    Raises UserError if it cannot be written; the old one then stays.
    """
    with whole_file(path) as stream:
        stream.write(_json(value).encode())


def regular(path: Path) -> Path:
    """Return the path if it is a regular file, or a link to one; else raise UserError.

    Opening a pipe or a device in its place could wait forever.
    """
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise not_read(path, error, remedy(path)) from None
    if not stat.S_ISREG(mode):
        raise UserError(f"{path}: is not a regular file", remedy(path))
    return path


def not_read(path: Path, error: OSError, hint: str) -> UserError:
    """Return the error for a file that cannot be read; the hint is for one that is missing or damaged."""
    problem = f"{path}: cannot be read: {error.strerror or error}"
    if error.errno in SHORT:
        return OutOfResources(problem, "run this again once other programs have ended, or raise the limit: ulimit -a")
    return UserError(problem, hint)


def remedy(path: Path) -> str:
    """Return the hint for a file that is missing or damaged, by the kind of its directory."""
    folder = path.parent
    if os.path.lexists(folder / "fingerprint.json"):
        return f"remove {folder}, then nmt preprocess writes it again"
    if re.fullmatch(r"step-[0-9]{8,}", folder.name):
        return f"take another copy of {folder}, or move it away to resume from the checkpoint before it"
    return f"take it from another copy of {folder}"


def read_whole(path: Path) -> bytes:
    """Read a regular file of at most LARGEST bytes; raises UserError naming it if it is larger or cannot be read."""
    try:
        if (size := regular(path).stat().st_size) <= LARGEST:
            return path.read_bytes()
    except OSError as error:
        raise not_read(path, error, remedy(path)) from None
    raise UserError(f"{path}: damaged: has {size:,} bytes, more than {LARGEST:,}", remedy(path))


def read_json(path: Path) -> Any:
    """Read JSON; raises UserError naming the file if it is missing, no JSON or larger than LARGEST."""
    try:
        return json.loads(read_whole(path).decode())
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: damaged: is not valid JSON: {error}", remedy(path)) from None


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def sha256(path: Path) -> str:
    """Hash a file's content, in hexadecimal."""
    try:
        with regular(path).open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise not_read(path, error, f"make it readable: chmod u+r {path}") from None


def identify(path: Path, before: list[Any] | None) -> list[Any]:
    """Return a file's size, time and SHA-256 (None for a pipe), without reading a file unchanged since `before`."""
    status = path.stat()
    stamp = [status.st_size, status.st_mtime_ns]
    return before if before and before[:2] == stamp else [*stamp, sha256(path) if path.is_file() else None]


@contextmanager
def _naming(path: Path, codes: Collection[int] | None = None) -> Iterator[None]:
    """Turn an OSError, of these codes if given, into the UserError that `path` cannot be written."""
    try:
        yield
    except OSError as error:
        if codes is not None and error.errno not in codes:
            raise
        if error.errno in FULL:
            hint = "free some space and run the same command again"
            raise UserError(f"{path}: the disk is full", hint) from None
        raise UserError(
            f"{path}: cannot be written: {error.strerror or error}",
            f"see that you may write to {path.parent}, or name another place",
        ) from None


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
