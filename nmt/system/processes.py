"""Processes that nmt starts, and locks and files by which processes wait for each other.

A child imports this nmt, wherever it is, and nothing from the working directory.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import Pipe
from pathlib import Path
from subprocess import DEVNULL, Popen

from nmt.system.errors import UserError
from nmt.system.files import writing

SAFE = "PYTHONSAFEPATH"  # environment variable that keeps the working directory out of `sys.path`
FOLDER = Path(__file__).parents[2]  # folder or archive that holds this nmt
# Only nmt is looked for in FOLDER first: beside it, there may be modules with names of Python's own.
START = (
    "import sys; from importlib import machinery, util; from runpy import run_module; _, folder, *sys.argv = sys.argv; "
    "spec = machinery.PathFinder.find_spec('nmt', [folder]); sys.modules['nmt'] = nmt = util.module_from_spec(spec); "
    "spec.loader.exec_module(nmt); sys.path.append(folder); run_module(sys.argv[0], None, '__main__', alter_sys=True)"
)


@contextmanager
def safe_path() -> Iterator[None]:
    """Set the variable `SAFE`, for the children that another library starts in the block."""
    before = os.environ.get(SAFE, "")  # empty counts as unset
    os.environ[SAFE] = "1"
    try:
        yield
    finally:
        os.environ[SAFE] = before


def command(module: str, *arguments: str) -> list[str]:
    """Return a command that runs a module of this nmt as `python -m` would, to be used with the variable `SAFE`."""
    return [sys.executable, "-c", START, str(FOLDER), module, *arguments]


def ending(code: int) -> str:
    """Describe how a child ended; `code` is negative after a signal."""
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


class Child(Popen[bytes]):
    """A process that runs a module of this nmt; to be closed, which kills it.

    `connection` leads to `Connection(0)` there, in place of stdin. What the child prints is discarded, because modules
    that are none of nmt's may print as well. A process group of its own shields it from the terminal's Ctrl-C.
    """

    def __init__(self, module: str, *arguments: str, **variables: str) -> None:
        """Start the process, with additional environment variables; raise UserError if it cannot be started."""
        run, env = command(module, *arguments), {**os.environ, SAFE: "1", **variables}
        try:
            self.connection, theirs = Pipe()
            with theirs:
                super().__init__(run, stdin=theirs.fileno(), stdout=DEVNULL, stderr=DEVNULL, env=env, process_group=0)
        except OSError as error:
            hint = "end other programs, or raise a limit: ulimit -a"
            raise UserError(f"a process cannot be started: {error.strerror}", hint) from None

    def close(self) -> None:
        """Kill the process, whatever it does."""
        self.kill()
        self.wait()
        self.connection.close()


# --- waiting for other processes ------------------------------------------------------------------------------------

LOOK = 0.1  # seconds between polls for a file
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # from flock on NFS or Lustre without lock support


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


@contextmanager
def exclusive(lock: Path, what: str, say: Callable[[str], None], wait: bool = False) -> Iterator[None]:
    """Hold the lock file `lock` while the block runs.

    If another process on this machine holds it, `say` so and wait if `wait`, else raise UserError. If the file system
    does not support locks, `say` so and run the block anyway.
    """
    with writing(Path(what)):
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = lock.open("ab")
    with file:
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
