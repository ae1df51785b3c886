"""Recorded micro-batches: one launch for the hundreds of kernels of a forward and backward pass.

A graph reads and writes fixed addresses. So each shape has one micro-batch, into which others are copied, and the
gradients' tensors are kept. The kernels are those of separate launches, in the same order, and draw the same random
numbers: the results are equal to the bit.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nmt.compute.recorded import MOST, Recorded
from nmt.model.batch import Batch
from nmt.training.loss import Objective
from nmt.training.optimizer import Optimizer

Losses = tuple[Tensor, Tensor]
Work = Callable[[Batch, Tensor | float], Losses]
"""Add a micro-batch's gradients times a scale (), float64 if it is a tensor; return two losses ()."""


class Graphs:
    """`work` on micro-batches, recorded where their shape comes again."""

    def __init__(
        self,
        work: Work,
        objective: Objective,
        optimizer: Optimizer,
        device: torch.device,
        say: Callable[[str], None],
        useful: bool,
    ) -> None:
        """Do `work` with `objective` on `device`; record it where `useful`: on a single GPU, for packed micro-batches.

        Report with `say` if recording fails. Clear the gradients.
        """
        self._work = work
        self._objective = objective
        self._optimizer = optimizer
        self._weights = list(objective.parameters())
        self._recorded = Recorded(device, say, useful and device.type == "cuda")
        self._inputs: dict[tuple[object, ...], Batch] = {}  # what graphs read, by shape
        self._losses: dict[tuple[object, ...], Losses] = {}  # what they return
        self._scale = torch.ones((), dtype=torch.float64, device=device)
        optimizer.keep_gradients(self.active)
        optimizer.clear()

    @property
    def active(self) -> bool:
        """Whether work is recorded."""
        return self._recorded.active

    def stop(self, reason: str) -> bool:
        """Drop all graphs, record no more, say so, and clear the gradients. Return whether anything was recorded."""
        was_active = self._recorded.give_up(reason)
        self._forget()
        self._optimizer.clear()
        return was_active

    def __call__(self, batch: Batch, scale: float) -> Losses:
        """Do the work on a micro-batch on the device, without waiting for it.

        Raise torch.OutOfMemoryError, perhaps amid the work.
        """
        if not self.active:
            return self._work(batch, scale)
        shape = batch.shape()
        if shape in self._inputs:
            self._inputs[shape].copy_(batch)
        elif len(self._inputs) < MOST:
            self._inputs[shape] = batch.clone()
        else:
            return self._work(batch, scale)
        self._scale.fill_(scale)
        recorded = self._inputs[shape]

        def work() -> None:
            self._losses[shape] = self._work(recorded, self._scale)

        tables = self._objective.tables()
        if self._recorded.replay(shape, work, [self._scale, *tables], weights=self._with_gradients()):
            loss, nll = self._losses[shape]
            return loss.clone(), nll.clone()  # the next replay overwrites them
        if not self._recorded.active:  # recording has just failed
            self._forget()
        return self._work(batch, scale)  # a shape is recorded when it comes again

    def _forget(self) -> None:
        """Free what graphs needed; the gradients, once they are cleared."""
        self._inputs.clear()
        self._losses.clear()
        self._optimizer.keep_gradients(False)

    def _with_gradients(self) -> list[Tensor]:
        """Return the weights and their gradients: a graph knows where they are."""
        return [*self._weights, *(weight.grad for weight in self._weights if weight.grad is not None)]
