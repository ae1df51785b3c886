"""The update loop: micro-batches to gradients, one update, figures, checkpoints; the same on any number of devices.

Everything random is a pure function of (seed, step, rank), so that a resumed run repeats what an unbroken one does.
"""

from __future__ import annotations

import math
import signal
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from itertools import islice
from types import FrameType
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from nmt.batch import Batch
from nmt.bundle import is_figure
from nmt.console import Console
from nmt.data.batches import make_batch, prefetched, split_update
from nmt.data.corpus import Corpus, Ids, Rows
from nmt.data.epochs import EpochPlan
from nmt.errors import Interrupted, UserError
from nmt.recipe import CPU_DEVICE_TOKENS, Training
from nmt.training.distributed import Group
from nmt.training.flops import device_name, sustained_flops
from nmt.training.loss import Objective
from nmt.training.memory import SHARE, largest_fitting
from nmt.training.meter import Meter
from nmt.training.optimizer import Optimizer
from nmt.training.precision import autocast_dtype, factors_rounded, short_factors
from nmt.training.progress import Progress

AHEAD = 2  # updates whose batches are made in advance
MANY = 10  # updates skipped in a row that end a run


@dataclass
class Position:
    """How far a run is; saved with every checkpoint."""

    step: int = 0
    """Updates done, skipped ones counted"""
    epoch: int = 0
    offset: int = 0
    """Updates of this epoch done"""
    skipped: int = 0
    """Updates that changed nothing, since a gradient was not finite"""
    device_tokens: int = 0
    """Size of micro-batches, on which sums depend to the last bit; 0 before it is known"""
    place: str = ""
    """Devices that this size is meant for, such as 8 × NVIDIA H200"""
    tokens: int = 0
    """Target tokens seen"""
    flops: float = 0.0
    """Of the model, forward and backward, over all devices"""
    seconds: float = 0.0
    """Time spent in training and validation, over all resumptions"""
    device_seconds: float = 0.0
    """The same, times the devices at work"""
    estimated_flops: float | None = 0.0
    """The same, times what a device sustains in single precision: the paper's estimate; None where not known"""
    devices: dict[str, float] = field(default_factory=dict)
    """Seconds by the devices at work, such as 8 × NVIDIA H200"""

    def to_json(self) -> dict[str, Any]:
        """Plain values; `restore` reads them."""
        return asdict(self)

    @classmethod
    def restore(cls, said: object, cost: Mapping[str, Any], step: int) -> Self:
        """The position of a checkpoint at update `step`, by its training.json and by the cost in its bundle.json.

        The latter knows of the last validation too. An earlier version did not estimate FLOPs. Raises ValueError where
        something is missing or of the wrong kind.
        """
        if not isinstance(said, dict):
            raise ValueError("training.json holds no mapping")
        values = {"estimated_flops": None, **said, **cost}
        defaults = asdict(cls())
        for name, value in (*said.items(), *cost.items()):
            default = defaults.get(name)
            if isinstance(default, int):
                valid = type(value) is int and 0 <= value < 2**63
            elif isinstance(default, str):
                valid = isinstance(value, str)
            elif isinstance(default, dict):
                valid = isinstance(value, dict) and all(map(is_figure, value.values()))
            else:
                valid = name in defaults and (is_figure(value) or (name == "estimated_flops" and value is None))
            if not valid:
                raise ValueError(f"{name} is of the wrong kind")
        missing = sorted({"step", "epoch", "offset"} - values.keys())
        if missing or values["step"] != step or values.get("skipped", 0) > step:
            raise ValueError(f"{missing[0]} is missing" if missing else f"its position is not that of update {step}")
        return cls(**values)


@dataclass(frozen=True)
class Update:
    """One update of the plan, and this rank's share of it as batches."""

    epoch: int
    offset: int
    rows: Rows
    source_lengths: Ids
    target_lengths: Ids
    device_tokens: int
    batches: list[Batch]

    @property
    def target_tokens(self) -> int:
        """Over all ranks, `</s>` counted, padding not."""
        return int(self.target_lengths.sum()) + len(self.rows)


class Hooks(Protocol):
    """What the loop needs of the run around it."""

    def plan(self, epoch: int) -> EpochPlan:
        """The plan of an epoch; asked for from another thread."""

    def save(self, position: Position, progress: Progress, *, validate: bool) -> None:
        """Writes a checkpoint, and scores it on the development set if told to."""

    def is_done(self, position: Position) -> bool:
        """Whether there is nothing left to do."""


