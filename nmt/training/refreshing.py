"""Has the page about a run written by a process of its own: training neither waits for it nor fails with it.

The process, `nmt/report/page.py`, is started at a checkpoint unless one still runs, and writes the page once, at a
low priority.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from nmt.console import Console
from nmt.files import clear_parts

PAGE = "report.html"
COMMAND = (sys.executable, "-m", "nmt.report.page")
PATIENCE = 60.0  # seconds that the end of a run waits for the last page


class Page:
    """A run's report.html, if it is wanted."""

    def __init__(self, out: Path, console: Console, wanted: bool = True) -> None:
        self._out, self._console, self._wanted = out, console, wanted
        self._process: subprocess.Popen[bytes] | None = None
        self._stale = self._announced = self._failed = False
        self.seconds = 0.0
        """Processor time of the processes that have ended."""

    def refresh(self) -> None:
        """Note that there is something new to show."""
        self._stale = True

    def check(self) -> None:
        """Have the page written if it is out of date, unless that is being done."""
        if self._is_free(0.0) and self._stale:
            self._start()

    def finish(self) -> None:
        """Wait for the last page."""
        until = time.monotonic() + PATIENCE
        try:
            if self._is_free(PATIENCE):
                self._start()
            if not self._is_free(until - time.monotonic()):
                self._fail(f"it takes longer than {PATIENCE:.0f} s")
        finally:
            self.close()

    def close(self) -> None:
        """End the process, whatever it is doing."""
        if self._process is not None:
            with self._process as process:
                process.kill()
            with suppress(OSError):
                clear_parts(self._out, PAGE)  # what it was writing
        self._process = None

    def _start(self) -> None:
        if not self._wanted:
            return
        self._stale, environment = False, os.environ | {"OMP_NUM_THREADS": "1"}
        try:
            # In a process group of its own it does not get the Ctrl-C that a terminal sends to the run.
            self._process = subprocess.Popen(
                [*COMMAND, str(self._out)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                process_group=0,
            )
        except OSError as error:
            self._fail(f"the process that writes it cannot be started: {error.strerror}")

    def _is_free(self, patience: float) -> bool:
        """Whether no process is writing the page, after some seconds at most; says how the last one has ended."""
        if self._process is None:
            return True
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, patience))
            with self._process as process:
                assert process.stdout is not None
                self._take(process.stdout.read())
            self._process = None
        return self._process is None

    def _take(self, answer: bytes) -> None:
        if not answer.endswith(b"\n"):
            self._fail("the process that writes it ended")
            return
        told = json.loads(answer.splitlines()[-1])
        self.seconds += told["seconds"]
        if told["problem"] is not None:
            self._fail(told["problem"])
        elif not self._announced:
            self._console.say(f"report: {self._out / PAGE}")
            self._announced = True

    def _fail(self, problem: str) -> None:
        """Say the first problem."""
        if not self._failed:
            self._console.say(f"{self._out / PAGE} is not written, and training goes on: {problem}")
        self._failed = True
