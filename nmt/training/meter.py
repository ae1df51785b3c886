"""Figures of training between two log lines."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

import torch
from torch import Tensor

from nmt.data.corpus import Ids
from nmt.model.likelihood import perplexity
from nmt.training.distributed import Group
from nmt.training.flops import peak_flops
from nmt.training.memory import peak_memory

T = TypeVar("T")


class Meter:
    """Adds up what happens, and gives means and rates since it last did."""

    def __init__(self, device: torch.device, group: Group) -> None:
        self._device, self._group = device, group
        self._peak = peak_flops(device)
        self._reset()

    def _reset(self) -> None:
        self._began = time.perf_counter()
        self._waited = 0.0
        self._loss = self._nll = torch.zeros((), dtype=torch.float64, device=self._device)
        self._norms: list[Tensor] = []
        self._cells = self._tokens = self._target_tokens = 0
        self._flops = 0.0

    def waiting(self, items: Iterable[T]) -> Iterator[T]:
        """The same items; counts the time that the next one is not there."""
        iterator = iter(items)
        while True:
            began = time.perf_counter()
            try:
                item = next(iterator)
            except StopIteration:
                return
            self._waited += time.perf_counter() - began
            yield item

    def add(self, loss: Tensor, nll: Tensor, cells: int) -> None:
        """This rank's sums over an update: losses in nats, cells with padding."""
        self._loss, self._nll, self._cells = self._loss + loss, self._nll + nll, self._cells + cells

    def count(self, source_lengths: Ids, target_lengths: Ids, flops: float, norm: Tensor) -> None:
        """An update of all ranks together, and the norm of its gradient."""
        self._target_tokens += int(target_lengths.sum()) + len(target_lengths)
        self._tokens += int(source_lengths.sum()) + int(target_lengths.sum()) + 2 * len(target_lengths)
        self._flops += flops
        self._norms.append(norm)

    def figures(self) -> dict[str, float]:
        """Means per target token over all ranks, rates per second, and shares; begins anew."""
        loss, nll, cells = self._group.total(float(self._loss), float(self._nll), self._cells)  # waits for the GPU
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
