"""Training metrics, their display and log files, and the background process that refreshes the report."""

from __future__ import annotations

import json
import math
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import torch
from torch import Tensor

from nmt.data.corpus import Lengths
from nmt.model.operations import perplexity
from nmt.recipe import Training
from nmt.system.children import Child
from nmt.system.console import GAP, Advance, Console, clock
from nmt.system.errors import Interrupted, UserError
from nmt.system.files import JsonLines, clear_parts
from nmt.training.arithmetic import peak_flops
from nmt.training.distributed import Group
from nmt.training.run_files import PAGE, DevExample

T = TypeVar("T")


class Progress:
    """Reporter of a run's progress to the console, metrics.jsonl and TensorBoard."""

    def __init__(self, console: Console, metrics: JsonLines, goal: str, advance: Advance, board: Any = None) -> None:
        """`goal` follows the number of updates in messages."""
        self._console, self._metrics, self._goal, self._board = console, metrics, goal, board
        self._advance, self._figures = advance, ""

    def advance(self) -> None:
        """Advance the progress bar by one update."""
        self._advance(1)

    def log(self, figures: dict[str, Any], seconds_left: float) -> None:
        """Record and display the training metrics since the last call."""
        self.record(figures)
        loss, perplexity = f"loss {figures['loss']:.3f}", f"ppl {figures['perplexity']:.2f}"
        rate, speed = f"lr {figures['learning_rate']:.2e}", f"{figures['tokens_per_second']:,.0f} tok/s"
        if self._console.live:
            self._figures = GAP.join([loss, speed, perplexity, rate])
            self._advance(0, self._figures, seconds_left)
        else:
            parts = [f"update {figures['step']}{self._goal}", loss, perplexity, rate, speed]
            self._console.say(GAP.join([*parts, f"{clock(seconds_left)} left"]))

    @contextmanager
    def validating(self) -> Iterator[None]:
        """Display a notice instead of metrics while the development set is scored."""
        self._advance(0, "scoring the dev set")
        yield
        self._advance(0, self._figures)

    def checkpoint(self, step: int, path: Path, scores: str = "", examples: Sequence[DevExample] = ()) -> None:
        """Report a saved checkpoint, with its dev scores and examples of its outputs, if any.

        A terminal shows one random example per checkpoint, TensorBoard all of them.
        """
        if examples:
            shown = Random(step).choice(examples)
            self._console.pin(
                [("source", shown.source), ("ours", shown.output or "(empty)"), ("reference", shown.reference)]
            )
        for number, example in enumerate(examples if self._board is not None else (), 1):
            self._board.add_text(f"dev/{number}", example.markdown(), step)
        saved = f"update {step}{self._goal}  saved {path}" + (f"  {scores}" if scores else "")
        self._console.say(saved, best=scores.endswith("best"))

    def record(self, figures: dict[str, Any]) -> None:
        """Append the metrics to metrics.jsonl as one line, and to TensorBoard."""
        finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in figures.items()}
        self._metrics.append(finite)
        if self._board is not None:
            for name, value in finite.items():
                if name != "step" and value is not None:
                    self._board.add_scalar(name, value, figures["step"])


@contextmanager
def show_progress(
    console: Console, metrics: JsonLines, leads: bool, step: int, settings: Training
) -> Iterator[Progress]:
    """Display progress from `step` on during the block; record it in `metrics` and, on rank 0, for TensorBoard.

    Raise UserError if TensorBoard is requested but not installed.
    """
    with ExitStack() as stack:
        board = None
        if leads and settings.tensorboard:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                raise UserError(
                    "training.tensorboard: the package tensorboard is not installed", "pip install tensorboard"
                ) from None
            board = stack.enter_context(SummaryWriter(str(metrics.path.with_name("tensorboard")), purge_step=step + 1))
        total = settings.updates if settings.minutes is None else None
        bar = console.progress("training", total, "updates", done=step, every=None)  # `log` prints the lines
        goal = "" if total is None else f"/{total}"
        yield Progress(console, metrics, goal, stack.enter_context(bar), board)


@dataclass
class Sums:
    """Sums over one rank's micro-batches."""

    loss: Tensor | float = 0.0  # () smoothed loss over target tokens, in nats
    nll: Tensor | float = 0.0  # () negative log-likelihood over target tokens, in nats
    cells: int = 0  # cells on both sides, including padding

    def add(self, loss: Tensor | float, nll: Tensor | float, cells: int) -> None:
        """Add the sums of one or more micro-batches."""
        self.loss, self.nll, self.cells = self.loss + loss, self.nll + nll, self.cells + cells


