"""Recorded work, without a GPU: when it is recorded anew, what remains where that fails, and what CUDA is asked for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from nmt.compute import recorded
from nmt.compute.recorded import Recorded
from nmt.system import torch_internals

CPU = torch.device("cpu")


class Graph:
    """A CUDA graph of work whose operations are known when it is recorded."""

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda

    def capture_begin(self, pool: int, mode: str) -> None:
        assert self._cuda.recording_to is None, "another graph is being recorded"
        assert pool not in self._cuda.gone, "memory that no graph has cannot be shared"
        self._cuda.recording_to, self._pool = pool, pool

    def capture_end(self) -> None:
        if self._cuda.is_illegal:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
        self._cuda.recording_to = None
        self._cuda.graphs[self._pool] = self._cuda.graphs.get(self._pool, 0) + 1

    def replay(self) -> None:
        self._cuda.replays += 1

    def __del__(self) -> None:
        if hasattr(self, "_pool") and self._pool in self._cuda.graphs:
            self._cuda.graphs[self._pool] -= 1
            if not self._cuda.graphs[self._pool]:
                self._cuda.gone.add(self._pool)


class Cuda:
    """What CUDA is asked for, and what it does not forgive."""

    def __init__(self) -> None:
        self.streams = self.pools = self.replays = self.states = 0
        self.recording_to: int | None = None
        self.is_illegal = False
        self.graphs: dict[int, int] = {}
        self.gone = set[int]()

    def stream(self, device: torch.device) -> SimpleNamespace:
        self.streams += 1
        return SimpleNamespace(device_index=0, stream_id=self.streams)

    def pool(self) -> int:
        self.pools += 1
        return self.pools

    def leave(self, index: int, pool: int) -> None:
        if self.recording_to != pool:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.recording_to, self.is_illegal = None, False

    def set_state(self, state: object) -> None:
        self.states += 1


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    """Puts something in the place of CUDA."""
    found = Cuda()
    generator = SimpleNamespace(clone_state=lambda: None, graphsafe_set_state=found.set_state)
    stand_ins = {
        "Stream": found.stream,
        "graph_pool_handle": found.pool,
        "CUDAGraph": lambda: Graph(found),
        "stream": lambda stream: nullcontext(),
        "synchronize": lambda device: None,
        "current_stream": lambda device: SimpleNamespace(device_index=0, stream_id=0),
        "current_device": lambda: 0,
        "memory_reserved": lambda device: 0,
        "memory_allocated": lambda device: 0,
        "mem_get_info": lambda device: (1, 1),
        "default_generators": [generator],
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    private = {"torch:_C._cuda_endAllocateToPool": found.leave, "torch:_C._cuda_releasePool": lambda index, pool: None}
    monkeypatch.setattr(torch_internals, "find", private.get)
    recorded._stream.cache_clear()
    yield found
    recorded._stream.cache_clear()


def nothing() -> None:
    """Work that makes nothing."""


def replays(work: Recorded, *tensors: Tensor, size: int = 1, constants: Any = None, times: int = 1) -> list[bool]:
    return [work.replay(size, nothing, tensors, constants) for _ in range(times)]


def test_work_is_recorded_where_its_size_comes_again_and_anew_where_what_it_reads_has_changed(cuda: Cuda) -> None:
    said = list[str]()
    work, table, weight = Recorded(CPU, said.append, active=True), torch.zeros(4, 2), torch.zeros(3)
    assert replays(work, table, times=3) == [False, True, True]
    assert replays(work, table, size=2, times=2) == [False, True]
    assert replays(work, torch.zeros(8, 2), times=2) == [False, True]  # a longer table
    assert replays(work, table, times=2) == [False, True]
    assert replays(work, table.t(), times=2) == [False, True]  # elsewhere in the same memory
    assert replays(work, table.t(), constants=7, times=2) == [False, True]
    for other in (weight, weight, weight.clone(), weight):
        work.replay(1, nothing, [], weights=[other])
    assert cuda.replays == 2 + 1 + 4 + 1
    assert not said


def test_all_graphs_take_one_stream_and_one_memory(cuda: Cuda) -> None:
    works = [Recorded(CPU, print, active=True) for _ in range(3)]
    for number in range(12):
        replays(works[number % 3], torch.zeros(1), times=2)
    assert (cuda.streams, cuda.pools) == (1, 1)
    works[1:] = [Recorded(CPU, print, active=True)]
    replays(works[1], times=2)
    assert (cuda.streams, cuda.pools) == (1, 1)
    works[0].give_up("out of memory")
    works[1:] = [Recorded(CPU, print, active=True)]  # none has graphs any more
    replays(works[1], times=2)
    assert (cuda.streams, cuda.pools) == (1, 2)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("CUDA error: operation not permitted\nCompile with"), "CUDA error: operation not permitted"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU"), "out of memory: 2.00 GiB"),
        (ValueError("a shape"), "a shape"),
        (AssertionError(), "AssertionError"),
    ],
)
@pytest.mark.parametrize("is_illegal", [True, False])
def test_work_that_cannot_be_recorded_is_left_to_the_caller_and_said_once(
    cuda: Cuda, error: Exception, reason: str, is_illegal: bool
) -> None:
    def fail() -> None:
        cuda.is_illegal = is_illegal
        raise error

    said = list[str]()
    works = [Recorded(CPU, said.append, active=True) for _ in range(2)]
    replays(works[1], times=2)
    assert [works[0].replay(1, fail, []) for _ in range(3)] == [False] * 3
    assert not works[0].active
    assert len(said) == 1
    assert said[0].startswith(f"continuing without CUDA graphs: {reason}")
    assert "\n" not in said[0]
    assert cuda.recording_to is None
    assert cuda.states == 1  # of random numbers, which recorded work does not know
    assert replays(works[1], times=2) == [False, True]


def test_memory_that_runs_out_while_work_is_repeated_is_said_so(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(error: str) -> Callable[[Graph], None]:
        def replay(self: Graph) -> None:
            raise RuntimeError(error)

        return replay

    work = Recorded(CPU, print, active=True)
    replays(work, times=2)
    monkeypatch.setattr(Graph, "replay", fail("CUDA error: out of memory"))
    with pytest.raises(torch.OutOfMemoryError):
        replays(work)
    monkeypatch.setattr(Graph, "replay", fail("CUDA error: an illegal memory access was encountered"))
    with pytest.raises(RuntimeError, match="illegal memory access"):
        replays(work)
