"""What a run shows: its metrics, its report, which a background process refreshes, and its last lines."""

from __future__ import annotations

import json
import math
import re
import resource
import shlex
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from nmt.checkpoint.reading import best, survey
from nmt.compute.choice import device_name
from nmt.data.corpus import Lengths
from nmt.model.operations import perplexity
from nmt.recipe import Recipe, Training
from nmt.system.console import BEYOND, GAP, Advance, Console, JsonLines, clock, figure
from nmt.system.errors import Interrupted, UserError
from nmt.system.files import clear_parts
from nmt.system.processes import Child
from nmt.training.cost import sustained_flops
from nmt.training.distributed import Group
from nmt.training.peak import peak_flops
from nmt.training.run_files import METRICS, PAGE, BestScore, DevExample, RunState

FEW_UPDATES = 20  # which hardly change what a run goes on from
T = TypeVar("T")
# A micro-batch's smoothed loss () and negative log-likelihood (), summed over target tokens, in nats, and its cells
Losses = tuple[Tensor, Tensor, int]


class Progress:
    """Reporter of a run's progress to the console, metrics.jsonl and TensorBoard."""

    def __init__(self, console: Console, metrics: JsonLines, goal: str, advance: Advance, board: Any = None) -> None:
        """`goal` follows the number of updates in messages."""
        self._console, self._metrics, self._goal, self._board = console, metrics, goal, board
        self.advance, self._figures = advance, ""

    def log(self, figures: dict[str, Any], seconds_left: float) -> None:
        """Record and display the training metrics since the last call."""
        self.record(figures)
        loss, perplexity = f"loss {figures['loss']:.3f}", f"ppl {figure(figures['perplexity'])}"
        rate, speed = f"lr {figures['learning_rate']:.2e}", f"{figures['tokens_per_second']:,.0f} tok/s"
        if "mfu" in figures:
            speed += f"{GAP}MFU {figures['mfu']:.1%}"
        if self._console.live:
            self._figures = GAP.join([loss, speed, perplexity, rate])
            self.advance(0, self._figures, seconds_left)
        else:
            parts = [f"update {figures['step']}{self._goal}", loss, perplexity, rate, speed]
            self._console.say(GAP.join([*parts, f"{clock(seconds_left)} left"]))

    @contextmanager
    def validating(self) -> Iterator[None]:
        """Display a notice instead of metrics while the development set is scored."""
        self.advance(0, "scoring the dev set")
        yield
        self.advance(0, self._figures)

    def checkpoint(self, step: int, path: Path, scores: str = "") -> None:
        """Report a saved checkpoint, with its dev scores if any."""
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
    board: AbstractContextManager[Any] = nullcontext()
    if leads and settings.tensorboard:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            problem = "training.tensorboard: the package tensorboard is not installed"
            raise UserError(problem, "pip install tensorboard") from None
        board = SummaryWriter(str(metrics.path.with_name("tensorboard")), purge_step=step + 1)
    total = settings.updates if settings.minutes is None else None
    bar = console.progress("training", total, "updates", done=step, every=None)  # `log` prints the lines
    with board as opened, bar as advance:
        yield Progress(console, metrics, "" if total is None else f"/{total}", advance, opened)