class Meter:
    """Metrics accumulated since the last log line."""

    def __init__(self, group: Group) -> None:
        self._group, self._peak = group, peak_flops(group.device)
        self._reset()

    def _reset(self) -> None:
        """Reset all sums and timers."""
        self._began = time.perf_counter()
        self._waited = 0.0
        self._sums = Sums()
        self._norms: list[Tensor] = []
        self._tokens = self._target_tokens = 0
        self._flops = 0.0

    def waiting(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the items, timing the wait for each."""
        began = time.perf_counter()
        for item in items:
            self._waited += time.perf_counter() - began
            yield item
            began = time.perf_counter()

    def add(self, sums: Sums, lengths: Lengths, flops: float, norm: Tensor) -> None:
        """Add an update: this rank's `sums`, and lengths, FLOPs and gradient norm () over all ranks."""
        self._sums.add(sums.loss, sums.nll, sums.cells)
        self._target_tokens += lengths.target_tokens
        self._tokens += lengths.source_tokens + lengths.target_tokens
        self._flops += flops
        self._norms.append(norm)

    def figures(self) -> dict[str, float]:
        """Return the metrics over all ranks since the last call, and reset."""
        sums = self._sums
        loss, nll, cells = self._group.total(float(sums.loss), float(sums.nll), sums.cells)  # synchronises with the GPU
        norms = torch.stack(self._norms)
        seconds = time.perf_counter() - self._began
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # peak resident memory
        memory *= 1 if sys.platform == "darwin" else 1024  # in bytes on macOS, else in KiB
        if self._group.device.type == "cuda":
            memory = torch.cuda.max_memory_allocated(self._group.device)
        figures = {
            "loss": loss / self._target_tokens,
            "perplexity": perplexity(nll, self._target_tokens),
            "gradient_norm": float(norms[norms.isfinite()].mean()),
            "tokens_per_second": self._target_tokens / seconds,
            "tokens_per_update": self._target_tokens / len(self._norms),
            "seconds_per_update": seconds / len(self._norms),
            "padding": 1.0 - self._tokens / cells,
            "data_wait": self._waited / seconds,
            "memory_bytes": memory,
            "flops_per_second": self._flops / seconds,
        }
        if self._peak is not None:
            figures["mfu"] = figures["flops_per_second"] / (self._peak * self._group.size)
        self._reset()
        return figures


PATIENCE = 60.0  # seconds to wait for the final page


class Page:
    """A run's report.html, written by one background process at a time."""

    def __init__(self, out: Path, console: Console, wanted: bool = True) -> None:
        self._out, self._console, self._wanted = out, console, wanted
        self._child: Child | None = None
        self._stale = self._announced = self._failed = False
        self.seconds = 0.0  # CPU seconds spent on the report and not yet recorded

    def refresh(self) -> None:
        """Mark the page as out of date."""
        self._stale = True

    def check(self) -> None:
        """Start writing the page if it is out of date and no process is running."""
        if self._is_free(0.0) and self._stale:
            self._start()

    @contextmanager
    def refreshed(self, at_end: Callable[[], None]) -> Iterator[None]:
        """Start a page and run the block; when it ends or is interrupted, write the final page and call `at_end`."""
        self.refresh()
        self.check()
        with closing(self):
            try:
                yield
            except Interrupted:
                self.finish()
                at_end()
                raise
            self.finish()
            at_end()

    def finish(self) -> None:
        """Write the final page, waiting at most `PATIENCE` seconds."""
        until = time.monotonic() + PATIENCE
        if self._is_free(PATIENCE):
            self._start()
        if not self._is_free(until - time.monotonic()):
            self._fail(f"it takes longer than {PATIENCE:.0f} s")
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
        self._stale = False
        try:
            self._child = Child("nmt.report.page", str(self._out), OMP_NUM_THREADS="1")
        except UserError as error:
            self._fail(error.message)

    def _is_free(self, patience: float) -> bool:
        """Wait at most `patience` seconds for the process; return whether none is running."""
        if self._child is None:
            return True
        if self._child.connection.poll(max(0.0, patience)):
            self._handle_result(self._child.connection)
            self.close()
        return self._child is None

    def _handle_result(self, connection: Connection) -> None:
        """Receive the result of a process that has ended: report its problem, or announce the first page."""
        try:
            result = json.loads(connection.recv_bytes())
            self.seconds += result["seconds"]
            problem = result["problem"]
        except (EOFError, OSError, ValueError, LookupError, TypeError):
            problem = "the process that writes it died"
        if problem is not None:
            self._fail(problem)
        elif not self._announced:
            self._console.say(f"report: {self._out / PAGE}")
            self._announced = True

    def _fail(self, problem: str) -> None:
        """Report a problem, but only the first time."""
        if not self._failed:
            self._console.say(f"{self._out / PAGE} was not written, but training continues: {problem}")
        self._failed = True
