"""Copies between the host and the device of a search. The host waits only where it reads what a GPU has computed.

On a CPU nothing is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def reads_late(device: torch.device) -> bool:
    """Whether the host reads what a device has found one step later, while the device computes the next step.

    A CPU would gain nothing by it and waste the step in which a sentence is done but has not left.
    """
    return device.type != "cpu"


def upload(values: Tensor | NDArray[Any] | Sequence[Any], device: torch.device) -> Tensor:
    """Values of the host as a tensor on a device."""
    tensor = torch.as_tensor(values)
    if device.type == "cuda":
        tensor = tensor.pin_memory()  # from other memory the host would copy while it waits
    return tensor.to(device, non_blocking=True)


class Download:
    """Tensors of a device on their way to the host, as they are now."""

    def __init__(self, *tensors: Tensor) -> None:
        self._copies = [tensor.to("cpu", non_blocking=True) for tensor in tensors]
        self._there: torch.cuda.Event | None = None
        if tensors[0].is_cuda:
            self._there = torch.cuda.Event()
            self._there.record(torch.cuda.current_stream(tensors[0].device))

    def read(self) -> list[Tensor]:
        """The tensors on the host, which waits until they are there."""
        if self._there is not None:
            self._there.synchronize()
        return self._copies
