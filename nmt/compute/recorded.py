"""Work that a GPU repeats by CUDA graphs: one launch for hundreds of kernels.

A graph computes what its kernels did when they were recorded, at the same addresses. It therefore serves one size of
its inputs, which are copied to where it reads them, and everything else that it reads must stay where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any

import torch
from torch import Tensor

MOST = 64  # graphs; each takes some MB of a GPU's memory


class Recorded:
    """Work by CUDA graphs, one for each size that comes again; they share memory."""

    def __init__(self, device: torch.device, say: Callable[[str], None], active: bool) -> None:
        """Record, if `active`, on `device`; report with `say` if it cannot be done."""
        self.active = active
        self._device, self._say = device, say
        self._graphs: dict[Hashable, Any] = {}  # None for a size that came once
        self._reads: list[Hashable] = []

    def replay(
        self, size: Hashable, work: Callable[[], object], reads: Iterable[Tensor], constants: Hashable = None
    ) -> bool:
        """Do the work that has been recorded for a size; return False if there is none, which is for the caller.

        `reads` are all tensors that the work reads or writes, but for those that it makes, and `constants` the numbers
        of the host. Where one of them is another than before, all graphs are recorded anew.
        """
        where = [constants, *((each.data_ptr(), each.shape[1:]) for each in reads)]
        if where != self._reads:
            self._graphs.clear()
            self._reads = where
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