class Meter:
    """What training costs, in a run's state, and metrics since the last log line."""

    def __init__(self, state: RunState, group: Group, dtype: torch.dtype) -> None:
        """Start the clock of a run whose devices multiply in `dtype`."""
        self._state, self._group = state, group
        self._sustained = sustained_flops(group.device)
        self._peak = peak_flops(group.device)
        self._place = f"{group.size} × {device_name(group.device, dtype=dtype)}"
        self._last = self._began = time.perf_counter()
        self._waited = 0.0  # seconds
        self._updates: list[tuple[Any, ...]] = []  # loss, nll, cells, target tokens, tokens, FLOPs and norm of each

    def waiting(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the items, timing the wait for each."""
        began = time.perf_counter()
        for item in items:
            self._waited += time.perf_counter() - began
            yield item
            began = time.perf_counter()

    def add(self, losses: Sequence[Losses], lengths: Lengths, flops: float, norm: Tensor) -> None:
        """Add an update: its micro-batches' losses on this rank; lengths, FLOPs and gradient norm () over all ranks."""
        self._state.count(lengths.target_tokens, flops)
        self.tick()
        own = map(sum, zip(*losses, strict=True))
        tokens = lengths.source_tokens + lengths.target_tokens
        self._updates.append((*own, lengths.target_tokens, tokens, flops, norm))

    def tick(self) -> None:
        """Add the time since the last tick to the run's cost, and the paper's estimate of its FLOPs (section 6.1)."""
        now = time.perf_counter()
        self._state.spend(now - self._last, self._place, self._group.size, self._sustained)
        self._last = now

    def figures(self) -> dict[str, float]:
        """Return the metrics over all ranks since the last call, and reset."""
        *columns, each_norm = zip(*self._updates, strict=True)
        *own, target_tokens, tokens, flops = (float(sum(column)) for column in columns)  # synchronises with the GPU
        loss, nll, cells = self._group.total(*own)
        norms = torch.stack(each_norm)
        seconds = time.perf_counter() - self._began
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # peak resident memory
        memory *= 1 if sys.platform == "darwin" else 1024  # in bytes on macOS, else in KiB
        if self._group.device.type == "cuda":
            memory = torch.cuda.max_memory_allocated(self._group.device)
        figures = {
            "loss": loss / target_tokens,
            "perplexity": perplexity(nll, target_tokens),
            "gradient_norm": float(norms[norms.isfinite()].mean()),
            "tokens_per_second": target_tokens / seconds,
            "tokens_per_update": target_tokens / len(norms),
            "seconds_per_update": seconds / len(norms),
            "padding": 1.0 - tokens / cells,
            "data_wait": self._waited / seconds,
            "memory_bytes": memory,
            "flops_per_second": flops / seconds,
        }
        if self._peak is not None:
            figures["mfu"] = flops / seconds / (self._group.size * self._peak)
        self._updates, self._waited, self._began = [], 0.0, time.perf_counter()
        return figures


PATIENCE = 60.0  # seconds to wait for the final page


class Page:
    """A run's report.html, written by one background process at a time."""

    def __init__(self, out: Path, console: Console, wanted: bool = True) -> None:
        self._out, self._console, self._wanted = out, console, wanted
        self._child: Child | None = None
        self._is_stale = False
        self._told = set[bool]()  # of whether the page was written, what has been said

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
        if (problem is None) not in self._told:
            page = self._out / PAGE
            failure = f"{page} was not written, but training continues: {problem}"
            self._console.say(f"report: {page}" if problem is None else failure)
        self._told.add(problem is None)


def farewell(
    recipe: Recipe,
    out: Path,
    state: RunState,
    top: BestScore,
    sample: DevExample | None,
    minutes: float | None,
    began: int,
) -> list[str]:
    """Return the last lines of `nmt train`: why the run ended, its scores, a sample, its cost, and what to do next.

    `minutes`, if training.minutes are used up, is a number of them with which the run goes on. `began` is the update at
    which this process began. The estimated cost follows section 6.1 of the paper.
    """
    found, _ = survey(out)
    bundle = best(found) or found[-1]
    task, training, checkpoints = bundle.task, recipe.training, top.without_improvement
    ending = f"{state.step:,} of {training.updates:,} updates in {clock(state.seconds)}"
    more = f"--set training.updates={2 * state.step}"  # exceeds `updates` even if that was lowered
    if minutes is not None:
        ending = f"training.minutes {training.minutes:g} reached; {ending}"
        more = f"--set training.minutes={minutes:g}"
    elif state.step < training.updates:
        ending = f"no better dev {task.label} for {checkpoints} checkpoints; {ending}"
        more = f"--set training.patience={2 * checkpoints}"
    scored = "" if bundle.dev_score is None else f"dev {task.label} {figure(bundle.dev_score)}, "
    sustained = state.estimated_flops / state.device_seconds / 1e12
    seconds = f"{state.device_seconds:,.0f} device seconds"
    scores = _dev_scores(out / METRICS, task.metric)
    rows = {
        **({f"dev {task.label}": sparkline(scores)} if len(scores) > 1 else {}),
        **dict(sample.rows() if sample else ()),
        "checkpoint": f"{scored}update {bundle.step:,}: {bundle.path}",
        "training cost": f"{state.flops:.2e} FLOPs counted exactly, {state.tokens:,} target tokens",
        "by the paper": f"{state.estimated_flops:.2e} FLOPs: {seconds} × {sustained:.3g} TFLOP/s in fp32",
        "devices": ", ".join(state.devices),
        "run": str(out),
        **({"report": str(page)} if (page := out / PAGE).exists() else {}),
    }
    if training.init_from is not None and state.step < FEW_UPDATES:
        rows["warning"] = f"only {state.step:,} updates: it has hardly learned anything"
    elif state.step < training.warmup and training.init_from is None:
        rows["warning"] = f"ended during warm-up ({training.warmup:,} updates): expect poor output"
    elif task.name == "translate" and bundle.is_poor:
        value = bundle.scores["perplexity"]
        advice = "train longer, or expect poor output"
        if value >= BEYOND:
            advice = "training has diverged; start again with a lower training.learning_rate_scale"
        rows["warning"] = f"dev perplexity {figure(value)}: {advice}"
    if state.step == began:
        rows["next"] = f"to continue: {more}"
    elif training.minutes is None:  # otherwise an average is made now
        rows["next"] = shlex.join(["nmt", "average", str(out)])
    return [f"finished: {ending}", *(f"  {name:14} {text}" for name, text in rows.items())]


def _dev_scores(metrics: Path, name: str) -> list[float]:
    """Return the scores of a run's checkpoints on its present development set, by update."""
    text = metrics.read_text(encoding="utf-8", errors="replace") if metrics.is_file() else ""
    # Not parsed as JSON: a killed run may have left a truncated line
    scores = re.findall(rf'"valid_{name}": ([0-9.e+-]+)[,}}]', text.rpartition('"new_dev_set"')[2])
    return [float(score) for score in scores]


def sparkline(values: Sequence[float]) -> str:
    """Draw at most 40 of the values, the last one included, as bars from the lowest to the highest value."""
    drawn = values[:: -math.ceil(len(values) / 40)][::-1]
    low, high = min(values), max(values)
    bars = "".join("▁▂▃▄▅▆▇█"[round(7 * (value - low) / (high - low or 1))] for value in drawn)
    return f"{bars}  {figure(low)} to {figure(high)}"
