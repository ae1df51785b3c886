"""The report about a run, and the files that only it is made from.

A process of its own, `nmt/report/page.py`, writes the page at a low priority: training neither waits for it nor
fails with it. It is started at a checkpoint unless one still runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from nmt.console import Console
from nmt.data.prepare import directory, read_report
from nmt.errors import Interrupted
from nmt.files import clear_parts, replace_json
from nmt.recipe import Recipe
from nmt.training.samples import ABOUT, METRICS, PAGE, SAMPLES, DevExample, Samples, forget_after
from nmt.training.state import RunState

if TYPE_CHECKING:
    from nmt.training.validation import Validation


COMMAND = (sys.executable, "-m", "nmt.report.page")
PATIENCE = 60.0  # seconds that the end of a run waits for the last page


class Reporting:
    """Writes a run's files apart from its checkpoints; the first rank alone has one.

    While it is entered as a context manager the report is refreshed, and for a last time at the end, unless that is an
    error.
    """

    def __init__(
        self,
        out: Path,
        recipe: Recipe,
        base: Recipe | None,
        state: RunState,
        validation: Validation | None,
        console: Console,
    ) -> None:
        """For a run that trains a recipe, which extends `base` if that is given, and keeps `state` up to date."""
        self._out, self._recipe, self._base, self._state = out, recipe, base, state
        self._samples: Samples | None = None
        if validation is not None and validation.sources:
            sources, references = validation.sources, validation.references
            self._samples = Samples(out / SAMPLES, sources, references, validation.each)
        self._page = Page(out, console, wanted=recipe.training.report)
        self._keeping = self._told = 0.0  # seconds spent on samples, and all seconds that are in metrics.jsonl

    def begin(self, parameters: int, scored: bool) -> None:
        """Writes the files for the state that the run begins or resumes from, whose checkpoint may not be scored."""
        step = self._state.step
        forget_after(self._out / METRICS, step, scored)
        if self._samples is not None:  # its line of a checkpoint is written before the checkpoint has its scores
            self._samples.begin(step if scored else step - 1)
        (self._out / "recipe.yaml").write_text(self._recipe.to_yaml(), encoding="utf-8")
        base = None if self._base is None else self._base.model_dump(mode="json")
        data = read_report(directory(self._recipe))
        replace_json(self._out / ABOUT, {"parameters": parameters, "base": base, "data": data})

    def __enter__(self) -> Self:
        self._page.refresh()
        self._page.check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and not issubclass(kind, Interrupted):
            self._page.close()
            return
        self._page.finish()
        last = {"step": self._state.step, **self.figures()}
        with suppress(OSError), (self._out / METRICS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(last) + "\n")

    def keep(self, hypotheses: Sequence[str]) -> list[DevExample]:
        """Keeps what the model made of the development set, if it is one with outputs; returns a few examples."""
        if self._samples is None or not hypotheses:
            return []
        began = time.perf_counter()
        examples = self._samples.add(self._state.step, hypotheses)
        self._keeping += time.perf_counter() - began
        return examples

    def figures(self) -> dict[str, Any]:
        """What metrics.jsonl has in the line of a checkpoint besides scores.

        `report_seconds` is the processor time that the report has taken since the line before.
        """
        told, self._told = self._told, self._page.seconds + self._keeping
        return {"seconds": self._state.seconds, "tokens": self._state.tokens, "report_seconds": self._told - told}

    def refresh(self) -> None:
        """Notes that there is something new to show."""
        self._page.refresh()

    def check(self) -> None:
        """Has the page refreshed if that is due, without waiting for it."""
        self._page.check()


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
