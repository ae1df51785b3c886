"""A run and its updates: `Run` trains to the end and saves, `Trainer.update` shows one update from batch to log.

The same on any number of devices. Everything random is a pure function of (seed, step, rank), so a resumed run repeats
what an unbroken one does.
"""

from __future__ import annotations

import os
import shlex
import signal
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from nmt.checkpoint.reading import checkpoint_path, prune
from nmt.checkpoint.writing import Checkpoints, add_info
from nmt.data.batch import Batch
from nmt.data.corpus import Corpus
from nmt.data.epochs import AHEAD, EpochPlans
from nmt.recipe import Recipe, Training
from nmt.system.console import Console, clock
from nmt.system.errors import Interrupted, UserError
from nmt.text.sentences import TrainedLengths
from nmt.training.arithmetic import autocast_dtype, factors_rounded, short_factors
from nmt.training.batches import MicroBatches, Update, prefetched
from nmt.training.distributed import Group, stop_requests
from nmt.training.loss import Divergence, Objective
from nmt.training.optimizer import Optimizer
from nmt.training.plan import summary
from nmt.training.progress import Meter, Progress, Reporting, Sums, show_progress
from nmt.training.run_files import METRICS
from nmt.training.state import BestScore, Clock, RunState, cost_of
from nmt.training.validation import Validation


class Requests(NamedTuple):
    """What a rank asks for after an update or, once the ranks have agreed, what all of them do."""

    stop: int = 0
    """Number of the signal to stop by; 0 where there was none"""
    checkpoint: bool = False


