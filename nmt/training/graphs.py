"""CUDA graphs of micro-batches: one launch for the hundreds of kernels of a forward and backward pass.

A graph computes what its kernels did when they were recorded, at the same addresses, so it serves one shape of
micro-batch, reads it from memory of its own, and adds gradients to tensors that stay. Its kernels are those of separate
launches, in the same order, and draw the same random numbers: the results are equal to the bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from nmt.model.batch import Batch
from nmt.system.device import memory_error
from nmt.training.optimizer import Optimizer

LAUNCHES = "graphs"  # how a single GPU gets the kernels of packed micro-batches: by "graphs", or "singly"
MOST = 64  # graphs; each takes some MB of a GPU's memory

Losses = tuple[Tensor, Tensor]
Work = Callable[[Batch, Tensor | float], Losses]
"""Add a micro-batch's gradients times a scale (), float64 if it is a tensor; return two losses ()."""


class Graph(NamedTuple):
    """Recorded work, with its input and its results."""

    recorded: torch.cuda.CUDAGraph
    batch: Batch
    losses: Losses


class Graphs:
    """`work` on micro-batches, recorded where their shape comes again."""

    def __init__(self, work: Work, optimizer: Optimizer, device: torch.device) -> None:
        self._work, self._optimizer, self._device = work, optimizer, device
        self.active = False
        self._graphs: dict[tuple[object, ...], Graph | None] = {}  # None for a shape that came once

    def start(self, useful: bool) -> None:
        """Record from now on, where it is `useful`: for one GPU, and shapes that are few. Clear the gradients."""
        self.active = useful and LAUNCHES == "graphs" and self._device.type == "cuda"
        self._optimizer.keep_gradients(self.active)
        if self.active:
            self._scale = torch.ones((), dtype=torch.float64, device=self._device)
            self._stream, self._pool = torch.cuda.Stream(self._device), torch.cuda.graph_pool_handle()

    def stop(self) -> bool:
        """Drop all graphs and record no more, to save memory; clear the gradients. Return whether any could be."""
        was_active, self.active = self.active, False
        self._graphs.clear()
        self._optimizer.keep_gradients(False)
        return was_active

    def __call__(self, batch: Batch, scale: float) -> Losses:
        """Do the work on a micro-batch on the device, without waiting for it.

        Raise torch.OutOfMemoryError, perhaps amid the work.
        """
        if not self.active:
            return self._work(batch, scale)
        shape = batch.shape()
        if shape not in self._graphs:  # without a graph: compile, and load kernels, which cannot be recorded
            losses = self._work(batch, scale)
            if len(self._graphs) < MOST:
                self._graphs[shape] = None
            return losses
        try:
            graph = self._graphs[shape] or self._record(batch)
            self._graphs[shape] = graph
            graph.batch.copy_(batch)
            self._scale.fill_(scale)
            graph.recorded.replay()
        except RuntimeError as error:  # CUDA itself allocates for graphs, beside PyTorch's allocator
            if isinstance(error, torch.OutOfMemoryError) or memory_error(error) is None:
                raise
            raise torch.OutOfMemoryError(str(error)) from None
        loss, nll = graph.losses
        return loss.clone(), nll.clone()

    def _record(self, batch: Batch) -> Graph:
        recorded, own = torch.cuda.CUDAGraph(), batch.clone()
        # The thread that makes batches may allocate pinned memory meanwhile. All graphs share memory, since each is
        # done, and its losses are copied, before the next one begins.
        with torch.cuda.graph(recorded, self._pool, self._stream, "thread_local"):
            losses = self._work(own, self._scale)
        return Graph(recorded, own, losses)
