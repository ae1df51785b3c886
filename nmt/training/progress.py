"""What a run shows and records while it trains: a line on the console, metrics.jsonl and TensorBoard."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from nmt.recipe import Training
from nmt.system.console import GAP, Advance, Console, JsonLines, clock, figure
from nmt.system.errors import UserError


class Progress:
    """Reporter of a run's progress to the console, metrics.jsonl and TensorBoard."""

    def __init__(self, console: Console, metrics: JsonLines, goal: str, advance: Advance, board: Any = None) -> None:
        """`goal`, such as /100000, follows the number of updates in messages."""
        self.advance = advance
        self._console = console
        self._metrics = metrics
        self._goal = goal
        self._board = board
        self._figures = ""

    def log(self, figures: dict[str, Any], seconds_left: float) -> None:
        """Record and display the training metrics since the last call."""
        self.record(figures)
        loss = f"loss {figures['loss']:.3f}"
        perplexity = f"ppl {figure(figures['perplexity'])}"
        rate = f"lr {figures['learning_rate']:.2e}"
        speed = f"{figures['tokens_per_second']:,.0f} tok/s"
        if "mfu" in figures:
            speed += f"{GAP}MFU {figures['mfu']:.1%}"
        if self._console.live:
            self._figures = GAP.join([loss, speed, perplexity, rate])
            self.advance(0, self._figures, seconds_left)
        else:
            update = f"update {figures['step']}{self._goal}"
            self._console.say(GAP.join([update, loss, perplexity, rate, speed, f"{clock(seconds_left)} left"]))

    @contextmanager
    def validating(self) -> Iterator[None]:
        """Display a notice instead of metrics while the development set is scored."""
        self.advance(0, "scoring the dev set")
        try:
            yield
        finally:
            self.advance(0, self._figures)

    def checkpoint(self, step: int, path: Path, scores: str = "") -> None:
        """Report a saved checkpoint, with its dev scores if any."""
        saved = f"update {step}{self._goal}  saved {path}"
        if scores:
            saved += f"  {scores}"
        self._console.say(saved, best=scores.endswith("best"))

    def record(self, figures: dict[str, Any]) -> None:
        """Append the metrics to metrics.jsonl as one line, and to TensorBoard; None for what is not finite."""
        recorded = dict(figures)
        for name, value in figures.items():
            if isinstance(value, float) and not math.isfinite(value):
                recorded[name] = None
        self._metrics.append(recorded)
        if self._board is not None:
            for name, value in recorded.items():
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
        # Events after `step` are from updates that a killed run did and this one repeats.
        board = SummaryWriter(str(metrics.path.with_name("tensorboard")), purge_step=step + 1)
    total = None
    goal = ""
    if settings.minutes is None:
        total = settings.updates
        goal = f"/{total}"
    bar = console.progress("training", total, "updates", done=step, every=None)  # `log` prints the lines
    with board as opened, bar as advance:
        yield Progress(console, metrics, goal, advance, opened)
