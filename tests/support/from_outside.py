"""What work that is to be recorded takes from outside, on a device that computes nothing, and so refuses to be read."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nmt.compute.recorded import Recorded


class FromOutside(TorchDispatchMode):
    """Lists, by operation, whatever work takes from the host, and the tensors that are neither given nor made by it."""

    def __init__(self, given: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.taken: list[str] = []
        self.draws = False
        self._known = {storage_of(each): each for each in given}  # which stay alive, so that none takes their place

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        if any(each.device.type == "cpu" or storage_of(each) not in self._known for each in tensors):
            self.taken.append(str(function))
        if torch.Tag.nondeterministic_seeded in function.tags:
            self.draws = True
            if kwargs.get("generator") is not None:
                self.taken.append(str(function))
        made = function(*args, **kwargs)
        self._known |= {storage_of(each): each for each in tree_leaves(made) if isinstance(each, Tensor)}
        return made


def storage_of(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def look_at_recordings(patch: pytest.MonkeyPatch, inputs: Callable[[], Iterable[Tensor]] = list) -> list[FromOutside]:
    """Has what would be recorded be done instead; returns a list to which it adds what the work takes from outside.

    `inputs` returns the memory that graphs have of their own.
    """
    found: list[FromOutside] = []

    def replay(
        self: Recorded,
        size: Hashable,
        work: Callable[[], object],
        reads: Iterable[Tensor],
        constants: Hashable = None,
        weights: Iterable[Tensor] = (),
    ) -> bool:
        with FromOutside([*inputs(), *reads, *weights]) as look:
            work()
        found.append(look)
        return True

    patch.setattr(Recorded, "replay", replay)
    return found
