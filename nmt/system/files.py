"""Files and directories: atomic writes, and reads that raise UserError."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import stat
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import IO, Any

from nmt.system.errors import UserError

OPEN_ALREADY = re.compile(r"/dev/(stdout|stderr|fd/[0-9]+)|/proc/[^/]+/fd/[0-9]+")
LARGEST = 1 << 25  # maximum bytes of a file to read whole: no vocabulary is larger, and its parsed JSON fits into 1 GiB
IN_FOLDER = "this is a folder: name a file in it"
FULL = (errno.ENOSPC, errno.EDQUOT)
SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # out of resources: the file may be intact
NO_FOLDERS = (errno.EINVAL, errno.EBADF, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EACCES)  # see `_sync`


class OutOfResources(UserError):
    """Failure to read a possibly intact file for lack of memory or file descriptors."""


@contextmanager
def writing(path: Path, codes: Collection[int] | None = None) -> Iterator[None]:
    """Convert an OSError (with an errno in `codes`, if given) to a UserError about writing `path`."""
    check_name(path)
    try:
        yield
    except OSError as error:
        missing = no_temporary_directory(error)
        if missing:
            raise missing from None
        if codes is not None and error.errno not in codes:
            raise
        name = str(path)
        target = path
        if path.is_symlink():
            target = Path(os.path.realpath(path))
            name = f"{path}, a link to {target}"
        if error.errno in FULL:
            problem = "the disk is full"
            hint = "free some space and run the same command again"
        else:
            problem = f"cannot be written: {error.strerror or error}"
            hint = f"check {target.parent} and its permissions, or name another place"
            if error.errno in (errno.EEXIST, errno.ENOTDIR):
                hint = "a file is where a folder is needed: rename it, or name another place"
            elif error.errno == errno.EISDIR:
                hint = IN_FOLDER
        raise UserError(f"{name}: {problem}", hint) from None


def check_place(path: Path) -> None:
    """Raise UserError if `path` has no directory to write a file to; that of a symlink is its target's."""
    with writing(path):
        Path(os.path.realpath(path)).parent.stat()


def is_same_file(path: Path, other: Path) -> bool:
    """Return whether writing to one path would replace the regular file, even a future one, of the other."""
    if path.is_file() and other.is_file():
        return path.samefile(other)
    return not path.exists() and os.path.realpath(path) == os.path.realpath(other)


def make_directory(path: Path) -> None:
    """Create a directory, or the target of a dangling symlink, with its parents, unless it exists.

    Raise UserError if it cannot be created.
    """
    with writing(path):
        Path(os.path.realpath(path)).mkdir(parents=True, exist_ok=True)


def check_name(name: str | os.PathLike[str]) -> None:
    """Raise UserError for `-`, by which other programs mean stdin or stdout, and if the locale's encoding lacks
    characters of a file name, which Python would call missing."""
    if os.fspath(name) == "-":
        raise UserError("-: is no name of a file", "leave it out: without a file, stdin is read and stdout written")
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        raise unwritable_name(os.fspath(name)) from None


def is_utf8(name: str | os.PathLike[str]) -> bool:
    """Return whether a name has no bytes that are not UTF-8, which Python keeps as surrogates."""
    try:
        os.fspath(name).encode()
    except UnicodeEncodeError:
        return False
    return True


def unwritable_name(name: str) -> UserError:
    """Return the UserError for a file name that the locale's encoding cannot write."""
    problem = f"{name}: this name has characters that the locale, of {sys.getfilesystemencoding()}, cannot write"
    return UserError(problem, "take a locale of UTF-8: export LC_ALL=C.UTF-8")


def no_temporary_directory(error: OSError) -> UserError | None:
    """Return the UserError for the error of `tempfile`, which libraries use, if it finds no directory; else None."""
    if error.filename is not None or "temporary directory" not in str(error):
        return None
    return UserError(
        "there is no directory for temporary files", "name one that you may write to: export TMPDIR=FOLDER"
    )


