"""The figures of training: measured between two log lines, shown on the terminal, and recorded in metrics.jsonl."""

from __future__ import annotations

import json
import math
import resource
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import IO, Any, TypeVar

import torch
from torch import Tensor

from nmt.console import GAP, Advance, Console, clock
from nmt.data.corpus import Lengths
from nmt.errors import UserError
from nmt.model.functional import perplexity
from nmt.training.distributed import Group
from nmt.training.flops import peak_flops
from nmt.training.samples import DevExample

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
