"""Processes that nmt starts: they import this nmt, wherever it is, and nothing from the working directory."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import Pipe
from pathlib import Path
from subprocess import DEVNULL, Popen

from nmt.system.errors import UserError

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
