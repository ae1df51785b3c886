"""Gradients of an update: accumulated over micro-batches that fit the devices' memory, and added up over all ranks."""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from nmt.batch import Batch
from nmt.console import Console
from nmt.data.batches import Packer, deal_update, largest_batch, make_batch, split_update
from nmt.data.corpus import Corpus, Lengths, Rows
from nmt.errors import UserError
from nmt.recipe import CPU_DEVICE_TOKENS, Training
from nmt.training.distributed import Group
from nmt.training.loss import Objective
from nmt.training.memory import SHARE, largest_fitting
from nmt.training.meter import Sums
from nmt.training.optimizer import Optimizer
from nmt.training.packing import use_packing
from nmt.training.precision import autocast_dtype
from nmt.training.state import RunState


@dataclass(frozen=True)
class Update:
    """One update of the plan, and this rank's share of it."""

    epoch: int
    offset: int
    """Number of the update in its epoch, counted from 0"""
    rows: Rows
    """(pairs,) of the corpus, over all ranks"""
    lengths: Lengths
    """Of these pairs"""
    device_tokens: int
    """Size of the micro-batches"""
    batches: list[Batch]
    """The micro-batches of this rank"""


class Requests(NamedTuple):
    """What a rank asks for after an update or, once the ranks have agreed, what all of them do."""

    stop: int
    """Number of the signal to stop by; 0 where there was none"""
    checkpoint: bool


