"""Has the page about a run refreshed by a process of its own: training neither waits for it nor fails with it.

The process, `nmt/report/writing.py`, imports once what draws the page. It writes the page whenever it is asked to, at a
low priority, and answers with the time that it took.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from nmt.console import Console
from nmt.files import clear_parts

PAGE = "report.html"
COMMAND = (sys.executable, "-m", "nmt.report.writing")
SHARE = 0.01  # of the time of training, which the report does not exceed
PATIENCE = 60.0  # seconds that the end of a run waits for the last page


class Page:
    """A run's report.html, which is refreshed as often as `SHARE` allows."""

    def __init__(self, out: Path, console: Console) -> None:
        self._out, self._console = out, console
        self._process: subprocess.Popen[bytes] | None = None
        self._answers = 0  # that the process still owes
        self._stale = self._announced = self._failed = False
        self._expected = 0.0  # seconds of the next refresh
        self.seconds = 0.0
        """Processor time of the process so far."""

    def open(self) -> None:
        """Starts the process, and asks for the first page."""
        command = [*COMMAND, str(self._out)]
        pipe, environment = subprocess.PIPE, os.environ | {"OMP_NUM_THREADS": "1"}
        try:
            # In a process group of its own it does not get the Ctrl-C that a terminal sends to the run.
            self._process = subprocess.Popen(
                command, 0, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=environment, process_group=0
            )
        except OSError as error:
            self._fail(f"the process that writes it cannot be started: {error.strerror}")
            return
        self._ask()

    def refresh(self) -> None:
        """Notes that there is something new to show."""
        self._stale = True

    def check(self, trained: float, elsewhere: float = 0.0) -> None:
        """Asks for the page if it is out of date and worth it, after `trained` seconds of training.

        `elsewhere` are the seconds that the run's own process has spent for the report.
        """
        self._listen(0.0)
        then = elsewhere + self.seconds + 2 * self._expected  # after this page and the one at the end
        if self._stale and not self._answers and then <= SHARE * trained:
            self._ask()

    def finish(self) -> None:
        """Waits for the last page, and ends the process."""
        try:
            until = time.monotonic() + PATIENCE
            self._listen(PATIENCE)
            self._ask()
            self._listen(until - time.monotonic())
            if self._answers:
                self._fail(f"it takes longer than {PATIENCE:.0f} s")
        finally:
            self.close()

    def close(self) -> None:
        """Ends the process, whatever it is doing."""
        if self._process is not None:
            with self._process as process:
                process.kill()
            with suppress(OSError):
                clear_parts(self._out, PAGE)  # what it was writing
        self._process, self._answers = None, 0

    def _ask(self) -> None:
        if self._process is None or self._process.stdin is None:
            return
        with suppress(OSError):  # of a process that has ended, which `_listen` will see
            self._process.stdin.write(b"\n")
        self._stale = False
        self._answers += 1

    def _listen(self, seconds: float) -> None:
        """Takes the answers that are there, or come within some seconds."""
        until = time.monotonic() + seconds
        while self._answers and self._process is not None and self._process.stdout is not None:
            poll = select.poll()
            poll.register(self._process.stdout, select.POLLIN)
            if not poll.poll(1000 * max(0.0, until - time.monotonic())):
                return
            line = self._process.stdout.readline()
            if not line.endswith(b"\n"):
                self._fail("the process that writes it ended")
                self.close()
                return
            self._take(json.loads(line))

    def _take(self, answer: Mapping[str, Any]) -> None:
        self._answers -= 1
        seconds = float(answer["seconds"])
        self._expected = seconds if self.seconds else 0.0  # the first page takes longer, for all that is imported
        self.seconds += seconds
        if answer["problem"] is not None:
            self._fail(answer["problem"])
        elif not self._announced:
            self._console.say(f"report: {self._out / PAGE}")
            self._announced = True

    def _fail(self, problem: str) -> None:
        """Says the first problem."""
        if not self._failed:
            self._console.say(f"{self._out / PAGE} is not written, and training goes on: {problem}")
        self._failed = True
