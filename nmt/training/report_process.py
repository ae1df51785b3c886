"""A run's report.html, which a process in the background writes while the run goes on."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from nmt.system.console import Console
from nmt.system.errors import Interrupted, UserError
from nmt.system.files import clear_parts
from nmt.system.processes import Child
from nmt.training.directory import PAGE

PATIENCE = 60.0  # seconds to wait for the final page


class Page:
    """A run's report.html, written by one background process at a time."""

    def __init__(self, out: Path, console: Console, wanted: bool = True) -> None:
        self._out = out
        self._console = console
        self._wanted = wanted
        self._child: Child | None = None
        self._is_stale = False
        self._told = set[bool]()  # outcomes that have been said: True if the page was written, False if not

    def refresh(self) -> None:
        """Mark the page as out of date."""
        self._is_stale = True

    def check(self) -> None:
        """Start writing the page if it is out of date and no process is running."""
        if self._is_free(0.0) and self._is_stale:
            self._start()

    @contextmanager
    def refreshed(self, at_the_end: bool = True) -> Iterator[None]:
        """Start a page and run the block; when it is interrupted or, if `at_the_end`, when it ends, write the page."""
        self.refresh()
        self.check()
        with closing(self):
            try:
                yield
            except Interrupted:
                self.finish()
                raise
            if at_the_end:
                self.finish()

    def finish(self) -> None:
        """Write the final page, waiting at most `PATIENCE` seconds."""
        until = time.monotonic() + PATIENCE
        if self._is_free(PATIENCE):
            self._start()
        if not self._is_free(until - time.monotonic()):
            self._tell(f"it takes longer than {PATIENCE:.0f} s")
        self.close()

    def close(self) -> None:
        """Kill the process, if any, and remove its partial output."""
        if self._child is not None:
            self._child.close()
            with suppress(OSError):
                clear_parts(self._out, PAGE)
        self._child = None

    def _start(self) -> None:
        """Start a process to write the page, if it is wanted."""
        if not self._wanted:
            return
        self._is_stale = False
        try:
            self._child = Child("nmt.report.page", str(self._out), OMP_NUM_THREADS="1")
        except UserError as error:
            self._tell(error.message)

    def _is_free(self, patience: float) -> bool:
        """Wait at most `patience` seconds for the process and take its result; return whether none is running."""
        if self._child is not None and self._child.connection.poll(max(0.0, patience)):
            problem = "the process that writes it died"
            with suppress(EOFError, OSError, ValueError):
                problem = json.loads(self._child.connection.recv_bytes())
            self._tell(problem)
            self.close()
        return self._child is None

    def _tell(self, problem: str | None) -> None:
        """Announce the page or, if there is one, report its problem; each only the first time."""
        is_written = problem is None
        if is_written not in self._told:
            said = f"report: {self._out / PAGE}"
            if not is_written:
                said = f"{self._out / PAGE} was not written, but training continues: {problem}"
            self._console.say(said)
        self._told.add(is_written)
