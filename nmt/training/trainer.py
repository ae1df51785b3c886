"""Updates of a model: `Trainer.update` performs one; `nmt.training.run` repeats it and saves checkpoints.

The code is the same for any number of devices. All randomness is a pure function of (seed, step, rank), so a resumed
run reproduces an uninterrupted one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np
import torch
from torch import Tensor

from nmt.compute.choice import factors_rounded
from nmt.data.epochs import Update
from nmt.model.batch import Batch
from nmt.system.console import Console
from nmt.system.errors import UserError
from nmt.training.batches import MicroBatches
from nmt.training.distributed import MILLION, Group, Requests
from nmt.training.flops import training_flops
from nmt.training.graphs import Graphs
from nmt.training.learner import Learner
from nmt.training.loss import Divergence, compile_for
from nmt.training.meter import Losses, Meter
from nmt.training.progress import Progress

CHECKED = 50  # maximum updates between counts of skipped updates; counting synchronises with the GPU


class Trainer:
    """Updates of one model, performed by all ranks together."""

    def __init__(
        self,
        learner: Learner,
        group: Group,
        console: Console,
        progress: Progress,
        seconds_left: Callable[[], float] = lambda: math.inf,
    ) -> None:
        """Compile the model on a GPU, wrap it for all ranks, choose the micro-batch size, and start the clock.

        Report to `progress`; `seconds_left` tells how soon the time is up.
        """
        self.settings = learner.settings
        self.group = group
        self.console = console
        self.progress = progress
        self.model = learner.model
        self.objective = learner.objective
        self.optimizer = learner.optimizer
        self.state = learner.state
        self.device = group.device
        self.precision = learner.precision
        self.dtype = learner.dtype
        self._seconds_left = seconds_left
        self._drifts = False  # whether ranks have had other weights than rank 0
        config = self.model.config
        self.micro_batches = MicroBatches(config, learner.corpus, self.settings, group, learner.augmenter)
        self.objective.train()
        self.model.reserve(self.micro_batches.longest + 1)  # before anything is recorded that reads the tables
        self._computed: torch.nn.Module = self.objective  # while compiling; then with the exchange of gradients
        if learner.is_compiled and self.device.type == "cuda":
            compile_for(self.model, self._add_gradients, self.micro_batches.probes())
        self._computed = group.parallel(self.objective, self.optimizer)
        useful = group.size == 1 and self.micro_batches.packed
        self._graphs = Graphs(self._add_gradients, self.objective, self.optimizer, self.device, self._say, useful)
        self._choose_size()
        self.divergence = Divergence(self.model, learner.corpus, console, self.state)
        self.meter = Meter(self.state, group, self.precision)

    # --- one update (section 5.3) -----------------------------------------------------------------------------

    def update(self, update: Update, requests: Requests) -> Requests:
        """Perform one update; return the requests that the ranks have agreed on.

        Once the gradients are computed, the host waits for the GPU only to log and, now and then, to count skips.
        """
        state = self.state
        state.begin(update.epoch, update.offset)
        with factors_rounded(self.precision):
            # 1. Sum the gradients of all micro-batches of all ranks.
            losses, agreed = self.gradients(update, requests)
            while losses is None:
                self._save_memory()
                losses, agreed = self.gradients(update, requests)
            # 2. Clip them by their global norm.
            norm = self.optimizer.clip(self.group.norm)
            # 3. Apply them with Adam or Muon, unless one is not finite.
            skipped = norm.isfinite().logical_not()
            rate = self.optimizer.rate(state.step, agreed.spent / MILLION)
            self.optimizer.update(rate, skipped)
        self.group.wait()
        # 4. Count and log.
        self._count(update, losses, norm, skipped)
        if state.step == 1 or state.step % self.settings.log_updates == 0:
            self._log(rate)
        elif state.step % CHECKED == 0:
            self.divergence.check()
        return agreed

    def gradients(self, update: Update, requests: Requests) -> tuple[list[Losses] | None, Requests]:
        """Sum an update's gradients over micro-batches and ranks; return no losses if memory ran out on any rank.

        The loss is the mean over the whole update's target tokens. DistributedDataParallel exchanges gradients within
        the last backward pass, so the ranks agree before: on their requests, and that all have memory.
        """
        self._seed()
        batches = self.micro_batches.of(update, self.state.device_tokens)
        alone = batches  # whose gradients are not exchanged
        scale = 1 / update.lengths.target_tokens
        if self.group.exchanges_backward:
            alone = batches[:-1]
            # DistributedDataParallel averages over ranks; scaling by their number makes it a sum.
            scale = self.group.size / update.lengths.target_tokens
        losses = list[Losses]()
        last: tuple[Tensor, Tensor] | None = None
        ran_out = True
        with suppress(torch.OutOfMemoryError):
            for batch in alone:
                with self.group.without_exchange():
                    loss, nll = self._graphs(self.micro_batches.on_device(batch), scale)
                losses.append((loss, nll, batch.num_cells))
            if self.group.exchanges_backward:
                last = self._forward(self.micro_batches.on_device(batches[-1]))
            ran_out = False
        agreed = self.group.agree(requests._replace(ran_out=ran_out))
        if agreed.ran_out:
            return None, agreed
        if last is not None:
            loss, nll = last
            self.group.exchange(loss * scale, batches[-1].target_out.numel())
            losses.append((loss.detach(), nll, batches[-1].num_cells))
        self.group.add_up()
        return losses, agreed

    def _seed(self) -> None:
        """Seed dropout by the run's seed, the update and the rank."""
        seed = np.random.SeedSequence((self.settings.seed, self.state.step, self.group.rank))
        torch.manual_seed(int(seed.generate_state(1, np.uint64)[0]))

    def _add_gradients(self, batch: Batch, scale: Tensor | float = 1.0) -> tuple[Tensor, Tensor]:
        """Add the gradients of a micro-batch times `scale`; return its losses as `_forward` does."""
        loss, nll = self._forward(batch)
        (loss * scale).backward()
        return loss.detach(), nll

    def _forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the loss () and negative log-likelihood (), summed over target tokens, of a batch on the device."""
        self.group.agree_on_order()  # here, because errors in the forward pass are not communication errors
        # Without a cache, which the recording of a CUDA graph cannot have, and which saves nothing.
        with torch.autocast(self.device.type, torch.bfloat16, self.dtype == torch.bfloat16, cache_enabled=False):
            loss, nll = self._computed(batch)
        return loss, nll

    def _count(self, update: Update, losses: Sequence[Losses], norm: Tensor, skipped: Tensor) -> None:
        """Count what an update cost, and note whether it was skipped, without waiting for the device."""
        flops = training_flops(self.model.config, self.model.output_embedding.num_embeddings, *update.lengths)
        self.meter.add(losses, update.lengths, flops, norm)
        self.divergence.note(update.rows, skipped)
        self.progress.advance(1)

    def _log(self, rate: float) -> None:
        """Log the metrics since the last log line and a learning rate; this synchronises with the GPU."""
        self.divergence.check()
        state = self.state
        figures = self.meter.figures()
        at = {"step": state.step, "epoch": state.epoch, "seconds": state.seconds, "tokens": state.tokens}
        at["learning_rate"] = rate
        updates_left = (self.settings.updates - state.step) * figures["seconds_per_update"]
        left = max(0.0, min(updates_left, self._seconds_left()))
        self.progress.log(at | figures | {"skipped": state.skipped}, left)

    def _say(self, what: str) -> None:
        self.console.say(f"update {self.state.step}: {what}")

    # --- ranks ------------------------------------------------------------------------------------------------

    def equalise(self) -> None:
        """Give all ranks rank 0's weights and moments, from which those on unlike processors drift by rounding."""
        differed = self.group.equalise([*self.model.parameters(), *self.optimizer.state().values()])
        if differed and not self._drifts:
            self._drifts = True
            self.console.say(
                "ranks round differently, as on unlike processors: at each checkpoint, all get rank 0's weights"
            )

    # --- memory -----------------------------------------------------------------------------------------------

    def _choose_size(self) -> None:
        """Choose the micro-batch size, unless it was already chosen for the same devices, and say if these are new."""
        state = self.state
        place = self.micro_batches.place()
        if state.place not in ("", place):
            self.console.say(f"changed: devices from {state.place} to {place}; sums are rounded differently")
        kept = state.device_tokens if state.place == place else 0  # other devices differ in memory
        size = kept or self.settings.device_tokens or self.micro_batches.fitting(self._memory_of, self.console)
        state.compute_on(place, size)

    def _save_memory(self) -> None:
        """Do without CUDA graphs or else halve the micro-batch size; discard the update that ran out of memory."""
        state = self.state
        had_graphs = self._graphs.stop("out of memory")
        torch.cuda.empty_cache()
        if had_graphs:
            return
        if self.group.exchanges_backward:  # ranks whose last forward pass succeeded expect to exchange gradients
            with self.group.guard("beginning an update anew"):
                self._add_gradients(self.micro_batches.on_device(self.micro_batches.empty()))
            self.optimizer.clear()
        if state.device_tokens == 1:
            problem = f"{self.device}: out of memory at update {state.step} with one sentence at a time"
            raise UserError(problem, "use a smaller model, or lower data.max_length")
        state.compute_on(state.place, state.device_tokens // 2)
        halved = f"micro-batches have half the size, {state.device_tokens:,} tokens"
        self._say(f"out of memory; from here on {halved}")

    def _memory_of(self, tokens: int) -> int:
        """Return the bytes that a GPU needs for an update with several micro-batches of `tokens` tokens.

        Two micro-batches are computed. Memory peaks when a backward pass begins: the first one has hardly any gradients
        then, and the second one has all of them. The update, which is skipped, allocates what Muon works in.
        CUDA graphs have activations of their own, beside those of a micro-batch that is computed without one.
        """
        before = torch.cuda.memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        try:
            for _ in range(2):
                with self.group.without_exchange():
                    self._add_gradients(self.micro_batches.probe(tokens))
            self.optimizer.update(0.0, torch.ones((), dtype=torch.bool, device=self.device))
        finally:  # running out of memory leaves partial gradients behind
            self.optimizer.clear()
        peak = torch.cuda.max_memory_allocated(self.device)
        if self._graphs.active:
            return peak + (peak - before)
        return peak
