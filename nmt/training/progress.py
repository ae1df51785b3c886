"""The figures of training: measured between two log lines, shown on the terminal, recorded, and drawn in
the report, which a process of its own writes.
"""

from __future__ import annotations

import json
import math
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self, TypeVar

import torch
from torch import Tensor

from nmt.data.corpus import Lengths
from nmt.data.prepare import directory, read_report
from nmt.model.functional import perplexity
from nmt.recipe import Recipe
from nmt.system.console import GAP, Advance, Console, clock
from nmt.system.errors import Interrupted, UserError
from nmt.system.files import clear_parts, replace_json
from nmt.training.arithmetic import peak_flops
from nmt.training.distributed import Group
from nmt.training.run_files import ABOUT, METRICS, PAGE, SAMPLES, DevExample, Samples, forget_after
from nmt.training.state import RunState

if TYPE_CHECKING:
    from nmt.training.validation import Validation

T = TypeVar("T")


class Progress:
    """Reports figures; each of them also becomes a line of metrics.jsonl."""

    def __init__(self, console: Console, file: IO[str], updates: int, advance: Advance, board: Any = None) -> None:
        self._console, self._file, self._updates, self._board = console, file, updates, board
        self._advance, self._figures = advance, ""

    def advance(self) -> None:
        """Counts one more update as done."""
        self._advance(1)

    def log(self, figures: dict[str, Any], seconds_left: float) -> None:
        """Reports training figures since the last call."""
        self.record(figures)
        loss, perplexity = f"loss {figures['loss']:.3f}", f"ppl {figures['perplexity']:.2f}"
        rate, speed = f"lr {figures['learning_rate']:.2e}", f"{figures['tokens_per_second']:,.0f} tok/s"
        if self._console.live:
            self._figures = GAP.join([loss, speed, perplexity, rate])
            self._advance(0, self._figures, seconds_left)
        else:
            parts = [f"update {figures['step']}/{self._updates}", loss, perplexity, rate, speed]
            self._console.say(GAP.join([*parts, f"{clock(seconds_left)} left"]))

    @contextmanager
    def validating(self) -> Iterator[None]:
        """Shows, in place of the figures, that updates wait until the development set is scored."""
        self._advance(0, "scoring the dev set")
        yield
        self._advance(0, self._figures)

    def checkpoint(self, step: int, path: Path, scores: str = "", examples: Sequence[DevExample] = ()) -> None:
        """Says that a checkpoint is written, with a text about its dev scores, and examples of its outputs, if any.

        A terminal shows one of the examples, at each checkpoint another, and TensorBoard all of them.
        """
        if examples:
            shown = Random(step).choice(examples)
            self._console.pin([("source", shown.source), ("ours", shown.output), ("reference", shown.reference)])
        for number, example in enumerate(examples if self._board is not None else (), 1):
            self._board.add_text(f"dev/{number}", example.markdown(), step)
        self._console.say(f"update {step}/{self._updates}  saved {path}" + (f"  {scores}" if scores else ""))

    def record(self, figures: dict[str, Any]) -> None:
        """Writes a line of metrics.jsonl."""
        finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in figures.items()}
        self._file.write(json.dumps(finite) + "\n")
        self._file.flush()
        if self._board is not None:
            for name, value in finite.items():
                if name != "step" and value is not None:
                    self._board.add_scalar(name, value, figures["step"])


@contextmanager
def show_progress(console: Console, path: Path, step: int, updates: int, board: Path | None) -> Iterator[Progress]:
    """Shows progress from `step` to `updates` while the block runs; `path` is the run's metrics.jsonl.

    `board` is a directory for TensorBoard, or None; raises UserError where TensorBoard is not installed.
    """
    bar = console.progress("training", updates, "updates", done=step, every=None)  # `log` speaks in logs
    with path.open("a", encoding="utf-8") as file, _tensorboard(board, step) as writer, bar as advance:
        yield Progress(console, file, updates, advance, writer)


@contextmanager
def _tensorboard(board: Path | None, step: int) -> Iterator[Any]:
    if board is None:
        yield None
        return
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError(
            "training.tensorboard: the package tensorboard is not installed", "pip install tensorboard"
        ) from None
    with SummaryWriter(str(board), purge_step=step + 1) as writer:
        yield writer


def peak_memory(device: torch.device) -> int:
    """The most bytes that PyTorch has had on the GPU at a time; on a CPU, the process's peak resident memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@dataclass
class Sums:
    """Sums over micro-batches of one rank."""

    loss: Tensor | float = 0.0
    """() smoothed loss of the target tokens, in nats"""
    nll: Tensor | float = 0.0
    """() negative log-likelihood of the target tokens, in nats"""
    cells: int = 0
    """Cells of both sides, including padding"""

    def add(self, loss: Tensor | float, nll: Tensor | float, cells: int) -> None:
        """Adds one micro-batch, or the sums of several."""
        self.loss, self.nll, self.cells = self.loss + loss, self.nll + nll, self.cells + cells


class Meter:
    """Adds up figures of updates, and gives their means and rates since it last did."""

    def __init__(self, device: torch.device, group: Group) -> None:
        self._device, self._group = device, group
        self._peak = peak_flops(device)
        self._reset()

    def _reset(self) -> None:
        self._began = time.perf_counter()
        self._waited = 0.0
        self._sums = Sums()
        self._norms: list[Tensor] = []
        self._tokens = self._target_tokens = 0
        self._flops = 0.0

    def waiting(self, items: Iterable[T]) -> Iterator[T]:
        """Yields the same items, and counts the time spent waiting for them."""
        began = time.perf_counter()
        for item in items:
            self._waited += time.perf_counter() - began
            yield item
            began = time.perf_counter()

    def add(self, sums: Sums, lengths: Lengths, flops: float, norm: Tensor) -> None:
        """Adds an update: this rank's sums; of all ranks the lengths of its pairs, FLOPs and the gradient's norm ()."""
        self._sums.add(sums.loss, sums.nll, sums.cells)
        self._target_tokens += lengths.target_tokens
        self._tokens += lengths.source_tokens + lengths.target_tokens
        self._flops += flops
        self._norms.append(norm)

    def figures(self) -> dict[str, float]:
        """Means per target token over all ranks, rates per second, and shares; then starts again from zero."""
        sums = self._sums
        loss, nll, cells = self._group.total(float(sums.loss), float(sums.nll), sums.cells)  # waits for the GPU
        norms = torch.stack(self._norms)
        seconds = time.perf_counter() - self._began
        figures = {
            "loss": loss / self._target_tokens,
            "perplexity": perplexity(nll, self._target_tokens),
            "gradient_norm": float(norms[norms.isfinite()].mean()),
            "tokens_per_second": self._target_tokens / seconds,
            "tokens_per_update": self._target_tokens / len(self._norms),
            "seconds_per_update": seconds / len(self._norms),
            "padding": 1.0 - self._tokens / cells,
            "data_wait": self._waited / seconds,
            "memory_bytes": peak_memory(self._device),
            "flops_per_second": self._flops / seconds,
        }
        if self._peak is not None:
            figures["mfu"] = figures["flops_per_second"] / (self._peak * self._group.size)
        self._reset()
        return figures


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
