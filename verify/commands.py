"""Commands of nmt as forks of one process, which has imported what they need: a twentieth of the time of a new one."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from injecting import Plan, follow
from processes import Ended, forked, wait

IMPORTED = (
    *("torch._dynamo", "datasets.arrow_writer", "safetensors.torch", "sacrebleu", "sentencepiece"),
    *("nmt.cli", "nmt.decoding.translator", "nmt.decoding.parser", "nmt.data.prepare", "nmt.training.start"),
    *("nmt.report.page", "nmt.exchange.huggingface"),
    *("nmt.commands.translate", "nmt.commands.train"),
)
PATIENCE = 120  # seconds that a command may take


def prepare() -> None:
    """Imports what commands need, and leaves out what takes time and writes nothing.

    The processes that draw reports are forks as well, and the speed of this processor is not measured.
    """
    for module in IMPORTED:
        import_module(module)
    refreshing: Any = import_module("nmt.training.report_process")
    refreshing.Child = _ForkedReport
    flops: Any = import_module("nmt.training.flops")
    flops.measured_flops = lambda device, dtype: 1e11


def warm_up(ckpts: Path) -> None:
    """Draws the report of a run once here, so that forks find what that leaves in memory."""
    from nmt.report.page import write_page
    from nmt.report.record import read_run

    if (ckpts / "report.html").exists():
        write_page([read_run(ckpts)], Path(os.devnull))


def run(command: str, folder: Path, plan: Plan | None = None) -> Ended:
    """Runs a command in a folder, under a plan if there is one."""
    said, until = folder.parent / "stderr", time.monotonic() + PATIENCE
    pid = forked(lambda: _become(command, folder, said, plan))
    code, _ = wait(pid, lambda: time.monotonic() > until, os.killpg)
    return Ended(code, said.read_text(errors="replace"))


def _become(command: str, folder: Path, said: Path, plan: Plan | None) -> None:
    """Turns this fork into the command."""
    os.setsid()
    os.chdir(folder)
    for descriptor, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, os.devnull, os.O_WRONLY),
        (2, str(said), os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
    ):
        os.dup2(os.open(path, flags, 0o644), descriptor)
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__  # not what a test captures
    sys.argv = ["nmt", *command.split()]
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder / "tmp")
    from nmt.__main__ import main

    try:
        follow(plan)
        main()
    finally:
        follow(None)


class _ForkedReport:
    """What `nmt/training/report_process.py` needs of a `Child`; a process that draws a report is a fork of the command.

    A new one would import for a second, in every trial.
    """

    def __init__(self, module: str, out: str, **variables: str) -> None:
        self.connection, theirs = Pipe()
        self._pid = forked(lambda: _become_report(Path(out), theirs))
        theirs.close()

    def close(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        self.connection.close()


def _become_report(out: Path, theirs: Connection) -> None:
    """Turns this fork into the child that writes a report."""
    writing: Any = import_module("nmt.report.page")
    writing.NICENESS = 0  # a command waits for its last page, which takes long at a low priority beside other work
    os.setpgid(0, 0)
    os.dup2(theirs.fileno(), 0)
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    os.dup2(1, 2)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # the lock of the run among them
    writing.main(out)
