"""The report about a run, and the files that only it is made from."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from nmt.console import Console
from nmt.data.prepare import directory, read_report
from nmt.errors import Interrupted
from nmt.files import replace_json
from nmt.recipe import Recipe
from nmt.training.progress import ABOUT, METRICS, DevExample, forget_after
from nmt.training.refreshing import Page
from nmt.training.samples import SAMPLES, Samples
from nmt.training.state import RunState

if TYPE_CHECKING:
    from nmt.training.validation import Validation


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
            self._samples = Samples(out / SAMPLES, sources, references, validation.each, console)
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
