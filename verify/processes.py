"""Processes that are forked, watched, stopped and killed, and what is wrong with their ends: for all of `verify/`."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

TREE = Path(__file__).resolve().parents[1]
PATIENCE = 300  # seconds that a command may take
RESTARTED = ", from the last checkpoint\n"  # what a launcher says


class Ended(NamedTuple):
    """How a process ended."""

    code: int
    """Exit code, or minus the signal; minus SIGALRM if it took too long"""
    said: str


def forked(work: Callable[[], object]) -> int:
    """Start a fork of this process that does some work and ends; its exit code is 70 if that raises an exception."""
    if pid := os.fork():
        return pid
    code = 70
    try:
        work()
        code = 0
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def wait(pid: int, is_late: Callable[[], bool], kill: Callable[[int, int], None] = os.kill) -> tuple[int, float]:
    """Wait for a child, and kill it when it is late; returns its code, as of `Ended`, and its CPU seconds."""
    late = False
    while True:
        found, status, usage = os.wait4(pid, os.WNOHANG)
        if found:
            return -signal.SIGALRM if late else os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime
        if not late and is_late():
            late = True
            kill(pid, signal.SIGKILL)
        time.sleep(0.002)


def write_report(path: Path | None, figures: Mapping[str, object]) -> None:
    """Write figures as JSON, if a file was named for them."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(figures, indent=2) + "\n")


# --- commands that run in a folder ---------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Job:
    """A command, and what is known of it."""

    name: str
    command: str
    look: Callable[[Running], dict[str, int]]
    """What it is doing at the moment, and how far it has come since its start."""
    moments: Mapping[str, int]
    """What it may be doing, and the farthest that it is waited for to come."""
    targets: tuple[str, ...]
    """The processes that signals are sent to; the first is the one that a user starts."""
    outcome: Callable[[Path], Mapping[str, object]]
    """What must be equal in the end, by the folder."""
    files: tuple[str, ...] = ()
    """Patterns of the files of an unfinished run."""


class Running:
    """A job's command that runs in a folder, forked from a process that has loaded all modules.

    What it is doing is seen in the files that it writes and in what it says. To look at it, the process that writes is
    stopped by SIGSTOP, so that what is seen still holds when a signal is sent.
    """

    def __init__(self, job: Job, folder: Path, command: str = "") -> None:
        self.job, self.folder, self.began = job, folder, time.time()
        self._said = folder.parent / f"{folder.name}.said-{time.monotonic_ns()}"
        command = command or job.command
        path = os.pathsep.join([str(folder.parent / "site"), str(TREE)])
        with self._said.open("wb") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "nmt", *shlex.split(command)],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        """What it has said since it, or its group of ranks, was started."""
        return self._said.read_text(errors="replace").rpartition(RESTARTED)[2]

    @property
    def restarts(self) -> int:
        """How often its group of ranks was started anew."""
        return self._said.read_text(errors="replace").count(RESTARTED)

    def processes(self) -> dict[str, int]:
        """Process ids, by what the processes are called."""
        found = {self.job.targets[0]: self.process.pid}
        for path in self.folder.glob("ranks/*"):
            launcher, rank, pid = map(int, path.name.split("-"))
            if launcher == self.process.pid and is_running(pid):
                found[f"rank {rank}"] = pid
        if "worker 1" in self.job.targets:
            found |= {f"worker {number}": pid for number, pid in enumerate(sorted(_copies(self.process.pid)), 1)}
        return found

    def stops_when(self, wanted: Callable[[dict[str, int]], bool]) -> bool:
        """Waits until what it does is what is wanted, and stops the process that writes; False if it ends before."""
        until = time.monotonic() + PATIENCE
        while self.process.poll() is None and time.monotonic() < until:
            if wanted(self.doing()) and self._stop():
                if wanted(self.doing()):
                    return True
                self.let_go()
            time.sleep(0.001)
        return False

    def doing(self) -> dict[str, int]:
        """What it is doing at the moment, and how far it has come since its start."""
        return self.job.look(self)

    @property
    def milliseconds(self) -> int:
        """Time since it was started."""
        return round(1000 * (time.time() - self.began))

    def _stop(self) -> bool:
        """Stops the process that writes; False if there is none any more."""
        self._stopped = self.processes().get("rank 0", self.process.pid)
        with suppress(ProcessLookupError, FileNotFoundError):
            os.kill(self._stopped, signal.SIGSTOP)
            while (state := state_of(self._stopped)) not in "TZ":
                time.sleep(0.0005)
            return state == "T"
        return False

    def let_go(self) -> None:
        """Lets the stopped process go on."""
        with suppress(ProcessLookupError):
            os.kill(self._stopped, signal.SIGCONT)

    def end(self) -> Ended:
        """Waits until all processes have ended. Kills them if this takes too long; they then say where they were."""
        until, late = time.monotonic() + PATIENCE, ""
        while self.process.poll() is None or len(self.processes()) > 1:
            if time.monotonic() > until:
                late = late or ", ".join(self.processes())
                self._kill()
            time.sleep(0.005)
        said = self._said.read_text(errors="replace")
        return Ended(-signal.SIGALRM, f"{said}\nstill there: {late}") if late else Ended(self.process.returncode, said)

    def _kill(self) -> None:
        """Kills all processes, after they have printed their stacks."""
        for number in (signal.SIGUSR1, signal.SIGKILL):
            for pid in self.processes().values():
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            time.sleep(1)


def state_of(pid: int) -> str:
    """The state of a process, as proc(5) has it: T is stopped, Z is a zombie."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def is_running(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return state_of(pid) != "Z"
    return False


def _copies(pid: int) -> list[int]:
    """The children of a process that are forks of it."""
    with suppress(FileNotFoundError, ProcessLookupError):
        mine = Path(f"/proc/{pid}/cmdline").read_bytes()
        children = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        return [child for child in children if Path(f"/proc/{child}/cmdline").read_bytes() == mine]
    return []


def problem_of(code: int, said: str, allowed: set[int]) -> str:
    """What is wrong with the end of a command, which may be an error with its hint; empty if nothing is."""
    starts = [line.split(":")[0] for line in said.splitlines()]
    if "Traceback" in said or "a bug of nmt" in said or code not in {*allowed, 0, 1}:
        return f"ends with {code}: {said.strip()[-5000:]}"
    if code == 1 and (starts.count("error"), starts.count("hint")) != (1, 1):
        return f"says {starts.count('error')} errors and {starts.count('hint')} hints: {said.strip()[-500:]}"
    return ""
