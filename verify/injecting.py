"""A plan of one fault, which all processes of a command follow: in `faults.c` below them, or in Python's own calls.

The first needs a C compiler, and reaches the libraries too. Without one, only what Python itself does can fail.
"""

from __future__ import annotations

import builtins
import ctypes
import errno
import io
import mmap
import os
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
KINDS = ("write", "fsync", "rename", "open", "create", "mmap")  # in the order of faults.c
POSSIBLE = {
    "write": ("ENOSPC", "EIO"),
    "fsync": ("ENOSPC", "EIO"),
    "rename": ("ENOSPC", "EIO"),
    "open": ("EMFILE", "EIO"),
    "create": ("ENOSPC", "EMFILE", "EIO"),
    "mmap": ("ENOMEM", "ENODEV"),
}
"""Errors that these calls have in reality: mmap needs no space and no descriptor, but memory, and a file system that
can do it."""
KILL = "kill"
PLAN = struct.Struct(f"={len(KINDS)}qqqqq4096s")  # of faults.c: counts, struck, kind, nth, error, root


class Fault(NamedTuple):
    """The nth call of a kind, and what becomes of it: an error by its name, or the end of the process."""

    kind: str
    nth: int
    error: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.nth}:{self.error}"

    @classmethod
    def of(cls, text: str) -> Fault:
        """The fault that was shown as this."""
        kind, nth, error = text.split(":")
        return cls(kind, int(nth), error)


class Plan:
    """A plan in a file that all processes map, for files below a folder."""

    def __init__(self, path: Path, root: Path) -> None:
        self.path, self._root = path, os.fsencode(root.resolve())
        if not path.exists():
            path.write_bytes(bytes(PLAN.size))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), PLAN.size)
        self._counting = Lock()

    def set(self, fault: Fault | None) -> None:
        """Begins to count anew; without a fault it only counts."""
        kind, nth, error = (-1, 0, 0) if fault is None else (KINDS.index(fault.kind), fault.nth, _number(fault.error))
        self._map[:] = PLAN.pack(*[0] * len(KINDS), 0, kind, nth, error, self._root)

    def counts(self) -> dict[str, int]:
        """Calls of each kind since then."""
        return dict(zip(KINDS, PLAN.unpack(self._map[:]), strict=False))

    def struck(self) -> bool:
        """Whether the fault has come."""
        return bool(PLAN.unpack(self._map[:])[len(KINDS)])

    def call(self, kind: str, path: str | bytes | os.PathLike[str]) -> None:
        """Counts a call, as `strikes` of faults.c does: raises OSError or ends the process if it is to fail."""
        if not (os.path.realpath(os.fsencode(path)) + b"/").startswith(self._root + b"/"):
            return
        with self._counting:
            counts = list(PLAN.unpack(self._map[:]))
            counts[KINDS.index(kind)] += 1
            struck, planned, nth, error = counts[len(KINDS) : -1]
            count = counts[KINDS.index(kind)]
            lasts = error == errno.ENOSPC and kind in ("write", "create") and count > nth
            strikes = planned == KINDS.index(kind) and (count == nth or lasts)
            counts[len(KINDS)] = struck + strikes
            self._map[:] = PLAN.pack(*counts)
        if strikes and not error:
            os.kill(os.getpid(), signal.SIGKILL)
        if strikes:
            raise OSError(error, os.strerror(error), os.fsdecode(path))


def _number(error: str) -> int:
    return 0 if error == KILL else int(getattr(errno, error))


def has_shim() -> bool:
    """Whether `faults.c` is below this process."""
    return hasattr(ctypes.CDLL(None), "faults_follow")


def under_the_shim() -> None:
    """Begins this script once more with `faults.c` below it, unless that has been done or there is no C compiler."""
    if has_shim():
        return
    with tempfile.TemporaryDirectory() as folder:
        if (library := compiled(Path(folder))) is not None:
            environment = {**os.environ, "LD_PRELOAD": str(library), "OMP_NUM_THREADS": "1"}
            raise SystemExit(subprocess.run([sys.executable, *sys.argv], env=environment).returncode)


def compiled(folder: Path) -> Path | None:
    """Compiles `faults.c`; None where that cannot be done."""
    library, source = folder / "faults.so", HERE / "faults.c"
    try:
        subprocess.run(["cc", "-O2", "-Wall", "-fPIC", "-shared", "-o", library, source, "-ldl"], check=True)
    except (OSError, subprocess.CalledProcessError):  # there is none, or it has no headers
        return None
    return library


def follow(plan: Plan | None) -> None:
    """Lets this process, and those it starts, follow a plan; None ends that."""
    if has_shim():
        ctypes.CDLL(None).faults_follow(None if plan is None else os.fsencode(plan.path))
        os.environ["NMT_FAULTS"] = "" if plan is None else str(plan.path)
    elif plan is not None:
        _follow_in_python(plan)


def _follow_in_python(plan: Plan) -> None:
    """Lets Python's own calls follow a plan, up to the end of this process and of its forks."""

    def followed(function: Callable[..., Any], kind: str, at: int = 0) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            where, flags = given[at], given[1] if kind == "open" else 0
            plan.call("create" if flags & os.O_CREAT else kind, _path(where))
            return function(*given, **named)

        return call

    class Mapped(mmap.mmap):
        def __new__(cls, *given: Any, **named: Any) -> Mapped:
            if given[0] >= 0:
                plan.call("mmap", _path(given[0]))
            return super().__new__(cls, *given, **named)

    replaced: Any = os  # the pure-Python files of _pyio do all they do by functions of os
    replaced.write, replaced.ftruncate = followed(os.write, "write"), followed(os.ftruncate, "write")
    replaced.fsync, replaced.open = followed(os.fsync, "fsync"), followed(os.open, "open")
    replaced.rename, replaced.replace = followed(os.rename, "rename", 1), followed(os.replace, "rename", 1)
    replaced = io
    replaced.open = builtins.open = import_module("_pyio").open
    replaced = mmap
    replaced.mmap = Mapped


def _path(where: int | str | bytes | os.PathLike[str]) -> str | bytes | os.PathLike[str]:
    """The path of an open file, by its descriptor."""
    return os.readlink(f"/proc/self/fd/{where}") if isinstance(where, int) else where
