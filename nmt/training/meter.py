"""Figures of training between two log lines."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from nmt.data.corpus import Lengths
from nmt.model.likelihood import perplexity
from nmt.training.distributed import Group
from nmt.training.flops import peak_flops
from nmt.training.memory import peak_memory

T = TypeVar("T")


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
