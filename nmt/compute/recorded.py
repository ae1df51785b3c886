"""Recorded work of a GPU, by CUDA graphs: one launch for the hundreds of kernels of a micro-batch or of a step.

A graph computes what its kernels did when they were recorded, at the same addresses. It serves one shape, and whatever
it reads or writes must stay where it was. Work that is recorded takes nothing from the host: it is given tensors of the
device and makes others of them, and waits for nothing. Its random numbers are those of PyTorch's generator of the
device, which each repetition moves on as the work itself would.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from functools import cache
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from nmt.system import torch_internals
from nmt.system.device import memory_error

MOST = 64  # graphs of one kind of work; each takes some MB of a GPU's memory


class Recorded:
    """One kind of work, recorded for each size that comes again."""

    def __init__(self, device: torch.device, say: Callable[[str], None], active: bool) -> None:
        """Record, if `active`, on `device`; report with `say` if that cannot be done."""
        self.active = active
        self._device = device
        self._say = say
        self._graphs: dict[Hashable, Any] = {}  # None for a size that came once
        self._known: list[Hashable] = []  # what graphs know: constants, and where they read
        self._memory: _Memory | None = None

    def replay(
        self,
        size: Hashable,
        work: Callable[[], object],
        reads: Iterable[Tensor],
        constants: Hashable = None,
        weights: Iterable[Tensor] = (),
    ) -> bool:
        """Do the work as recorded for a size; return False if it is not, for the caller to do it.

        `reads` are all tensors that the work reads or writes, but for those that it makes, and for `weights`, whose
        shapes never change. `constants` are the numbers of the host that may change. Where one of these has changed or
        moved, all is recorded anew. If recording fails, nothing is recorded any more. What recorded work has made is
        overwritten by the next. Raise torch.OutOfMemoryError.
        """
        if not self.active:
            return False
        known = [constants, _Memory.failures, *map(Tensor.data_ptr, weights)]
        for each in reads:
            known += [each.data_ptr(), each.stride()]
        if known != self._known:
            self._graphs.clear()
            self._known = known
        if size not in self._graphs:  # without a graph: compile, and load kernels, which cannot be recorded
            if len(self._graphs) < MOST:
                self._graphs[size] = None
            return False
        try:
            graph = self._graphs[size] or self._record(work)
        except Exception as error:
            self.give_up(_reason(error))
            return False
        self._graphs[size] = graph
        try:
            graph.replay()
        except RuntimeError as error:  # CUDA itself allocates for graphs, beside PyTorch's allocator
            if isinstance(error, torch.OutOfMemoryError) or memory_error(error) is None:
                raise
            raise torch.OutOfMemoryError(str(error)) from None
        return True

    def give_up(self, reason: str) -> bool:
        """Drop all graphs, record no more, and say so. Return whether this changes anything."""
        was_active = self.active
        self.active = False
        self._graphs.clear()
        self._memory = None
        if was_active:
            self._say(f"continuing without CUDA graphs: {reason}")
        return was_active

    def _record(self, work: Callable[[], object]) -> Any:
        """Return a graph of the work, which has not been done yet."""
        self._memory = self._memory or _memory_of(self._device)
        return self._memory.record(work)


class _Memory:
    """The memory of graphs, which share it: each is done, and what it made is copied, before the next begins."""

    recording = Lock()  # one thread at a time
    failures = 0  # of recordings, after each of which the generator has another state than graphs know

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._newest: torch.cuda.CUDAGraph | None = None  # kept, since PyTorch gives up a pool that no graph uses

    def record(self, work: Callable[[], object]) -> torch.cuda.CUDAGraph:
        with self.recording:
            self._make_room()
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.stream(_stream(self._device)):
                    self._capture(graph, work)
            except BaseException:
                self._leave()
                raise
            self._newest = graph
            return graph

    def _capture(self, graph: torch.cuda.CUDAGraph, work: Callable[[], object]) -> None:
        graph.capture_begin(self._pool, "thread_local")  # other threads may allocate pinned memory meanwhile
        try:
            work()
        except BaseException:
            with suppress(RuntimeError):  # which would hide the cause
                graph.capture_end()
            raise
        graph.capture_end()

    def _make_room(self) -> None:
        """Wait for the device. Free what PyTorch keeps, which it cannot while recording, if that may be needed."""
        torch.cuda.synchronize(self._device)
        kept = torch.cuda.memory_reserved(self._device) - torch.cuda.memory_allocated(self._device)
        free, _ = torch.cuda.mem_get_info(self._device)
        if free < kept:  # the work has been done before, in memory that was kept
            torch.cuda.empty_cache()

    def _leave(self) -> None:
        """Leave a recording that failed, in which PyTorch's allocator and generator would remain."""
        index = torch.cuda.current_device() if self._device.index is None else self._device.index
        end = torch_internals.find("torch:_C._cuda_endAllocateToPool")
        release = torch_internals.find("torch:_C._cuda_releasePool")
        if end and release:
            with suppress(RuntimeError):  # if it has been left already
                end(index, self._pool)
                release(index, self._pool)
        generator = torch.cuda.default_generators[index]
        generator.graphsafe_set_state(generator.clone_state())
        _Memory.failures += 1


_memories: WeakValueDictionary[tuple[int, int], _Memory] = WeakValueDictionary()  # by device and stream


def _memory_of(device: torch.device) -> _Memory:
    """Return the memory of all graphs of a stream, the current one of `device`, in which they are done one by one."""
    stream = torch.cuda.current_stream(device)
    owner = (stream.device_index, stream.stream_id)
    memory = _memories.get(owner)
    if memory is None:
        memory = _Memory(device)
        _memories[owner] = memory
    return memory


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream on which to record, always the same, since cuBLAS keeps memory for each."""
    return torch.cuda.Stream(device)


def _reason(error: Exception) -> str:
    known = memory_error(error)
    if known is not None:
        return known.message
    text = str(error) or type(error).__name__
    return text.splitlines()[0]