@contextmanager
def whole_directory(path: Path, replaceable: str | None) -> Iterator[Path]:
    """Yield an empty directory to fill; on exit, sync it and replace `path`, or a symlink's target, with it.

    Only an empty directory, or one that contains a file named `replaceable`, is replaced. Raise UserError for any
    other, or if the directory cannot be written. If the block fails, `path` is unchanged.
    """
    if os.path.islink(path):
        path = Path(os.path.realpath(path))
    part = _part(path)
    old = path.with_name(f".{path.name}@old.tmp")
    try:
        with writing(path):
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
        with writing(path):
            if not direct:
                clear_parts(target.parent, escape(target.name))
            stream = part.open("ab" if direct else "wb")
        with writing(path, FULL), stream:  # other errors may come from anything in the block
            yield stream
        if not direct:
            with writing(path):
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
    free = path.with_name(f"damaged-{path.name}")
    number = 1
    while os.path.lexists(free):
        number += 1
        free = path.with_name(f"damaged-{path.name}-{number}")
    with writing(free):
        path.rename(free)
    return free


def remove_directory(path: Path) -> None:
    """Remove a directory atomically, by renaming it first; `clear_parts` deletes what an interruption leaves."""
    gone = path.parent / f".{path.name}@gone.tmp"
    path.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON."""
    path.write_bytes(_json(value))


def replace_json(path: Path, value: Any) -> None:
    """Atomically replace a file with indented JSON; raise UserError, keeping the old one, if it cannot be written."""
    with whole_file(path) as stream:
        stream.write(_json(value))


@contextmanager
def reading(path: Path, hint: str) -> Iterator[None]:
    """Convert an OSError of the block to a UserError about reading `path`, as `not_read` does."""
    check_name(path)
    try:
        yield
    except OSError as error:
        raise not_read(path, error, hint) from None


def not_read(path: Path, error: OSError, hint: str) -> UserError:
    """Return the UserError for an unreadable file; `hint` is for one that is missing or damaged."""
    problem = f"{path}: cannot be read: {error.strerror or error}"
    if error.errno in SHORT:
        return OutOfResources(problem, "run this again once other programs have ended, or raise the limit: ulimit -a")
    return UserError(problem, IN_FOLDER if error.errno == errno.EISDIR else hint)


def regular(path: Path) -> Path:
    """Return `path` if it is a regular file or a link to one; else raise UserError.

    Opening a pipe or device in its place could block forever.
    """
    with reading(path, remedy(path)):
        mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        raise UserError(f"{path}: is not a regular file", remedy(path))
    return path


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
    with reading(path, remedy(path)):
        size = regular(path).stat().st_size
        if size <= LARGEST:
            return path.read_bytes()
    raise UserError(f"{path}: damaged: has {size:,} bytes, more than {LARGEST:,}", remedy(path))


def read_json(path: Path) -> Any:
    """Read JSON; raise UserError naming the file if it is missing, malformed or larger than LARGEST bytes."""
    try:
        return json.loads(read_whole(path).decode())
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: damaged: is not valid JSON: {error}", remedy(path)) from None


def _json(value: Any) -> bytes:
    """Return indented JSON in UTF-8; bytes of file names that are not UTF-8 are escaped."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode(errors="backslashreplace")


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file's contents, in hexadecimal."""
    return digest(path, hashlib.sha256, f"make it readable: chmod u+r {path}")


def digest(path: Path, kind: Callable[[], Any], hint: str) -> str:
    """Return a hash of a file's contents, in hexadecimal; raise UserError with `hint` if it cannot be read."""
    with reading(path, hint), regular(path).open("rb", buffering=0) as stream:
        return hashlib.file_digest(stream, kind).hexdigest()


def stamp(path: Path) -> list[int]:
    """Return a file's size, mtime, ctime and inode, of which at least one changes with its content.

    Size and mtime are not enough: `cp -p` and `mv` may put a file of the same size and mtime in its place.
    """
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def identify(path: Path, before: list[Any] | None) -> list[Any]:
    """Return a file's stamp and SHA-256 (None for a pipe), or `before` if its stamp is unchanged."""
    now = stamp(path)
    if before and before[:-1] == now:
        return before
    return [*now, sha256(path) if path.is_file() else None]


def _sync(path: Path) -> None:
    """Sync a file, or a directory if its permissions and file system allow it; some network file systems do not."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in NO_FOLDERS or not path.is_dir():
            raise
