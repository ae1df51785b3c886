"""Updates of a model: `Trainer.update` performs one; `nmt.training.run` repeats it and saves checkpoints.

The code is the same for any number of devices. All randomness is a pure function of (seed, step, rank), so a resumed
run reproduces an uninterrupted one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from nmt.compute.choice import factors_rounded, for_training, product_dtype
from nmt.data.corpus import Corpus
from nmt.model.batch import Batch
from nmt.model.transformer import Transformer, computed_by
from nmt.recipe import Training
from nmt.system.console import Console
from nmt.system.errors import UserError
from nmt.training.batches import MicroBatches, Update
from nmt.training.cost import training_flops
from nmt.training.distributed import MILLION, Group, Requests
from nmt.training.graphs import Graphs
from nmt.training.loss import Divergence, Objective, compile_for, compile_parts
from nmt.training.optimizer import Optimizer
from nmt.training.progress import Losses, Meter, Progress
from nmt.training.run_files import RunState

CHECKED = 50  # maximum updates between counts of skipped updates; counting synchronises with the GPU


class Trainer:
    """Updates of one model, performed by all ranks together."""

    def __init__(self, model: Transformer, corpus: Corpus, settings: Training, group: Group, console: Console) -> None:
        """Set up a new run, with a compiled model if `settings` ask for it; assign `state` to resume one."""
        self.corpus, self.settings, self.group, self.console = corpus, settings, group, console
        self.device, self.state = group.device, RunState(step=0, epoch=0, offset=0)
        compiled = settings.compile or (settings.compile is None and self.device.type == "cuda")
        self._compiles_first = compiled and self.device.type == "cuda"
        self.dtype = product_dtype(settings.precision, self.device, model.config.d_model)
        self.model = computed_by(model, for_training(self.device, self.dtype, compiled=compiled))
        self.objective = Objective(self.model, settings.label_smoothing)
        if compiled:
            compile_parts(self.objective)
        self.optimizer = Optimizer(self.model, model.config.d_model, settings)
        self.micro_batches = MicroBatches(model.config, corpus, settings, group)
        self._parallel: DistributedDataParallel | None = None
        self._drifts = False  # whether ranks have had other weights than rank 0
        self._graphs = Graphs(self._add_gradients, self.objective, self.optimizer, self.device, self._say)

    def start(self, progress: Progress, seconds_left: Callable[[], float] = lambda: math.inf) -> None:
        """Wrap the model for all ranks, choose the micro-batch size, start the clock, and report to `progress`.

        `seconds_left` tells how soon the time is up.
        """
        self.objective.train()
        self.model.reserve(self.corpus.longest() + 1)  # before anything is recorded that reads the tables
        if self._compiles_first:
            compile_for(self.model, self._add_gradients, self.micro_batches.probes())
        self._parallel = self.group.parallel(self.objective, self.optimizer)
        self._graphs.start(self.group.size == 1 and self.micro_batches.packed)
        self.micro_batches.choose_size(self.state, self._memory_of, self.console)
        self.divergence = Divergence(self.model, self.corpus, self.console, self.state)
        self.meter, self.progress = Meter(self.state, self.group, self.dtype), progress
        self._seconds_left = seconds_left

    def update(self, update: Update, requests: Requests) -> Requests:
        """Perform one update (section 5.3); return the requests that the ranks have agreed on.

        Once the gradients are computed, the host waits for the GPU only to log and, now and then, to count skips.
        """
        state = self.state
        state.step += 1
        with factors_rounded(self.settings.precision):
            # 1. Compute the micro-batches' gradients, and 2. sum them over all ranks.
            losses, agreed = self.gradients(update, requests)
            while losses is None:
                self._save_memory()
                losses, agreed = self.gradients(update, requests)
            # 3. Clip them by their global norm.
            norm = self.optimizer.clip(self.group.norm)
            # 4. Apply them with Adam or Muon, unless one is not finite.
            skipped, rate = norm.isfinite().logical_not(), self.optimizer.rate(state.step, agreed.spent / MILLION)
            self.optimizer.update(rate, skipped)
        self.group.wait()
        # 5. Count and log.
        flops = training_flops(self.model.config, self.model.output_embedding.num_embeddings, *update.lengths)
        state.epoch, state.offset = update.epoch, update.offset + 1
        self.meter.add(losses, update.lengths, flops, norm)
        self.divergence.note(update.rows, skipped)
        self.progress.advance(1)
        if state.step == 1 or state.step % self.settings.log_updates == 0:
            self._log(rate)
        elif state.step % CHECKED == 0:
            self.divergence.check()
        return agreed

    def equalise(self) -> None:
        """Give all ranks rank 0's weights and moments, from which those on unlike processors drift by rounding."""
        differed = self.group.equalise([*self.model.parameters(), *self.optimizer.state().values()])
        if differed and not self._drifts:
            self._drifts = True
            self.console.say(
                "ranks round differently, as on unlike processors: at each checkpoint, all get rank 0's weights"
            )

    def gradients(self, update: Update, requests: Requests) -> tuple[list[Losses] | None, Requests]:
        """Compute an update's gradients on every rank; return no losses if memory ran out on any of them.

        The loss is the mean over the whole update's target tokens. The ranks agree on their requests before they
        exchange gradients, which with DistributedDataParallel the last backward pass does.
        """
        seed = np.random.SeedSequence((self.settings.seed, self.state.step, self.group.rank))
        torch.manual_seed(int(seed.generate_state(1, np.uint64)[0]))
        batches = self.micro_batches.of(update, self.state.device_tokens)
        # DistributedDataParallel averages over ranks; scaling by their number makes it a sum.
        scale = (1 if self._parallel is None else self.group.size) / update.lengths.target_tokens
        losses, last, ran_out = list[Losses](), None, 1
        with suppress(torch.OutOfMemoryError):
            for batch in batches if self._parallel is None else batches[:-1]:
                with self.group.without_exchange():
                    losses.append((*self._graphs(self.micro_batches.on_device(batch), scale), batch.num_cells))
            if self._parallel is not None:
                last = self._forward(self.micro_batches.on_device(batches[-1]))
            ran_out = 0
        ran_out, stop, checkpoint, spent = self.group.largest(ran_out, *requests)
        agreed = Requests(stop, bool(checkpoint), spent)
        if ran_out:
            return None, agreed
        if last is not None:
            try:
                with self.group.guard("adding up gradients"):
                    (last[0] * scale).backward()
            except torch.OutOfMemoryError:  # the other ranks are already exchanging gradients
                hint = f"--set training.device_tokens={max(1, batches[-1].target_out.numel() // 2)}"
                raise UserError(f"{self.device}: out of memory", hint) from None
            losses.append((last[0].detach(), last[1], batches[-1].num_cells))
        self.group.add_up()
        return losses, agreed

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
            loss, nll = (self._parallel or self.objective)(batch)
        return loss, nll

    def _save_memory(self) -> None:
        """Do without CUDA graphs or else halve the micro-batch size; discard the update that ran out of memory."""
        state, had_graphs = self.state, self._graphs.stop("out of memory")
        torch.cuda.empty_cache()
        if had_graphs:
            return
        if self._parallel is not None:  # ranks whose last forward pass succeeded expect to exchange gradients
            with self.group.guard("beginning an update anew"):
                nothing = self.micro_batches.batch(np.empty(0, np.int64), 1)
                self._add_gradients(self.micro_batches.on_device(nothing))
            self.optimizer.clear()
        if state.device_tokens == 1:
            problem = f"{self.device}: out of memory at update {state.step} with one sentence at a time"
            raise UserError(problem, "use a smaller model, or lower data.max_length")
        state.device_tokens //= 2
        halved = f"micro-batches have half the size, {state.device_tokens:,} tokens"
        self._say(f"out of memory; from here on {halved}")

    def _say(self, what: str) -> None:
        self.console.say(f"update {self.state.step}: {what}")

    def _log(self, rate: float) -> None:
        """Log the metrics since the last log line and a learning rate; this synchronises with the GPU."""
        self.divergence.check()
        state, figures = self.state, self.meter.figures()
        at = {"step": state.step, "epoch": state.epoch, "seconds": state.seconds, "tokens": state.tokens}
        at["learning_rate"] = rate
        updates_left = (self.settings.updates - state.step) * figures["seconds_per_update"]
        left = max(0.0, min(updates_left, self._seconds_left()))
        self.progress.log(at | figures | {"skipped": state.skipped}, left)

    def _memory_of(self, tokens: int) -> int:
        """Return the bytes that a GPU needs for an update with several micro-batches of `tokens` tokens.

        The first backward pass allocates gradients while it frees activations, so that few of them count in its peak,
        at its beginning. All of them are there at the peaks of those after it. CUDA graphs have activations of their
        own, beside those of a micro-batch that is computed without one. The update itself, which is skipped, allocates
        what Muon works in.
        """
        before = torch.cuda.memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        try:
            for _ in range(2):  # the second one, as those of an update that is split, beside gradients
                with self.group.without_exchange():
                    self._add_gradients(self.micro_batches.probe(tokens))
            self.optimizer.update(0.0, torch.ones((), dtype=torch.bool, device=self.device))
        finally:  # running out of memory leaves partial gradients behind
            self.optimizer.clear()
        peak = torch.cuda.max_memory_allocated(self.device)
        return peak + (peak - before) * self._graphs.active
