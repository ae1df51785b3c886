"""Files and directories: atomic writes, reads that raise UserError, locks and hashes."""

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
from contextlib import ExitStack, contextmanager, suppress
from glob import escape
from io import BufferedReader
from itertools import count
from pathlib import Path
from typing import IO, Any

from nmt.system.errors import UserError

OPEN_ALREADY = re.compile(r"/dev/(stdout|stderr|fd/[0-9]+)|/proc/[^/]+/fd/[0-9]+")
LOOK = 0.1  # seconds between polls for a file
LARGEST = 1 << 25  # maximum bytes of a file to read whole: no vocabulary is larger, and its parsed JSON fits into 1 GiB
FULL = (errno.ENOSPC, errno.EDQUOT)
SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # out of resources: the file may be intact
NO_FOLDERS = (errno.EINVAL, errno.EBADF, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EACCES)  # see `_sync`
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # from flock on NFS or Lustre without lock support


class OutOfResources(UserError):
    """Failure to read a possibly intact file for lack of memory or file descriptors."""


@contextmanager
def whole_directory(path: Path, replaceable: str | None) -> Iterator[Path]:
    """Yield an empty directory to fill; on exit, sync it and replace `path`, or a symlink's target, with it.

    Only an empty directory, or one that contains a file named `replaceable`, is replaced. Raise UserError for any
    other, or if the directory cannot be written. If the block fails, `path` is unchanged.
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
                path.rename(old)  # `clear_parts` restores it if the process is killed now
            part.rename(path)
            _sync(path.parent)
            shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(part, ignore_errors=True)


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file to write; on exit, sync it and atomically replace `path`, or a symlink's target, with it.

    Devices, pipes and open file descriptors such as /dev/stdout are written directly. Raise UserError if `path` cannot
    be written. If the block fails, `path` is unchanged.
    """
    direct = OPEN_ALREADY.fullmatch(os.path.abspath(path)) or (path.exists() and not path.is_file())
    target = Path(os.path.realpath(path))
    part = path if direct else _part(target)
    try:
        with _naming(path):
            if not direct:
                clear_parts(target.parent, escape(target.name))
            stream = part.open("ab" if direct else "wb")
        with _naming(path, FULL), stream:  # other errors may come from anything in the block
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
            with suppress(OSError):  # the directory may be missing or read-only
                part.unlink(missing_ok=True)


def check_replaceable(path: Path, replaceable: str | None) -> None:
    """Raise UserError unless `path` is missing, an empty directory, or one that contains a file named `replaceable`."""
    if path.exists() and not path.is_dir():
        problem = "exists and is not a directory"
    elif path.exists() and any(path.iterdir()) and not (replaceable and (path / replaceable).is_file()):
        problem = "holds other files, which would be lost"
    else:
        return
    raise UserError(f"{path}: {problem}", "name another directory, or move it away")


def clear_parts(folder: Path, name: str, locked: bool = False) -> None:
    """Delete the temporary files and directories that killed processes left for names matching the glob `name`.

    Restore a directory whose replacement was interrupted. Keep the files of running processes, and of other hosts,
    whose processes may be running. With `locked`, the caller holds the lock for writing these names: delete all.
    """
    for left in folder.glob(f".{name}@*.tmp"):
        whole, _, owner = left.name.removeprefix(".").removesuffix(".tmp").rpartition("@")
        if owner == "old" and not (folder / whole).exists():
            left.rename(folder / whole)  # killed between the two renames in whole_directory
        elif locked or owner in ("old", "gone") or _is_gone(owner):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)


def _part(path: Path) -> Path:
    """Return this process's temporary path for writing `path`."""
    return path.with_name(f".{path.name}@{os.uname().nodename}-{os.getpid()}.tmp")


def _is_gone(owner: str) -> bool:
    """Return whether a temporary file's owner, HOST-PID, was a process of this host that has ended.

    The current PID counts as ended: an earlier process had it, as in a restarted container.
    """
    host, _, number = owner.rpartition("-")
    if host != os.uname().nodename:
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return True
    except OSError:  # it belongs to another user
        return False
    return int(number) == os.getpid()


def set_aside(path: Path) -> Path:
    """Rename `path` to damaged-NAME, or damaged-NAME-2 and so on if that exists; return the new path.

    Raise UserError if it cannot be renamed.
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
    """Wait up to `patience` seconds until another process, perhaps on another host, has written `path`.

    Call `meanwhile` between polls; it may raise to abort the wait. Raise UserError on timeout.
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
    """Remove a directory atomically, by renaming it first; `clear_parts` deletes what an interruption leaves."""
    gone = path.parent / f".{path.name}@gone.tmp"
    path.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


@contextmanager
def exclusive(lock: Path, what: str, say: Callable[[str], None], wait: bool = False) -> Iterator[None]:
    """Hold the lock file `lock` while the block runs.

    If another process on this machine holds it, `say` so and wait if `wait`, else raise UserError. If the file system
    does not support locks, `say` so and run the block anyway.
    """
    with _naming(Path(what)):
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = lock.open("ab")
    with file:
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not wait:
                    raise UserError(f"{what}: another nmt is writing there", "wait until it ends, or stop it") from None
                say(f"{what}: another nmt is writing there; waiting until it ends")
                fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            say(f"{what}: cannot be locked ({error.strerror}): see that no other nmt writes there meanwhile")
        yield


