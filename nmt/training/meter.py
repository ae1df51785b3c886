"""What training costs, in a run's state, and its metrics since the last log line."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from nmt.compute.choice import device_name
from nmt.data.corpus import Lengths
from nmt.model.operations import perplexity
from nmt.training.distributed import Group
from nmt.training.flops import sustained_flops
from nmt.training.peak import peak_flops
from nmt.training.run_state import RunState

T = TypeVar("T")
# A micro-batch's smoothed loss () and negative log-likelihood (), summed over target tokens, in nats, and its number of
# tokens on both sides, including padding, its cells
Losses = tuple[Tensor, Tensor, int]


class Meter:
    """What training costs, in a run's state, and metrics since the last log line."""

    def __init__(self, state: RunState, group: Group, precision: str) -> None:
        """Start the clock of a run whose devices multiply in `precision`, which is not "auto"."""
        self._state = state
        self._group = group
        self._sustained = sustained_flops(group.device)
        self._peak = peak_flops(group.device)
        self._place = f"{group.size} × {device_name(group.device, precision=precision)}"
        self._last = self._began = time.perf_counter()
        self._waited = 0.0  # seconds
        self._updates: list[tuple[Any, ...]] = []  # loss, nll, cells, target tokens, tokens, FLOPs and norm of each

    def waiting(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the items, timing the wait for each."""
        began = time.perf_counter()
        for item in items:
            self._waited += time.perf_counter() - began
            yield item
            began = time.perf_counter()

    def add(self, losses: Sequence[Losses], lengths: Lengths, flops: float, norm: Tensor) -> None:
        """Add an update: its micro-batches' losses on this rank; lengths, FLOPs and gradient norm () over all ranks."""
        self._state.tokens += lengths.target_tokens
        self._state.flops += flops
        self.tick()
        own = map(sum, zip(*losses, strict=True))
        tokens = lengths.source_tokens + lengths.target_tokens
        self._updates.append((*own, lengths.target_tokens, tokens, flops, norm))

    def tick(self) -> None:
        """Add the time since the last tick to the run's cost, and the paper's estimate of its FLOPs (section 6.1)."""
        now = time.perf_counter()
        self._state.spend(now - self._last, self._place, self._group.size, self._sustained)
        self._last = now

    def figures(self) -> dict[str, float]:
        """Return the metrics over all ranks since the last call, and reset."""
        *columns, each_norm = zip(*self._updates, strict=True)
        sums = [float(sum(column)) for column in columns]  # synchronises with the GPU
        own_loss, own_nll, own_cells, target_tokens, tokens, flops = sums
        loss, nll, cells = self._group.total(own_loss, own_nll, own_cells)
        norms = torch.stack(each_norm)
        seconds = time.perf_counter() - self._began
        figures = {
            "loss": loss / target_tokens,
            "perplexity": perplexity(nll, target_tokens),
            "gradient_norm": float(norms[norms.isfinite()].mean()),  # of updates that were not skipped
            "tokens_per_second": target_tokens / seconds,
            "tokens_per_update": target_tokens / len(norms),
            "seconds_per_update": seconds / len(norms),
            "padding": 1.0 - tokens / cells,
            "data_wait": self._waited / seconds,
            "memory_bytes": _peak_memory(self._group.device),
            "flops_per_second": flops / seconds,
        }
        if self._peak is not None:
            figures["mfu"] = flops / seconds / (self._group.size * self._peak)
        self._updates = []
        self._waited = 0.0
        self._began = time.perf_counter()
        return figures


def _peak_memory(device: torch.device) -> int:
    """Return the bytes that training has taken at most, on a GPU or of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return resident if sys.platform == "darwin" else 1024 * resident  # in bytes on macOS, else in KiB
