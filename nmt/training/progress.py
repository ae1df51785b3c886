"""Shows and records the progress of training: a live display or plain lines, metrics.jsonl and TensorBoard."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import IO, Any

from nmt.console import GAP, Advance, Console, clock
from nmt.errors import UserError

METRICS = "metrics.jsonl"
ABOUT = "run.json"
"""Number of parameters, the recipe that the run's recipe extends, and report.json of its prepared data."""


def forget_after(path: Path, step: int, scored: bool = True) -> None:
    """Removes the lines of a metrics file after a step, which a resumed run will write again.

    If its checkpoint is not scored yet, only the training figures of that step stay.
    """
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            figures = json.loads(line)
            if figures["step"] < step or (figures["step"] == step and (scored or "loss" in figures)):
                kept.append(line + "\n")
        except (ValueError, KeyError, TypeError):  # the last line of a killed process may be cut short
            continue
    part = path.with_suffix(".tmp")
    try:
        part.write_text("".join(kept), encoding="utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@dataclass(frozen=True)
class DevExample:
    """What a checkpoint made of one sentence of the development set."""

    source: str
    reference: str
    output: str
    score: float

    def markdown(self) -> str:
        """As TensorBoard shows it, a line each; what looks like markup is shown as it is."""
        lines = {"source": self.source, "reference": self.reference, "output": self.output, "score": f"{self.score:g}"}
        return "\n".join(f"    {name:10}{line}" for name, line in lines.items())


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