class Gradients:
    """Computes the gradients of updates; the same on any number of devices, but for rounding and dropout."""

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
        self._objective, self._optimizer, self._corpus, self._settings = objective, optimizer, corpus, settings
        self._group, self._device, self._console = group, device, console
        self._autocast = autocast_dtype(settings.precision, device)
        self._parallel = group.parallel(objective)
        self._copies = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._packer: Packer | None = None
        if use_packing(objective.model.config, settings, device):
            self._packer = Packer(-(-settings.batch_tokens // group.size), corpus.longest() + 1)

    def compute(self, update: Update, state: RunState, requests: Requests) -> tuple[Sums, Requests]:
        """Leaves the gradients of an update in the parameters of every rank; gives what the ranks agreed on.

        Where a device runs out of memory, all ranks halve their micro-batches and begin the update anew.
        """
        while True:
            if update.device_tokens != state.device_tokens:  # halved since the batches were made
                batches = self.micro_batches(update.rows, update.lengths, state.device_tokens)
            else:
                batches = update.batches
            seed = np.random.SeedSequence((self._settings.seed, state.step, self._group.rank))
            torch.manual_seed(int(seed.generate_state(1, np.uint64)[0]))
            sums, agreed = self._accumulate(batches, update.lengths.target_tokens, requests)
            if sums is not None:
                return sums, agreed
            self._clear()
            self._halve(state)

    def micro_batches(self, rows: Rows, lengths: Lengths, device_tokens: int) -> list[Batch]:
        """This rank's stripe of the micro-batches of an update."""
        split = split_update if self._packer is None else deal_update
        parts = split(*lengths, device_tokens, self._group.size)
        batches = [self._batch(rows[part], device_tokens) for part in parts[self._group.rank :: self._group.size]]
        return [batch.pin() for batch in batches] if self._device.type == "cuda" else batches

    def _batch(self, rows: Rows, device_tokens: int) -> Batch:
        """Read pairs into a micro-batch, padded or packed as all of this run are."""
        batch = make_batch(self._corpus, rows)
        return batch if self._packer is None else self._packer.pack(batch, device_tokens)

    def _accumulate(self, batches: list[Batch], tokens: int, requests: Requests) -> tuple[Sums | None, Requests]:
        """Forward and backward passes of all micro-batches of an update with so many target tokens over all ranks.

        The ranks agree before the last backward pass, the only one that exchanges gradients. Gives no sums where
        memory ran out on one of them.
        """
        scale = self._group.size / tokens  # the mean over ranks, which DistributedDataParallel takes, is then the sum
        sums, last = Sums(), None
        try:
            for batch in batches[:-1]:
                with self._local():
                    loss, nll = self._forward(batch)
                    (loss * scale).backward()
                sums.add(loss.detach(), nll, batch.num_cells)
            last = self._forward(batches[-1])
        except torch.OutOfMemoryError:
            pass
        out_of_memory, stop, checkpoint = self._group.largest(last is None, *requests)
        agreed = Requests(stop, bool(checkpoint))
        if out_of_memory or last is None or not self._exchange(last[0] * scale, batches[-1]):
            return None, agreed
        sums.add(last[0].detach(), last[1], batches[-1].num_cells)
        return sums, agreed

    def _exchange(self, loss: Tensor, batch: Batch) -> bool:
        """The last backward pass, which also adds up the gradients of all ranks; gives whether memory sufficed."""
        try:
            with self._group.guard("adding up gradients"):
                loss.backward()
        except torch.OutOfMemoryError:
            if self._group.size > 1:  # the other ranks are in the midst of the exchange
                hint = f"--set training.device_tokens={max(1, batch.target_out.numel() // 2)}"
                raise UserError(f"{self._device}: out of memory", hint) from None
            return False
        return True

    def _forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        if self._parallel is not None:
            # Before the second update rank 0 tells the others in which order gradients come. This is done here, since
            # an error of the model below is none of the group.
            with self._group.guard("agreeing on the order of gradients"):
                self._parallel.reducer._rebuild_buckets()
        with torch.autocast(self._device.type, self._autocast, enabled=self._autocast is not None):
            loss, nll = (self._parallel or self._objective)(self._on_device(batch))
        return loss, nll

    def _on_device(self, batch: Batch) -> Batch:
        """Copy a micro-batch to the device; to a GPU on a stream of its own, beside what it computes meanwhile."""
        if self._copies is None:
            return batch.to(self._device)
        with torch.cuda.stream(self._copies):
            copied = batch.to(self._device)
        computing = torch.cuda.current_stream(self._device)
        computing.wait_stream(self._copies)
        copied.hold(computing)
        return copied

    def _local(self) -> AbstractContextManager[None]:
        """Keeps gradients on this rank for now."""
        return self._parallel.no_sync() if self._parallel is not None else nullcontext()

    def _clear(self) -> None:
        """Drops what an update that ran out of memory left behind."""
        self._optimizer.clear()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        if self._parallel is not None:  # ranks that finished their last forward pass wait for its backward pass
            with self._group.guard("beginning an update anew"):
                self._forward(self._batch(np.empty(0, np.int64), device_tokens=1))[0].backward()
            self._optimizer.clear()

    def _halve(self, state: RunState) -> None:
        if state.device_tokens == 1:
            raise UserError(
                f"{self._device}: out of memory at update {state.step} with one sentence at a time",
                "use a smaller model, or lower data.max_length",
            )
        state.device_tokens //= 2
        self._console.say(
            f"update {state.step}: out of memory; from here on micro-batches have half the size, "
            f"{state.device_tokens:,} tokens"
        )

    # --- the size of micro-batches ---------------------------------------------------------------------------

    def choose_size(self, state: RunState) -> None:
        """Sets the size of micro-batches in the state of a run, unless it was chosen for the same devices before."""
        # Threads of a CPU do not count: memory does not depend on them.
        name = torch.cuda.get_device_name(self._device) if self._device.type == "cuda" else "CPU"
        names = Counter(name for (name,) in self._group.gather([name]))
        place = " + ".join(f"{number} × {name}" for name, number in sorted(names.items()))
        kept = state.device_tokens if state.place == place else 0  # other devices hold more or less
        state.device_tokens = kept or self._settings.device_tokens or self._fitting_tokens()
        state.place = place

    def _fitting_tokens(self) -> int:
        """Size of a micro-batch where the recipe does not say: what the memory of the smallest device holds."""
        if self._device.type != "cuda":
            return CPU_DEVICE_TOKENS
        longest = self._corpus.longest() + 1
        least = 2 * longest  # two rows, see _probe
        most = max(least, 2 * -(-self._settings.batch_tokens // self._group.size))  # a whole share, however padded
        free, _ = torch.cuda.mem_get_info(self._device)
        limit = int(SHARE * (free + torch.cuda.memory_reserved(self._device)))  # what others hold is not to be had
        fitting = -self._group.largest(-largest_fitting(self._measure, least, most, limit))[0]
        self._console.say(f"micro-batches of {fitting:,} tokens fit the memory of the device")
        return fitting

    def _measure(self, tokens: int) -> int:
        """Bytes that a GPU needs for an update of one micro-batch of so many tokens."""
        torch.cuda.reset_peak_memory_stats(self._device)
        try:
            with self._local():
                self._forward(self._probe(tokens))[0].backward()
        finally:  # where memory ran out, some of the gradients are there, and would be added to those of an update
            self._optimizer.clear()
        return torch.cuda.max_memory_allocated(self._device) + self._optimizer.bytes_to_come()

    def _probe(self, tokens: int) -> Batch:
        """A micro-batch of so many tokens on each side.

        If it is padded, it has two rows or more, and lengths that differ, because torch.compile would make other graphs
        for a single row and for equal lengths, of no use to most batches.
        """
        if self._packer is not None:
            return self._packer.pack(largest_batch(self._corpus, tokens), tokens)
        longest = self._corpus.longest() + 1
        ids = torch.ones(max(2, -(-tokens // longest)), longest, dtype=torch.int64)
        source = ids[:, 1:].clone() if self._corpus.has_source else None
        return Batch(source, ids, ids, torch.arange(ids.numel()))
