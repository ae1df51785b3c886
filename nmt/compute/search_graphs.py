"""CUDA graphs of a search: one launch for the kernels of a step, or of the encoder of a small batch.

A graph computes what its kernels did when they were recorded, at the same addresses. It therefore serves one number of
rows, of which there are few: a batch is filled up with rows without alive hypotheses. Tensors that a step replaces are
copied back to where they were.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor

from nmt.model.cache import with_room

SMALL = 2048  # tokens of a batch whose encoder is repeated by a graph
MOST = 64  # graphs of steps, or of an encoder; each takes some MB of a GPU's memory


def graph_rows(count: int) -> int:
    """Round up to one of the numbers of rows that have graphs, at most a quarter more: four between powers of 2."""
    step = 1 << max(0, count.bit_length() - 3)
    return -(-count // step) * step


class SearchGraphs:
    """Work by CUDA graphs, one for each size that comes again; they share memory."""

    def __init__(self, device: torch.device, say: Callable[[str], None], active: bool) -> None:
        """Record, if `active`, on `device`; report with `say` if it cannot be done."""
        self.active = active
        self._device, self._say = device, say
        self._graphs: dict[Any, Any] = {}  # None for a size that came once

    def _replay(self, size: Any, work: Callable[[], object]) -> bool:
        """Do the work that has been recorded for a size; return False if there is none, which is for the caller."""
        if size not in self._graphs:  # without a graph: load kernels and grow tables, which cannot be recorded
            if len(self._graphs) < MOST:
                self._graphs[size] = None
            return False
        try:
            self._graphs[size] = graph = self._graphs[size] or self._record(work)
        except RuntimeError as error:
            self._say(f"the search continues without CUDA graphs: {str(error).splitlines()[0]}")
            self.active = False
            self._graphs.clear()
            return False
        graph.replay()
        return True

    def _record(self, work: Callable[[], object]) -> Any:
        if not any(self._graphs.values()):  # memory of graphs that are gone cannot be shared
            self._stream, self._pool = torch.cuda.Stream(self._device), torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self._device)
        with torch.cuda.stream(self._stream):
            graph.capture_begin(self._pool, "thread_local")  # other threads may allocate pinned memory meanwhile
            try:
                work()
            finally:
                graph.capture_end()
        return graph


class EncoderGraphs(SearchGraphs):
    """The encoder's layers, of batches so small that a GPU computes faster than its host launches kernels."""

    def __init__(self, device: torch.device, say: Callable[[str], None], active: bool) -> None:
        super().__init__(device, say, active)
        self._x, self._seen = torch.empty(0, device=device), torch.empty(0, dtype=torch.bool, device=device)

    def __call__(self, encode: Callable[[Tensor, Tensor], Tensor], x: Tensor, seen: Tensor) -> Tensor:
        """Encode x (n, s, d_model) with a mask (n, 1, 1, s)."""
        (n, s, width), rows, length = x.shape, graph_rows(len(x)), graph_rows(x.size(1))
        if not self.active or rows * length > SMALL:
            return encode(x, seen)
        if len(self._seen) < SMALL:
            self._x, self._seen = x.new_empty(SMALL * width), seen.new_empty(SMALL)
        padded = self._x[: rows * length * width].view(rows, length, width)
        mask = self._seen[: rows * length].view(rows, 1, 1, length)
        padded.zero_()[:n, :s] = x  # hidden places may hold anything but NaN
        mask.zero_()[:n, :, :, :s] = seen

        def work() -> None:
            padded.copy_(encode(padded, mask))

        if not self._replay((rows, length), work):
            work()
        return padded[:n, :s]


class StepGraphs(SearchGraphs):
    """Steps of a search, one graph for each number of rows."""

    def __init__(self, device: torch.device, say: Callable[[str], None], active: bool) -> None:
        super().__init__(device, say, active)
        self._kept: list[Tensor] = []  # what steps replace, where graphs read and write it
        self._loaded = (0, 0)  # rows of sentences, and of the step for which others were filled
        self._report = torch.zeros((0, 2), dtype=torch.int32, device=device)
        self._where: list[Any] = []  # addresses that graphs know

    def __call__(self, step: Callable[[], Tensor], owners: Sequence[Any], count: int, rows: int) -> Tensor:
        """Take a step of `rows` rows, of which `count` have sentences; return the result of these.

        The first of `owners`, of all tensors that the step reads or writes, is the ancestry.
        """
        self._load(owners, count, rows)
        if (where := self._addresses(owners)) != self._where:
            self._graphs.clear()
            self._where = where
        replayed = self._replay(rows, partial(self._run, step, owners, count, rows))
        return self._report[:count] if replayed else step()

    def _load(self, owners: Sequence[Any], count: int, rows: int) -> None:
        """Bring the tensors that a step replaces to where graphs expect them; empty the rows without sentences."""
        found = _replaced(owners)
        if self._loaded == (count, rows) and all(map(_same, found, self._kept)):
            return
        if [each.shape[1:] for each in found] != [each.shape[1:] for each in self._kept]:
            self._kept = [each.new_empty((0, *each.shape[1:])) for each in found]
        self._kept = [with_room(each, 0, rows) for each in self._kept]
        for new, kept in zip(found, self._kept, strict=True):
            if not _same(new, kept):
                kept[:count] = new
            kept[count:rows] = -math.inf if kept.is_floating_point() else 0
        self._report = with_room(self._report, 0, rows)
        _replace(owners, self._kept, count)
        self._loaded = count, rows

    def _addresses(self, owners: Sequence[Any]) -> list[Any]:
        found = chain([self._report], self._kept, *owners[0].pools, *(vars(owner).values() for owner in owners))
        tensors = [each for each in found if isinstance(each, Tensor)]
        return [owners[0].end, *((each.data_ptr(), each.shape[1:]) for each in tensors)]

    def _run(self, step: Callable[[], Tensor], owners: Sequence[Any], count: int, rows: int) -> None:
        """Take a step whose results are where it began."""
        ancestry = owners[0]
        try:
            ancestry.count = rows
            _replace(owners, self._kept, rows)
            self._report[:rows] = step()
            for kept, new in zip(self._kept, _replaced(owners), strict=True):
                if not _same(new, kept):
                    kept[:rows] = new
        finally:
            ancestry.count = count
            _replace(owners, self._kept, count)


def _same(one: Tensor, other: Tensor) -> bool:
    return one.data_ptr() == other.data_ptr()


def _replaced(owners: Sequence[Any]) -> list[Tensor]:
    """Return the tensors of `owners` that a step replaces, single ones and those of tuples."""
    values = [getattr(owner, name) for owner in owners for name in owner.replaced]
    return [each for value in values for each in ([value] if isinstance(value, Tensor) else value)]


def _replace(owners: Sequence[Any], tensors: Iterable[Tensor], rows: int) -> None:
    """Set what `_replaced` returns to the first rows of `tensors`."""
    views = iter([each[:rows] for each in tensors])
    for owner in owners:
        for name in owner.replaced:
            value = getattr(owner, name)
            single = isinstance(value, Tensor)
            setattr(owner, name, next(views) if single else type(value)(*islice(views, len(value))))