@contextmanager
def claimed(path: Path, alone: bool) -> Iterator[bool]:
    """Lock an existing file while the block runs, alone or with others; yield whether it may be used so.

    Do not wait. Where a file cannot be locked, anybody may use it with others, and nobody alone.
    """
    with ExitStack() as held:
        try:
            # Without waiting for somebody to write, if a pipe stands in its place.
            file = os.open(path, (os.O_RDWR if alone else os.O_RDONLY) | os.O_NONBLOCK)
            held.callback(os.close, file)
            fcntl.flock(file, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
            is_free = True
        except OSError as error:
            is_free = not alone and not isinstance(error, BlockingIOError)
        yield is_free


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON."""
    path.write_text(_json(value), encoding="utf-8")


def replace_json(path: Path, value: Any) -> None:
    """Atomically replace a file with indented JSON; raise UserError, keeping the old one, if it cannot be written."""
    with whole_file(path) as stream:
        stream.write(_json(value).encode())


class JsonLines:
    """A log of JSON lines. Lines that cannot be written are lost, which is reported once, and no others."""

    def __init__(self, path: Path, say: Callable[[str], None], head: Any = None) -> None:
        """Append to `path`; `say` reports a failure. An empty file gets the line `head` first, unless it is None."""
        self.path, self.head = path, b"" if head is None else _line(head)
        self._say, self._failed = say, False

    def append(self, value: Any) -> None:
        """Append a whole line or, if the disk is full for example, nothing."""
        try:
            with self.path.open("ab", buffering=0) as file:
                end = file.tell()
                text = _line(value) if end else self.head + _line(value)
                if file.write(text) < len(text):  # the disk or a quota is full, or the file as large as may be
                    file.truncate(end)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            if not self._failed:
                self._say(f"{self.path}: lines cannot be written, but the run continues: {error.strerror}")
            self._failed = True


def regular(path: Path) -> Path:
    """Return `path` if it is a regular file or a link to one; else raise UserError.

    Opening a pipe or device in its place could block forever.
    """
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise not_read(path, error, remedy(path)) from None
    if not stat.S_ISREG(mode):
        raise UserError(f"{path}: is not a regular file", remedy(path))
    return path


def open_input(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a file for reading bytes as they are; raise UserError on failure."""
    path = Path(path)
    try:
        return path.open("rb")
    except OSError as error:
        raise not_read(path, error, "check the path and its permissions") from None


def not_read(path: Path, error: OSError, hint: str) -> UserError:
    """Return the UserError for an unreadable file; `hint` is for one that is missing or damaged."""
    problem = f"{path}: cannot be read: {error.strerror or error}"
    if error.errno in SHORT:
        return OutOfResources(problem, "run this again once other programs have ended, or raise the limit: ulimit -a")
    return UserError(problem, hint)


def remedy(path: Path) -> str:
    """Return a hint for a missing or damaged file, based on its directory."""
    folder = path.parent
    if os.path.lexists(folder / "fingerprint.json"):
        return f"remove {folder}, then nmt preprocess writes it again"
    if re.fullmatch(r"step-[0-9]{8,}", folder.name):
        return f"take another copy of {folder}, or move it away to resume from the checkpoint before it"
    return f"take it from another copy of {folder}"


def read_whole(path: Path) -> bytes:
    """Read a regular file; raise UserError naming it if it is unreadable or larger than LARGEST bytes."""
    try:
        if (size := regular(path).stat().st_size) <= LARGEST:
            return path.read_bytes()
    except OSError as error:
        raise not_read(path, error, remedy(path)) from None
    raise UserError(f"{path}: damaged: has {size:,} bytes, more than {LARGEST:,}", remedy(path))


def read_json(path: Path) -> Any:
    """Read JSON; raise UserError naming the file if it is missing, malformed or larger than LARGEST bytes."""
    try:
        return json.loads(read_whole(path).decode())
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: damaged: is not valid JSON: {error}", remedy(path)) from None


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _line(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode() + b"\n"


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file's contents, in hexadecimal."""
    return digest(path, hashlib.sha256, f"make it readable: chmod u+r {path}")


def digest(path: Path, kind: Callable[[], Any], hint: str) -> str:
    """Return a hash of a file's contents, in hexadecimal; raise UserError with `hint` if it cannot be read."""
    try:
        with regular(path).open("rb", buffering=0) as stream:
            return hashlib.file_digest(stream, kind).hexdigest()
    except OSError as error:
        raise not_read(path, error, hint) from None


def identify(path: Path, before: list[Any] | None) -> list[Any]:
    """Return a file's size, mtime and SHA-256 (None for a pipe), or `before` if size and mtime are unchanged."""
    status = path.stat()
    stamp = [status.st_size, status.st_mtime_ns]
    return before if before and before[:2] == stamp else [*stamp, sha256(path) if path.is_file() else None]


@contextmanager
def _naming(path: Path, codes: Collection[int] | None = None) -> Iterator[None]:
    """Convert an OSError (with an errno in `codes`, if given) to a UserError about writing `path`."""
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
            f"check {path.parent} and its permissions, or name another place",
        ) from None


def _sync(path: Path) -> None:
    """Sync a file, or a directory if its file system can and its permissions allow it: some of networks cannot."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in NO_FOLDERS or not path.is_dir():
            raise
