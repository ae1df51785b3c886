"""Processes that nmt starts, and locks and files by which processes wait for each other.

A child imports this nmt, wherever it is, and nothing from the working directory.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import gc
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import Any

from nmt.system.console import Console
from nmt.system.errors import UserError
from nmt.system.files import make_directory, writing

SAFE = "PYTHONSAFEPATH"  # environment variable that keeps the working directory out of `sys.path`
FOLDER = Path(__file__).parents[2]  # folder or archive that holds this nmt
# Only nmt is looked for in FOLDER first: beside it, there may be modules with names of Python's own.
START = (
    "import sys; from importlib import machinery, util; from runpy import run_module; _, folder, *sys.argv = sys.argv; "
    "spec = machinery.PathFinder.find_spec('nmt', [folder]); sys.modules['nmt'] = nmt = util.module_from_spec(spec); "
    "spec.loader.exec_module(nmt); sys.path.append(folder); run_module(sys.argv[0], None, '__main__', alter_sys=True)"
)

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PR_SET_PDEATHSIG = 1  # of prctl(2): the signal that this process gets when its parent ends


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
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


class Child(Popen[bytes]):
    """A process that runs a module of this nmt; to be closed, which kills it.

    `connection` leads to `Connection(0)` there, in place of stdin. What the child prints is discarded, because modules
    that are none of nmt's may print as well. A process group of its own shields it from the terminal's Ctrl-C.
    """

    def __init__(self, module: str, *arguments: str, **variables: str) -> None:
        """Start the process, with additional environment variables; raise UserError if it cannot be started."""
        run = command(module, *arguments)
        env = {**os.environ, SAFE: "1", **variables}
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


class Forks:
    """Forks of this process, each with a rank, that compute the same steps and compare values; on Linux only.

    A fork ignores signals of the terminal and is killed when this process, rank 0, ends.
    """

    def __init__(self, size: int) -> None:
        """Configure `size` ranks, this process included, which must be single-threaded; PyTorch's threads count too."""
        self.rank = 0
        self.size = size
        self._parent = os.getpid()
        self._forks: dict[int, Connection] = {}  # by process
        self._to_parent: Connection | None = None

    def start(self) -> None:
        """Fork; return in every rank. Raise UserError if a process cannot be started."""
        gc.freeze()  # otherwise garbage collection writes to all objects and so copies shared memory
        held = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        try:
            while self.rank == 0 and len(self._forks) < self.size - 1:
                ours, theirs = Pipe()
                process = os.fork()
                if process:
                    theirs.close()
                    self._forks[process] = ours
                else:
                    self._become(len(self._forks) + 1, theirs, [ours, *self._forks.values()])
        except OSError as error:
            raise UserError(f"a process cannot be started: {error.strerror}", "use fewer --devices") from None
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)

    def _become(self, rank: int, connection: Connection, of_parent: list[Connection]) -> None:
        """Make this process a fork."""
        self.rank = rank
        self._to_parent = connection
        self._forks = {}
        for number in STOPS:
            signal.signal(number, signal.SIG_IGN)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != self._parent:  # the parent ended before this call
            os._exit(1)
        for each in of_parent:
            each.close()

    def gather(self, value: Any) -> list[Any]:
        """Wait for every rank to call this; return the values of all, in order of rank. They must fit into JSON.

        Raise UserError if a rank has failed or was killed.
        """
        if self._to_parent is not None:
            self._to_parent.send_bytes(json.dumps([value]).encode())  # of length 1, where a failure has 3
            values: list[Any] = json.loads(self._to_parent.recv_bytes())
            return values
        values = [value, *(self._receive(*each) for each in self._forks.items())]
        message = json.dumps(values).encode()
        for connection in self._forks.values():
            with suppress(OSError):  # the next `gather` says how it ended
                connection.send_bytes(message)
        return values

    def _receive(self, process: int, connection: Connection) -> Any:
        try:
            answer = json.loads(connection.recv_bytes())
        except (EOFError, OSError):
            del self._forks[process]
            how = ending(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
            hint = "if memory ran out, use fewer --devices; then run the same command again"
            raise UserError(f"a process {how}", hint) from None
        if len(answer) == 1:
            return answer[0]
        message, hint, trace = answer
        raise UserError(message, hint) from RuntimeError(f"\n{trace}")

    def end(self, failure: tuple[str, str, str] | None) -> None:
        """Kill the forks; in a fork, end, after telling rank 0 of a failure by message, hint and traceback."""
        if self._to_parent is not None:
            with suppress(OSError):
                if failure:
                    self._to_parent.send_bytes(json.dumps(failure).encode())
            os._exit(0)
        for process, connection in self._forks.items():
            os.kill(process, signal.SIGKILL)  # it has nothing to save
            os.waitpid(process, 0)
            connection.close()
        self._forks = {}


# --- waiting for other processes ------------------------------------------------------------------------------------

LOOK = 0.1  # seconds between polls for a file
SILENT = 10.0  # seconds of waiting before this is said
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # from flock on NFS or Lustre without lock support


def wait_for(path: Path, patience: float, meanwhile: Callable[[], None]) -> None:
    """Wait up to `patience` seconds until another process, perhaps on another host, has written `path`.

    Say so on stderr if it takes long. Call `meanwhile` between polls; it may raise to abort the wait. Raise UserError
    on timeout.
    """
    began = time.monotonic()
    has_said = False
    while not path.exists():
        waited = time.monotonic() - began
        if waited > SILENT and not has_said:
            has_said = True
            shared = "it must be in a folder that all hosts share"
            Console().say(f"waiting up to {patience:,.0f} s for another process to write {path}: {shared}")
        if waited > patience:
            problem = f"{path}: another process did not write it within {patience:,.0f} s"
            raise UserError(problem, "give an --out that all hosts share, or raise training.timeout_minutes")
        meanwhile()
        time.sleep(LOOK)


@contextmanager
def exclusive(lock: Path, what: str, say: Callable[[str], None], wait: bool = False) -> Iterator[None]:
    """Hold the lock file `lock` while the block runs.

    If another process on this machine holds it, `say` so and wait if `wait`, else raise UserError. If the file system
    does not support locks, `say` so and run the block anyway.
    """
    with writing(Path(what)):
        make_directory(lock.parent)
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
            access = os.O_RDWR if alone else os.O_RDONLY
            lock = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
            # Without waiting for somebody to write, if a pipe stands in its place.
            file = os.open(path, access | os.O_NONBLOCK)
            held.callback(os.close, file)
            fcntl.flock(file, lock | fcntl.LOCK_NB)
            is_free = True
        except OSError as error:
            is_free = not alone and not isinstance(error, BlockingIOError)
        yield is_free
