"""The update loop: gradients, one update, figures, checkpoints; the same on any number of devices.

Everything random is a pure function of (seed, step, rank), so that a resumed run repeats what an unbroken one does.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from types import FrameType
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from nmt.console import Console
from nmt.data.batches import prefetched
from nmt.data.corpus import Corpus, Rows
from nmt.data.epochs import EpochPlan
from nmt.errors import Interrupted, UserError
from nmt.recipe import Training
from nmt.training.distributed import Group
from nmt.training.gradients import Gradients, Requests, Update
from nmt.training.loss import Objective
from nmt.training.meter import Meter
from nmt.training.optimizer import Optimizer
from nmt.training.precision import factors_rounded, short_factors
from nmt.training.progress import Progress
from nmt.training.state import Clock, RunState

AHEAD = 2  # updates whose batches are made in advance
MANY = 10  # updates skipped in a row that end a run
REMEDY = "lower training.learning_rate_scale, raise training.warmup or set training.clip_norm; "


class Hooks(Protocol):
    """What the loop needs of the run around it."""

    def plan(self, epoch: int) -> EpochPlan:
        """Gives the plan of an epoch; called from another thread."""

    def save(self, state: RunState, progress: Progress, *, validate: bool) -> None:
        """Writes a checkpoint, and scores it on the development set if told to."""

    def check(self) -> None:
        """Raises the error of a checkpoint that could not be written meanwhile."""

    def is_done(self, state: RunState) -> bool:
        """Whether there is nothing left to do."""


class Loop:
    """Trains an objective on a corpus until a run is done."""

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
        self.group, self.device = group, device
        self._parameters = list(objective.parameters())
        self._gradients = Gradients(objective, optimizer, corpus, settings, group, device, console)
        self._divergence = _Divergence(self._parameters, corpus, console)

    def run(self, state: RunState, progress: Progress, hooks: Hooks) -> None:
        """Trains from a state, which it keeps up to date, to the end; raises Interrupted once a signal asks to stop."""
        settings, group = self.settings, self.group
        self._gradients.choose_size(state)
        clock, meter, saved = Clock(state, group.size, self.device), Meter(self.device, group), state.seconds
        self.objective.train()
        updates = islice(self._updates(state, hooks), settings.updates - state.step)
        with _stop_requests(escalate=group.size == 1) as signals, closing(prefetched(updates, AHEAD)) as feed:
            for update in meter.waiting(feed):
                state.step += 1
                agreed = self._update(update, state, meter, self._requests(state, signals, state.seconds - saved))
                clock.tick()
                progress.advance()
                finished = state.step >= settings.updates
                if state.step == 1 or state.step % settings.log_updates == 0:
                    self._log(state, meter, progress)
                if finished or agreed.stop or agreed.checkpoint:
                    self._divergence.check(state)
                # A checkpoint of a run that may be diverging would push out a good one.
                if finished or agreed.stop or (agreed.checkpoint and not self._divergence.in_a_row):
                    hooks.save(state, progress, validate=finished or not agreed.stop)
                    clock.tick()
                    saved = state.seconds
                hooks.check()
                if hooks.is_done(state):
                    return
                if agreed.stop:
                    raise Interrupted(f"stopped at update {state.step}, saved", agreed.stop)

    def _updates(self, state: RunState, hooks: Hooks) -> Iterator[Update]:
        """Updates from the state on, epoch after epoch; runs in a thread, ahead of the loop."""
        epoch, offset = state.epoch, state.offset
        while True:
            plan = hooks.plan(epoch)
            for number in range(offset, len(plan)):
                rows, size = plan.rows(number), state.device_tokens
                lengths = self.corpus.lengths(rows)
                batches = self._gradients.micro_batches(rows, lengths, size)
                yield Update(epoch, number, rows, lengths, size, batches)
            epoch, offset = epoch + 1, 0

    def _requests(self, state: RunState, signals: list[int], seconds: float) -> Requests:
        """What this rank asks for after the update at hand, `seconds` after the last checkpoint."""
        self.group.note(state.step)
        if self.group.is_orphaned():
            signals.append(signal.SIGTERM)
        updates, minutes = self.settings.checkpoint_updates, self.settings.checkpoint_minutes
        is_due = state.step % updates == 0 if updates else minutes is not None and seconds >= 60 * minutes
        return Requests(max(signals, default=0), self.group.leads and is_due)

    def _update(self, update: Update, state: RunState, meter: Meter, requests: Requests) -> Requests:
        """Computes the gradients, clips them and applies Adam unless one is not finite; gives what the ranks agreed on.

        Once the gradients are there nothing waits for a GPU: whether the update was skipped is looked at later.
        """
        with factors_rounded(short_factors(self.settings.precision)):
            sums, agreed = self._gradients.compute(update, state, requests)
        norm = self._clip()
        skipped = norm.isfinite().logical_not()
        self.optimizer.update(state.step, skipped)
        flops = self.objective.flops(*update.lengths)
        state.epoch, state.offset = update.epoch, update.offset + 1
        state.tokens += update.lengths.target_tokens
        state.flops += flops
        meter.add(sums, update.lengths, flops, norm)
        self._divergence.note(state, update.rows, skipped)
        return agreed

    def _clip(self) -> Tensor:
        """Clips the gradients; gives their norm () before that."""
        norm = get_total_norm([parameter.grad for parameter in self._parameters if parameter.grad is not None])
        if self.settings.clip_norm is not None:
            clip_grads_with_norm_(self._parameters, self.settings.clip_norm, norm)
        return norm

    def _log(self, state: RunState, meter: Meter, progress: Progress) -> None:
        self._divergence.check(state)
        figures = meter.figures()
        rate = self.optimizer.rate(state.step)
        at = {"step": state.step, "epoch": state.epoch, "seconds": state.seconds, "tokens": state.tokens}
        left = (self.settings.updates - state.step) * figures["seconds_per_update"]
        progress.log(at | {"learning_rate": rate} | figures | {"skipped": state.skipped}, left)


class _Outcome(NamedTuple):
    """An update, and whether it was skipped, which a GPU may not have told yet."""

    step: int
    rows: Rows
    skipped: Tensor
    """(), on the host; valid once the copy is done"""
    copied: torch.cuda.Event | None
    """When a GPU has copied it; None on a CPU"""


class _Divergence:
    """Counts skipped updates, and raises UserError once training has diverged."""

    def __init__(self, parameters: Sequence[nn.Parameter], corpus: Corpus, console: Console) -> None:
        self._parameters, self._corpus, self._console = parameters, corpus, console
        self._unseen: list[_Outcome] = []
        self.in_a_row: list[_Outcome] = []  # skipped updates up to the last one counted

    def note(self, state: RunState, rows: Rows, skipped: Tensor) -> None:
        """Takes note of an update of some pairs, `skipped` () on the device.

        Once in a while it counts those that a GPU is done with, so that nothing waits; the same ones on all ranks.
        """
        copied = None
        if skipped.is_cuda:
            skipped, copied = skipped.to("cpu", non_blocking=True), torch.cuda.Event()
            copied.record()
        self._unseen.append(_Outcome(state.step, rows, skipped, copied))
        under_way = 0 if copied is None else MANY
        if len(self._unseen) >= MANY + under_way:
            self.count(state, under_way)

    def count(self, state: RunState, leave: int = 0) -> None:
        """Counts the skipped updates in the run's state, but for the last ones, as many as it is to leave.

        Raises UserError where there were many in a row.
        """
        end = len(self._unseen) - leave
        outcomes, self._unseen = self._unseen[:end], self._unseen[end:]
        for outcome in outcomes:
            if outcome.copied is not None:
                outcome.copied.synchronize()
            skipped = bool(outcome.skipped)
            self.in_a_row = [*self.in_a_row, outcome] if skipped else []
            state.skipped += skipped
            if skipped:
                self._console.say(f"update {outcome.step}: skipped, its gradient is not finite")
            if len(self.in_a_row) >= MANY:
                raise self._too_many()

    def check(self, state: RunState) -> None:
        """Also raises UserError once a weight is no longer a number, before it is saved over good checkpoints."""
        self.count(state)
        norm = float(get_total_norm([parameter.detach() for parameter in self._parameters]))
        if not math.isfinite(norm):
            raise UserError(
                f"training diverged: the norm of the weights is {norm} after update {state.step}",
                REMEDY + "earlier checkpoints are intact",
            )

    def _too_many(self) -> UserError:
        first = self.in_a_row[0]
        lines = sorted(self._corpus.lines(first.rows))
        shown = ", ".join(f"{line:,}" for line in lines[:8]) + (" …" if len(lines) > 8 else "")
        return UserError(
            f"training diverged: {MANY} updates in a row had gradients that are not finite, update {first.step} "
            f"(data.train, {len(lines):,} lines: {shown}) and those after it",
            REMEDY + "checkpoints are intact",
        )


@contextmanager
def _stop_requests(escalate: bool) -> Iterator[list[int]]:
    """Collects SIGINT, SIGTERM and SIGHUP, so that the current update can be finished.

    With `escalate` a second signal acts as if nobody collected it. Workers of a launcher may receive a signal twice,
    from it and from the terminal, and take both as one. A signal that is ignored, as SIGHUP under nohup, stays so.
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