class Loop:
    """Trains an objective on a corpus from a position until the run is done."""

    def __init__(
        self,
        objective: Objective,
        optimizer: Optimizer,
        corpus: Corpus,
        settings: Training,
        group: Group,
        device: torch.device,
        console: Console,
    ) -> None:
        self.objective, self.optimizer, self.corpus, self.settings = objective, optimizer, corpus, settings
        self.group, self.device, self.console = group, device, console
        self._parameters = list(objective.parameters())
        self._autocast = autocast_dtype(settings.precision, device)
        self._factors = short_factors(settings.precision)
        self._ranks: DistributedDataParallel | None = None
        if group.size > 1:
            with warnings.catch_warnings(), group.guard("comparing models"):
                warnings.simplefilter("ignore", FutureWarning)  # torch 2.13 renames what 2.11 calls broadcast_buffers
                # Buffers are tables of positions, which every rank grows as its own batches need it.
                self._ranks = DistributedDataParallel(objective, broadcast_buffers=False, gradient_as_bucket_view=True)
        self._unseen: list[tuple[int, Rows, Tensor]] = []
        self._in_a_row: list[tuple[int, Rows]] = []

    def run(self, position: Position, progress: Progress, hooks: Hooks) -> None:
        """Runs until the run is done, or until a signal asks to stop (Interrupted)."""
        settings, group = self.settings, self.group
        if position.place != (place := self._place()):  # another device holds more or less
            position.device_tokens, position.place = 0, place
        position.device_tokens = position.device_tokens or settings.device_tokens or self._fitting_tokens()
        clock, meter = _Clock(position, group.size, self.device), Meter(self.device, group)
        self.objective.train()
        with (
            _stop_requests(escalate=group.size == 1) as requests,
            closing(prefetched(islice(self._feed(position, hooks), settings.updates - position.step), AHEAD)) as feed,
        ):
            for update in meter.waiting(feed):
                position.step += 1
                group.note(position.step)
                if group.is_orphaned():
                    requests.append(signal.SIGTERM)
                due = int(group.leads and self._due(position.step, clock.since_save()))
                with factors_rounded(self._factors):
                    stop, due = self._gradients(update, position, meter, max(requests, default=0), due)
                rate = self._apply(update, position, meter)
                clock.tick()
                progress.advance()
                if position.step == 1 or position.step % settings.log_updates == 0:
                    self._log(position, rate, meter, progress)
                finished = position.step >= settings.updates
                if stop or due or finished:
                    self._look(position)
                    self._check_finite(position.step)
                if stop or finished or (due and not self._in_a_row):  # what may be diverging pushes out no good one
                    hooks.save(position, progress, validate=finished or not stop)
                    clock.tick(saved=True)
                if hooks.is_done(position):
                    return
                if stop:
                    raise Interrupted(f"stopped at update {position.step}, saved", stop)

    def _feed(self, position: Position, hooks: Hooks) -> Iterator[Update]:
        """Updates from the position on, epoch after epoch; runs in a thread, ahead of the loop."""
        epoch, offset = position.epoch, position.offset
        while True:
            plan = hooks.plan(epoch)
            for number in range(offset, len(plan)):
                rows = plan.rows(number)
                lengths = self.corpus.lengths(rows)
                size = position.device_tokens
                yield Update(epoch, number, rows, *lengths, size, self._batches(rows, *lengths, size))
            epoch, offset = epoch + 1, 0

    def _batches(self, rows: Rows, source_lengths: Ids, target_lengths: Ids, device_tokens: int) -> list[Batch]:
        """This rank's stripe of an update's micro-batches."""
        parts = split_update(source_lengths, target_lengths, device_tokens, self.group.size)
        batches = [make_batch(self.corpus, rows[part]) for part in parts[self.group.rank :: self.group.size]]
        return [batch.pin() for batch in batches] if self.device.type == "cuda" else batches

    def _gradients(self, update: Update, position: Position, meter: Meter, stop: int, due: int) -> tuple[int, int]:
        """Gradients of an update, on every rank; gives what the ranks agree on: a signal to stop by, a checkpoint due.

        Where a device runs out of memory, all ranks halve their micro-batches and begin the update anew.
        """
        batches = update.batches
        while True:
            if update.device_tokens != position.device_tokens:  # halved since they were made
                lengths = update.source_lengths, update.target_lengths
                batches = self._batches(update.rows, *lengths, position.device_tokens)
            seed = np.random.SeedSequence((self.settings.seed, position.step, self.group.rank))
            torch.manual_seed(int(seed.generate_state(1, np.uint64)[0]))
            sums, failed, stop, due = self._accumulate(batches, update.target_tokens, stop, due)
            if not failed:
                meter.add(*sums, cells=sum(batch.num_cells for batch in batches))
                return stop, due
            self.optimizer.clear()
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            if self._ranks is not None:  # those that got through their last forward pass wait for its backward pass
                with self.group.guard("beginning an update anew"):
                    self._forward(make_batch(self.corpus, update.rows[:0]))[0].backward()
                self.optimizer.clear()
            self._halve(position)

    def _accumulate(
        self, batches: list[Batch], tokens: int, stop: int, due: int
    ) -> tuple[tuple[Tensor, Tensor], int, int, int]:
        """Forward and backward of all micro-batches: summed losses, whether memory ran out, and what is agreed.

        The ranks agree before the last backward pass, which is the only one that sends gradients around.
        """
        scale = self.group.size / tokens  # the mean over ranks, which DistributedDataParallel takes, is then the sum
        loss = nll = torch.zeros((), dtype=torch.float64, device=self.device)
        out_of_memory = 0
        try:
            for batch in batches[:-1]:
                with self._apart():
                    part, part_nll = self._forward(batch)
                    (part * scale).backward()
                loss, nll = loss + part.detach(), nll + part_nll
            last, last_nll = self._forward(batches[-1])
        except torch.OutOfMemoryError:
            out_of_memory = 1
        out_of_memory, stop, due = self.group.largest(out_of_memory, stop, due)
        if not out_of_memory:
            try:
                with self.group.guard("adding up gradients"):
                    (last * scale).backward()
                loss, nll = loss + last.detach(), nll + last_nll
            except torch.OutOfMemoryError:
                if self.group.size > 1:  # the others are in the midst of it
                    hint = f"--set training.device_tokens={max(1, batches[-1].target_out.numel() // 2)}"
                    raise UserError(f"{self.device}: out of memory", hint) from None
                out_of_memory = 1
        return (loss, nll), out_of_memory, stop, due

    def _forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        with torch.autocast(self.device.type, self._autocast, enabled=self._autocast is not None):
            loss, nll = (self._ranks or self.objective)(batch.to(self.device))
        return loss, nll

    def _apart(self) -> AbstractContextManager[None]:
        """Gradients stay with this rank for now."""
        return self._ranks.no_sync() if self._ranks is not None else nullcontext()

    def _halve(self, position: Position) -> None:
        if position.device_tokens == 1:
            raise UserError(
                f"{self.device}: out of memory at update {position.step} with one sentence at a time",
                "use a smaller model, or lower data.max_length",
            )
        position.device_tokens = max(1, position.device_tokens // 2)
        self.console.say(
            f"update {position.step}: out of memory; from here on micro-batches have half the size, "
            f"{position.device_tokens:,} tokens"
        )

    def _apply(self, update: Update, position: Position, meter: Meter) -> float:
        """Clips, applies Adam unless a gradient is not finite, counts; returns the learning rate.

        Nothing here waits for a GPU: whether the update was skipped is looked at later.
        """
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        norm = get_total_norm(gradients)
        if self.settings.clip_norm is not None:
            clip_grads_with_norm_(self._parameters, self.settings.clip_norm, norm)
        skip = norm.isfinite().logical_not()
        rate = self.optimizer.update(position.step, skip)
        self._unseen.append((position.step, update.rows, skip))
        position.epoch, position.offset = update.epoch, update.offset + 1
        position.tokens += update.target_tokens
        flops = self.objective.flops(update.source_lengths, update.target_lengths)
        position.flops += flops
        meter.count(update.source_lengths, update.target_lengths, flops, norm)
        if len(self._unseen) >= MANY:
            self._look(position)
        return rate

    def _look(self, position: Position) -> None:
        """Counts skipped updates; raises UserError where there were many in a row."""
        skips = torch.stack([skip for _, _, skip in self._unseen]).tolist() if self._unseen else []
        for (step, rows, _), skipped in zip(self._unseen, skips, strict=True):
            self._in_a_row = [*self._in_a_row, (step, rows)] if skipped else []
            position.skipped += skipped
            if skipped:
                self.console.say(f"update {step}: skipped, its gradient is not finite")
            if len(self._in_a_row) >= MANY:
                first, pairs = self._in_a_row[0]
                lines = sorted(self.corpus.lines(pairs))
                shown = ", ".join(f"{line:,}" for line in lines[:8]) + (" …" if len(lines) > 8 else "")
                raise UserError(
                    f"training diverged: {MANY} updates in a row had gradients that are not finite, update {first} "
                    f"(data.train, {len(lines):,} lines: {shown}) and those after it",
                    "lower training.learning_rate_scale, raise training.warmup or set training.clip_norm; "
                    "checkpoints are intact",
                )
        self._unseen.clear()

    def _log(self, position: Position, rate: float, meter: Meter, progress: Progress) -> None:
        self._look(position)
        self._check_finite(position.step)
        figures = meter.figures()
        at = {"step": position.step, "epoch": position.epoch, "seconds": position.seconds, "learning_rate": rate}
        left = (self.settings.updates - position.step) * figures["seconds_per_update"]
        progress.log(at | figures | {"skipped": position.skipped}, left)

    def _check_finite(self, step: int) -> None:
        """Raises UserError once a weight is no longer a number: before that is saved over good checkpoints."""
        norm = float(get_total_norm([parameter.detach() for parameter in self._parameters]))
        if not math.isfinite(norm):
            raise UserError(
                f"training diverged: the norm of the weights is {norm} after update {step}",
                "lower training.learning_rate_scale, raise training.warmup or set training.clip_norm; "
                "earlier checkpoints are intact",
            )

    def _due(self, step: int, seconds: float) -> bool:
        """Whether a checkpoint is due after update `step`, `seconds` after the last."""
        if self.settings.checkpoint_updates is not None:
            return step % self.settings.checkpoint_updates == 0
        minutes = self.settings.checkpoint_minutes
        return minutes is not None and seconds >= 60 * minutes

    def _place(self) -> str:
        """The devices of all ranks. Threads of a CPU do not count: memory does not depend on them."""
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "CPU"
        names = Counter(name for (name,) in self.group.gather([name]))
        return " + ".join(f"{number} × {name}" for name, number in sorted(names.items()))

    def _fitting_tokens(self) -> int:
        """Size of a micro-batch where the recipe does not say: what the memory of the smallest device holds."""
        if self.device.type != "cuda":
            return CPU_DEVICE_TOKENS
        longest = self.corpus.longest() + 1
        most = max(longest, 2 * -(-self.settings.batch_tokens // self.group.size))  # a whole share, however padded

        def measure(tokens: int) -> int:
            torch.cuda.reset_peak_memory_stats(self.device)
            ids = torch.ones(-(-tokens // longest), longest, dtype=torch.int64)
            source = ids if self.corpus.has_source else None
            with self._apart():
                self._forward(Batch(source, ids, ids, torch.arange(ids.numel())))[0].backward()
            self.optimizer.clear()
            return torch.cuda.max_memory_allocated(self.device) + self.optimizer.bytes_to_come()

        limit = int(SHARE * torch.cuda.mem_get_info(self.device)[1])
        fitting = -self.group.largest(-largest_fitting(measure, longest, most, limit))[0]
        self.console.say(f"micro-batches of {fitting:,} tokens fit the memory of the device")
        return fitting


class _Clock:
    """Adds the time that goes by to a position, and what it costs as the paper estimates it (section 6.1)."""

    def __init__(self, position: Position, devices: int, device: torch.device) -> None:
        self._position, self._devices = position, devices
        self._sustained = sustained_flops(device)
        self._place = f"{devices} × {device_name(device)}"
        self._last = self._saved = time.perf_counter()

    def tick(self, saved: bool = False) -> None:
        now, at = time.perf_counter(), self._position
        seconds = now - self._last
        at.seconds += seconds
        at.device_seconds += self._devices * seconds
        at.devices[self._place] = at.devices.get(self._place, 0.0) + seconds
        if at.estimated_flops is not None:
            at.estimated_flops += self._devices * seconds * self._sustained
        self._last, self._saved = now, now if saved else self._saved

    def since_save(self) -> float:
        """Seconds."""
        return time.perf_counter() - self._saved


@contextmanager
def _stop_requests(escalate: bool) -> Iterator[list[int]]:
    """Collects SIGINT, SIGTERM and SIGHUP so that the update at hand can be finished; with `escalate` a second acts.

    Workers of a launcher may be told twice, by it and by the terminal, and take both as one. What is ignored, as
    SIGHUP is under nohup, stays so.
    """
    requests: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        requests.append(number)
        if escalate:
            signal.signal(number, before[number])

    handlers = {int(number): signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    before = {number: handler for number, handler in handlers.items() if handler is not signal.SIG_IGN}
    try:
        for number in before:
            signal.signal(number, note)
        yield requests
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
