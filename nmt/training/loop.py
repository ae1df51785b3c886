"""The update loop: forward and backward per micro-batch, one update, figures, checkpoints.

Everything random is a pure function of (seed, step), so that a resumed run repeats what an unbroken one does.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from types import FrameType
from typing import Protocol

import numpy as np
import torch

from nmt.data.batches import Rows, make_batch, plan_epoch, split_update
from nmt.data.corpus import Corpus
from nmt.errors import Interrupted, UserError
from nmt.recipe import Training
from nmt.training.loss import Objective
from nmt.training.optimizer import Optimizer
from nmt.training.progress import Progress


@dataclass
class Position:
    """How far a run is; saved with every checkpoint."""

    step: int = 0
    """Updates done"""
    epoch: int = 0
    offset: int = 0
    """Updates of this epoch done"""
    seconds: float = 0.0
    """Time spent in training and validation, over all resumptions"""
    tokens: int = 0
    """Target tokens seen"""
    best_bleu: float | None = None
    without_improvement: int = 0
    """Checkpoints since the best one"""

    def to_json(self) -> dict[str, float | int | None]:
        """Plain values; `Position(**values)` restores them."""
        return asdict(self)


class Save(Protocol):
    """Writes a checkpoint at a position, scored on the development set unless told not to, and shows that."""

    def __call__(self, position: Position, progress: Progress, *, validate: bool) -> None: ...


@dataclass
class Meter:
    """Figures since the last log line."""

    began: float = field(default_factory=time.perf_counter)
    loss: float = 0.0
    nll: float = 0.0
    tokens: int = 0
    cells: int = 0
    source_tokens: int = 0
    updates: int = 0

    def figures(self) -> dict[str, float]:
        """Means per target token, and rates per second."""
        loss, nll = float(self.loss), float(self.nll)  # a CPU-GPU sync point, hence not every update
        return {
            "loss": loss / self.tokens,
            "perplexity": math.exp(min(nll / self.tokens, 700.0)),
            "tokens_per_second": self.tokens / (time.perf_counter() - self.began),
            "tokens_per_update": self.tokens / self.updates,
            "padding": 1.0 - (self.tokens + self.source_tokens) / self.cells,
        }


def device_tokens(settings: Training, device: torch.device) -> int:
    """Padded tokens per side of a micro-batch."""
    if settings.device_tokens is not None:
        return settings.device_tokens
    return 2 * settings.batch_tokens if device.type == "cuda" else 4096


class Loop:
    """Trains an objective on a corpus from a position to the recipe's last update."""

    def __init__(
        self,
        objective: Objective,
        optimizer: Optimizer,
        corpus: Corpus,
        settings: Training,
        device: torch.device,
    ) -> None:
        self.objective, self.optimizer, self.corpus, self.settings = objective, optimizer, corpus, settings
        self.device = device
        self.source_lengths, self.target_lengths = corpus.source_lengths, corpus.target_lengths
        self.micro_batch = device_tokens(settings, device)

    def run(self, position: Position, progress: Progress, save: Save) -> None:
        """Runs to the end, to the limit of patience, or until a signal asks to stop (Interrupted)."""
        settings, meter = self.settings, Meter()
        checkpoint_time = last_clock = time.perf_counter()
        self.objective.train()
        with _stop_requests() as stop:
            for rows in self._updates(position):
                position.step += 1
                rate = self._update(rows, position.step, meter)
                position.offset += 1
                position.tokens += int(self.target_lengths[rows].sum()) + len(rows)
                now = time.perf_counter()
                position.seconds, last_clock = position.seconds + now - last_clock, now
                progress.advance(position.step)
                if position.step == 1 or position.step % settings.log_updates == 0:
                    self._log(position, rate, meter, progress)
                    meter = Meter()
                finished = position.step >= settings.updates
                if stop or finished or self._due(position.step, now - checkpoint_time):
                    self._check_finite(position.step)
                    save(position, progress, validate=finished or not stop)
                    checkpoint_time = time.perf_counter()
                    meter.began += checkpoint_time - now  # the figures are those of training alone
                if stop:
                    raise Interrupted(f"stopped at update {position.step}, saved", stop[0])
                if finished or self.out_of_patience(position):
                    return

    def out_of_patience(self, position: Position) -> bool:
        """Whether dev BLEU has not improved for `training.patience` checkpoints."""
        patience = self.settings.patience
        return patience is not None and position.without_improvement >= patience

    def _updates(self, position: Position) -> Iterator[Rows]:
        """Rows of each update from the position on, epoch after epoch."""
        while True:
            lengths, settings = (self.source_lengths, self.target_lengths), self.settings
            plan = plan_epoch(*lengths, settings.batch_tokens, settings.seed, position.epoch)
            while position.offset < len(plan):
                yield plan.rows(position.offset)
            position.epoch, position.offset = position.epoch + 1, 0

    def _update(self, rows: Rows, step: int, meter: Meter) -> float:
        """One update from all micro-batches of `rows`; returns the learning rate."""
        torch.manual_seed(int(np.random.SeedSequence((self.settings.seed, step)).generate_state(1, np.uint64)[0]))
        tokens = int(self.target_lengths[rows].sum()) + len(rows)
        for part in split_update(rows, self.source_lengths, self.target_lengths, self.micro_batch):
            batch = make_batch(self.corpus, part).to(self.device)
            loss, nll = self.objective(batch)
            (loss / tokens).backward()
            meter.loss += loss.detach()
            meter.nll += nll
            meter.cells += batch.source.numel() + batch.target_out.numel()
        if self.settings.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.objective.parameters(), self.settings.clip_norm)
        meter.tokens += tokens
        meter.source_tokens += int(self.source_lengths[rows].sum()) + len(rows)
        meter.updates += 1
        return self.optimizer.update(step)

    def _log(self, position: Position, rate: float, meter: Meter, progress: Progress) -> None:
        self._check_finite(position.step)
        figures = meter.figures()
        at = {"step": position.step, "epoch": position.epoch, "seconds": position.seconds, "learning_rate": rate}
        seconds_per_update = figures["tokens_per_update"] / figures["tokens_per_second"]
        progress.log(at | figures, (self.settings.updates - position.step) * seconds_per_update)

    def _check_finite(self, step: int) -> None:
        """Raises UserError once a weight is no longer a number: before that is saved over good checkpoints."""
        largest = torch.stack([parameter.detach().abs().max() for parameter in self.objective.parameters()]).max()
        if not math.isfinite(float(largest)):
            raise UserError(
                f"training diverged: a weight is {float(largest)} after update {step}",
                "lower training.learning_rate_scale, raise training.warmup or set training.clip_norm; "
                "earlier checkpoints are intact",
            )

    def _due(self, step: int, seconds: float) -> bool:
        """Whether a checkpoint is due after update `step`, `seconds` after the last."""
        if self.settings.checkpoint_updates is not None:
            return step % self.settings.checkpoint_updates == 0
        minutes = self.settings.checkpoint_minutes
        return minutes is not None and seconds >= 60 * minutes


@contextmanager
def _stop_requests() -> Iterator[list[int]]:
    """Collects SIGINT and SIGTERM so that the update at hand can be finished; a second one acts at once."""
    requests: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        requests.append(number)
        signal.signal(number, before[number])

    before = {int(number): signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for number in before:
            signal.signal(number, note)
        yield requests
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