class Trainer:
    """Makes the updates of one model; all ranks make the same ones."""

    def __init__(
        self,
        objective: Objective,
        optimizer: Optimizer,
        corpus: Corpus,
        settings: Training,
        group: Group,
        device: torch.device,
        console: Console,
        state: RunState,
    ) -> None:
        self.objective, self.optimizer, self.corpus, self.settings = objective, optimizer, corpus, settings
        self.group, self.device, self.console, self.state = group, device, console, state
        self.micro_batches = MicroBatches(objective.model.config, corpus, settings, group, device)
        self.divergence = Divergence(objective, corpus, console, state)
        self._parameters = list(objective.parameters())
        self._autocast = autocast_dtype(settings.precision, device)
        self._parallel = group.parallel(objective)
        self._copies = torch.cuda.Stream(device) if device.type == "cuda" else None

    def start(self, progress: Progress) -> None:
        """Choose the size of micro-batches, and start the clock; `update` reports to `progress`."""
        self.micro_batches.choose_size(self.state, self._memory_of, self.console)
        self.clock, self.meter = Clock(self.state, self.group.size, self.device), Meter(self.device, self.group)
        self.progress = progress
        self.objective.train()

    def update(self, update: Update, requests: Requests) -> Requests:
        """Make one update (section 5.3); return what the ranks have agreed to do after it.

        Once the gradients are there nothing waits for a GPU: whether the update was skipped is looked at later.
        """
        state = self.state
        state.step += 1
        with factors_rounded(short_factors(self.settings.precision)):
            sums = None
            while sums is None:
                # 1. Gradients of the micro-batches, and 2. their sum over all ranks.
                sums, agreed = self.gradients(update, requests)
                if sums is None:
                    self._halve_micro_batches()
        # 3. Clip them by their norm over all parameters.
        norm = self._clip()
        # 4. Adam, unless a gradient is not finite.
        skipped = norm.isfinite().logical_not()
        self.optimizer.update(state.step, skipped)
        # 5. Count and log.
        flops = self.objective.flops(*update.lengths)
        state.epoch, state.offset = update.epoch, update.offset + 1
        state.tokens += update.lengths.target_tokens
        state.flops += flops
        self.meter.add(sums, update.lengths, flops, norm)
        self.divergence.note(update.rows, skipped)
        self.clock.tick()
        self.progress.advance()
        if state.step == 1 or state.step % self.settings.log_updates == 0:
            self._log()
        return agreed

    def gradients(self, update: Update, requests: Requests) -> tuple[Sums | None, Requests]:
        """Leave the gradients of an update in the parameters of every rank; no sums if memory ran out on one of them.

        The loss is the sum over the target tokens of the whole update, divided by their number. The ranks agree before
        the last backward pass, the only one that exchanges gradients.
        """
        seed = np.random.SeedSequence((self.settings.seed, self.state.step, self.group.rank))
        torch.manual_seed(int(seed.generate_state(1, np.uint64)[0]))
        batches = self.micro_batches.of(update, self.state.device_tokens)
        # DistributedDataParallel takes the mean over ranks, which is then the sum.
        scale = self.group.size / update.lengths.target_tokens
        sums, last = Sums(), None
        with suppress(torch.OutOfMemoryError):
            for batch in batches[:-1]:
                with self._without_exchange():
                    loss, nll = self._forward(batch)
                    (loss * scale).backward()
                sums.add(loss.detach(), nll, batch.num_cells)
            last = self._forward(batches[-1])
        ran_out, stop, checkpoint = self.group.largest(last is None, *requests)
        agreed = Requests(stop, bool(checkpoint))
        if ran_out or last is None or not self._all_reduce(last[0] * scale, batches[-1]):
            return None, agreed
        sums.add(last[0].detach(), last[1], batches[-1].num_cells)
        return sums, agreed

    def _forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The sums () of loss and negative log-likelihood over the target tokens of a micro-batch."""
        if self._parallel is not None:
            # Before the second update rank 0 tells the others in which order gradients come. This is done here, since
            # an error of the model below is none of the group.
            with self.group.guard("agreeing on the order of gradients"):
                self._parallel.reducer._rebuild_buckets()
        with torch.autocast(self.device.type, self._autocast, enabled=self._autocast is not None):
            loss, nll = (self._parallel or self.objective)(self._on_device(batch))
        return loss, nll

    def _on_device(self, batch: Batch) -> Batch:
        """Copy a micro-batch to the device; to a GPU on a stream of its own, beside what it computes meanwhile."""
        if self._copies is None:
            return batch.to(self.device)
        with torch.cuda.stream(self._copies):
            copied = batch.to(self.device)
        computing = torch.cuda.current_stream(self.device)
        computing.wait_stream(self._copies)
        copied.hold(computing)
        return copied

    def _without_exchange(self) -> AbstractContextManager[None]:
        """Keep gradients on this rank for now."""
        return self._parallel.no_sync() if self._parallel is not None else nullcontext()

    def _all_reduce(self, loss: Tensor, batch: Batch) -> bool:
        """Run the last backward pass, which also adds up the gradients of all ranks; tell whether memory sufficed."""
        try:
            with self.group.guard("adding up gradients"):
                loss.backward()
        except torch.OutOfMemoryError:
            if self.group.size > 1:  # the other ranks are in the midst of the exchange
                hint = f"--set training.device_tokens={max(1, batch.target_out.numel() // 2)}"
                raise UserError(f"{self.device}: out of memory", hint) from None
            return False
        return True

    def _halve_micro_batches(self) -> None:
        """Drop what an update that ran out of memory left behind, on all ranks, to begin it anew."""
        state = self.state
        self.optimizer.clear()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        if self._parallel is not None:  # ranks that finished their last forward pass wait for its backward pass
            with self.group.guard("beginning an update anew"):
                self._forward(self.micro_batches.empty())[0].backward()
            self.optimizer.clear()
        if state.device_tokens == 1:
            raise UserError(
                f"{self.device}: out of memory at update {state.step} with one sentence at a time",
                "use a smaller model, or lower data.max_length",
            )
        state.device_tokens //= 2
        self.console.say(
            f"update {state.step}: out of memory; from here on micro-batches have half the size, "
            f"{state.device_tokens:,} tokens"
        )

    def _clip(self) -> Tensor:
        """Clip the gradients to training.clip_norm; return their norm () before that."""
        norm = get_total_norm([parameter.grad for parameter in self._parameters if parameter.grad is not None])
        if self.settings.clip_norm is not None:
            clip_grads_with_norm_(self._parameters, self.settings.clip_norm, norm)
        return norm

    def _log(self) -> None:
        state = self.state
        self.divergence.check()
        figures = self.meter.figures()
        at = {"step": state.step, "epoch": state.epoch, "seconds": state.seconds, "tokens": state.tokens}
        rate = {"learning_rate": self.optimizer.rate(state.step)}
        left = (self.settings.updates - state.step) * figures["seconds_per_update"]
        self.progress.log(at | rate | figures | {"skipped": state.skipped}, left)

    def _memory_of(self, tokens: int) -> int:
        """Bytes that a GPU needs for an update of one micro-batch of so many tokens."""
        torch.cuda.reset_peak_memory_stats(self.device)
        try:
            with self._without_exchange():
                self._forward(self.micro_batches.probe(tokens))[0].backward()
        finally:  # where memory ran out, some of the gradients are there, and would be added to those of an update
            self.optimizer.clear()
        return torch.cuda.max_memory_allocated(self.device) + self.optimizer.bytes_to_come()


@dataclass
class Run:
    """One run in its directory: its updates, checkpoints, scores and report."""

    recipe: Recipe
    out: Path
    trainer: Trainer
    epochs: EpochPlans
    id: str
    data: str
    """Fingerprint of the prepared data"""
    lengths: TrainedLengths | None
    """Of the training pairs of a translator; None on ranks that write no checkpoints"""
    best: BestScore
    unscored: Path | None
    """The checkpoint that the run resumes from, if it was killed before that was scored"""
    validation: Validation | None
    """None without a development set"""
    reporting: Reporting | None
    """None on ranks other than the first"""
    checkpoints: Checkpoints

    def __post_init__(self) -> None:
        self.state, self.group, self.console = self.trainer.state, self.trainer.group, self.trainer.console
        self.model = self.trainer.objective.model
        self.parameters = sum(parameter.numel() for parameter in self.model.parameters())

    def train(self) -> None:
        """Train from where the run stands to its end; report how it ended and what it cost."""
        before = self.state.step
        if self.unscored is not None or not self._is_done():
            if self.reporting is not None:
                self.reporting.begin(self.parameters, scored=self.unscored is None)
            for line in self._opening():
                self.console.say(line)
            with self.reporting or nullcontext():
                self._train()
                if self.group.leads and self.state.step > before:  # with the time of the last validation
                    path = checkpoint_path(self.out, self.state.step)
                    add_info(path, {"cost": cost_of(self.state)})
        if self.group.leads:
            self.epochs.forget()
            for line in summary(self.state, self.out, *self._ending(trained=self.state.step > before)):
                self.console.say(line)

    def _train(self) -> None:
        leads, state, settings = self.group.leads, self.state, self.recipe.training
        if leads:
            prune(self.out, settings.keep_last)  # which a run that was killed may have left to do
        metrics = self.out / METRICS if leads else Path(os.devnull)
        board = self.out / "tensorboard" if leads and settings.tensorboard else None
        with show_progress(self.console, metrics, state.step, settings.updates, board) as progress:
            try:
                if self.unscored is not None:
                    self._score(self.unscored, progress)
                if not self._is_done():
                    self._make_updates(progress)
            finally:
                self.checkpoints.wait()

    def _make_updates(self, progress: Progress) -> None:
        """Make updates to the end of the run; raise Interrupted once a signal asks to stop, with everything saved."""
        trainer, state, settings = self.trainer, self.state, self.recipe.training
        trainer.start(progress)
        saved = state.seconds
        updates = islice(trainer.micro_batches.updates(self.epochs.plan, state), settings.updates - state.step)
        with stop_requests(escalate=self.group.size == 1) as signals, closing(prefetched(updates, AHEAD)) as ahead:
            for update in trainer.meter.waiting(ahead):
                agreed = trainer.update(update, self._requests(signals, state.seconds - saved))
                finished = state.step >= settings.updates
                if finished or agreed.stop or agreed.checkpoint:
                    trainer.divergence.check()
                # A checkpoint of a run that may be diverging would push out a good one.
                if finished or agreed.stop or (agreed.checkpoint and not trainer.divergence.in_a_row):
                    self.save(progress, validate=finished or not agreed.stop)
                    trainer.clock.tick()
                    saved = state.seconds
                self.checkpoints.check()
                if self.reporting is not None:
                    self.reporting.check()
                if self._is_done():
                    return
                if agreed.stop:
                    raise Interrupted(
                        f"stopped at update {state.step}, saved in {self.out}; to resume, run the same command again",
                        agreed.stop,
                    )

    def _requests(self, signals: list[int], seconds: float) -> Requests:
        """What this rank asks for after the next update, `seconds` after the last checkpoint."""
        if self.group.is_orphaned():
            signals.append(signal.SIGTERM)
        updates, minutes = self.recipe.training.checkpoint_updates, self.recipe.training.checkpoint_minutes
        step = self.state.step + 1
        is_due = step % updates == 0 if updates else minutes is not None and seconds >= 60 * minutes
        return Requests(max(signals, default=0), self.group.leads and is_due)

    def _is_done(self) -> bool:
        """Tell whether all updates are done, or the score has not improved for `training.patience` checkpoints."""
        settings = self.recipe.training
        out_of_patience = settings.patience is not None and self.best.without_improvement >= settings.patience
        return self.state.step >= settings.updates or out_of_patience

    def save(self, progress: Progress, *, validate: bool) -> None:
        """Write a checkpoint in the background, then score it if told to."""
        state, validate = self.state, validate and self.validation is not None
        path, step = checkpoint_path(self.out, state.step), state.step
        if self.reporting is not None:
            info: dict[str, Any] = {"run": self.id, "step": step, "data": self.data}
            info |= {"cost": cost_of(state), "unscored": validate}
            info |= {} if self.lengths is None else {"lengths": self.lengths.model_dump()}
            training = self.trainer.optimizer.state(), asdict(state)
            figures = {} if validate else {"step": step, **self.reporting.figures()}

            def written() -> None:
                if not validate:  # otherwise it is reported with its scores
                    progress.record(figures)
                    progress.checkpoint(step, path)

            self.checkpoints.write(path, dict(self.model.named_parameters()), training, info, written)
        if validate:
            self._score(path, progress)

    def _score(self, path: Path, progress: Progress) -> None:
        """Score the model, whose checkpoint is `path`, on the development set."""
        assert self.validation is not None
        with progress.validating():
            task, dev = self.recipe.task, self.validation(self.model)
        is_best, reporting = self.best.add(dev.score, task), self.reporting
        if reporting is not None:
            examples = reporting.keep(dev.hypotheses)
            scores = dev.by_name(task.metric)
            info: dict[str, Any] = {"scores": scores, "signature": dev.signature}
            info |= {"without_improvement": self.best.without_improvement, "unscored": False}
            step = self.state.step
            # Before the checkpoint has its scores, so that a run that is killed in between does it again.
            progress.record({"step": step, **reporting.figures(), **{f"valid_{name}": scores[name] for name in scores}})
            said = "  ".join(f"dev {name} {figure:.2f}" for name, figure in dev.shown(task.label).items())
            said += "  best" if is_best else ""

            def added() -> None:
                progress.checkpoint(step, path, said, examples)
                reporting.refresh()

            self.checkpoints.add(path, info, added)

    def _opening(self) -> tuple[str, str]:
        begin, trainer, training = "starting", self.trainer, self.recipe.training
        if self.state.step:
            is_new = (self.state.epoch, self.state.offset) == (0, 0)  # by training.init_state
            begin = f"{'going on from' if is_new else 'resuming at'} update {self.state.step:,}"
        devices = f"{self.group.size} devices, {trainer.device.type}" if self.group.size > 1 else str(trainer.device)
        size, pairs = self.parameters / 1e6, f"{len(trainer.corpus):,} {self.recipe.task.unit}"
        return (
            f"{begin}: {size:.2f} M parameters, {pairs}, on {devices}, into {self.out}",
            f"  {training.updates:,} updates of {training.batch_tokens:,} tokens",
        )

    def _ending(self, trained: bool) -> tuple[str, str]:
        """Why the run is finished, and what to do next."""
        updates, checkpoints = self.recipe.training.updates, self.best.without_improvement
        done = f"{self.state.step:,} of {updates:,} updates in {clock(self.state.seconds)}"
        more = f"--set training.updates={2 * self.state.step}"  # more than `updates`, even if that was lowered
        if self.state.step < updates:
            done = f"no better dev {self.recipe.task.label} for {checkpoints} checkpoints; {done}"
            more = f"--set training.patience={2 * checkpoints}"
        return done, shlex.join(["nmt", "average", str(self.out)]) if trained else f"to continue: {more}"
