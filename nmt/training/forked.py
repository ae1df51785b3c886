"""Ranks that are forks of one process on a CPU: they share the weights, and each sums gradients of a part of them.

One process a core is faster than one thread a core, because its operations wait for nobody. Each rank applies the
optimizer to its own parameters, so that no work is done twice.
"""

from __future__ import annotations

import math
import mmap
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn

from nmt.system import torch_internals
from nmt.system.device import known_error
from nmt.system.launchers import World
from nmt.system.parallelism import share_of_threads
from nmt.system.processes import Forks
from nmt.training.distributed import Group
from nmt.training.optimizer import Optimizer

Result = TypeVar("Result")
ALIGNED = 64  # bytes, a cache line


class ForkedGroup(Group):
    """A group whose other ranks are forks that `connect` starts, so that what comes before is done once.

    Each rank applies the optimizer to its own part of the parameters, and sums their gradients over all ranks.
    Parameters, the optimizer's state and what is exchanged are in memory that the ranks share.
    """

    escalates = True

    def __init__(self, size: int, threads: int) -> None:
        """Configure ranks that share this many threads."""
        super().__init__(World(0, size, 0, size), timeout_minutes=0.0)
        self._forks = Forks(size)
        self._threads = share_of_threads(threads, size)
        self._memory = os.memfd_create("nmt")
        self._sent = list[tuple[Tensor, Tensor]]()  # parameters of other ranks, and where this one writes gradients
        self._received = list[tuple[Tensor, Tensor]]()  # own parameters, and where others write gradients, by rank

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Kill the other ranks; in one of these, end the process."""
        failure = None
        if isinstance(error, Exception):
            known = known_error(error)
            lines = traceback.format_exception(error)
            failure = known.message, known.hint, "".join(lines)
        self._forks.end(failure)
        os.close(self._memory)

    @property
    def place(self) -> str:
        return f"{self.size} processes, cpu"

    @property
    def copies(self) -> float:
        # Weights and two moments once, gradients of each rank, and places to exchange those of all but the owner
        return (3 + self.size + self.size - 1) / 4

    def first(self, work: Callable[[], Result]) -> Result:
        """Run `work`, whose result forks will have."""
        return work()

    def check(self) -> None:
        """Do nothing: a fork ends with rank 0, which hears of failures when ranks meet."""

    def is_orphaned(self) -> bool:
        """Return False: rank 0 may outlive its parent, and a fork ends with rank 0."""
        return False

    def connect(self) -> None:
        """Fork the other ranks, which go on from here."""
        torch_internals.find("torch._dynamo.config:recompile_limit")  # import before forking what every optimizer does
        self._forks.start()
        self.rank = self._forks.rank
        torch.set_num_threads(self._threads)

    def gather(self, values: Sequence[Any]) -> list[list[Any]]:
        """Return each rank's values, in rank order."""
        return self._forks.gather(list(values))

    def largest(self, *values: int) -> list[int]:
        return list(map(max, zip(*self.gather(values), strict=True)))

    def total(self, *values: float) -> list[float]:
        return list(map(sum, zip(*self.gather(values), strict=True)))

    @contextmanager
    def guard(self, doing: str, hint: str = "") -> Iterator[None]:
        """Do nothing: `gather` raises what is to be said."""
        yield

    def parallel(self, module: nn.Module, optimizer: Optimizer) -> nn.Module:
        """Move the parameters and the optimizer's state, the same on all ranks, into shared memory."""
        parameters = [each for each in module.parameters() if each.requires_grad]
        shared = [*parameters, *optimizer.state().values()]
        owner_of_each = owners([each.numel() for each in parameters], self.size)
        exchanged = []  # (rank, parameter, owner): the rank writes its gradient where the owner reads it
        for rank in range(self.size):
            for parameter, owner in zip(parameters, owner_of_each, strict=True):
                if owner != rank:
                    exchanged.append((rank, parameter, owner))
        places = iter(_mapped(self._memory, [*shared, *(parameter for _, parameter, _ in exchanged)]))
        for tensor in shared:
            place = next(places)
            if self.leads:
                place.copy_(tensor.detach())
            tensor.data = place
        for rank, parameter, owner in exchanged:
            place = next(places)
            if rank == self.rank:
                self._sent.append((parameter, place))
            elif owner == self.rank:
                self._received.append((parameter, place))
        self.wait()
        return module

    def add_up(self) -> None:
        """Sum the gradients of this rank's parameters over all ranks, and drop those of others."""
        for parameter, place in self._sent:
            if parameter.grad is None:
                place.zero_()
            else:
                place.copy_(parameter.grad)
            parameter.grad = None
        self.wait()
        for parameter, place in self._received:
            if parameter.grad is None:
                parameter.grad = place.clone()
            else:
                parameter.grad.add_(place)

    def equalise(self, tensors: Sequence[Tensor]) -> bool:
        """Do nothing: the ranks share the tensors."""
        return False

    def norm(self, own: Tensor) -> Tensor:
        (squares,) = self.total(float(own) * float(own))
        return own.new_tensor(math.sqrt(squares))

    def wait(self) -> None:
        self.gather([])


def owners(sizes: Sequence[int], ranks: int) -> list[int]:
    """Return the rank of each parameter such that all have about as many numbers: the largest first."""
    loads = [0] * ranks
    chosen = [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        chosen[index] = loads.index(min(loads))
        loads[chosen[index]] += sizes[index]
    return chosen


def _mapped(file: int, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors like those given that are in the memory of a file."""
    offsets = []
    end = 0
    for tensor in tensors:
        offsets.append(end)
        end += -(-tensor.nbytes // ALIGNED) * ALIGNED
    os.ftruncate(file, end)
    memory = mmap.mmap(file, end)
    mapped = []
    for tensor, offset in zip(tensors, offsets, strict=True):
        flat = torch.frombuffer(memory, dtype=tensor.dtype, count=tensor.numel(), offset=offset)
        mapped.append(flat.view(tensor.shape))
    return mapped
