"""Which device computes, and on how many threads."""

from __future__ import annotations

import ctypes
import os
import re
from typing import TYPE_CHECKING

from nmt.errors import UserError

if TYPE_CHECKING:
    import torch


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def choose_device(name: str, threads: int | None, worker: int | None = None) -> torch.device:
    """The device that `find_device` says, from now on the current one; sets PyTorch's threads."""
    import torch

    if threads is not None:
        torch.set_num_threads(threads)
    device = torch.device(find_device(name, torch.cuda.device_count(), worker))
    if device.type == "cpu":
        _keep_memory()
    elif device.index is not None:
        torch.cuda.set_device(device)
    return device


def find_device(name: str, cuda_devices: int, worker: int | None = None) -> str:
    """cpu, cuda or cuda:N of a device called so or auto; of one of several workers, counted from 0, its own.

    Raises UserError where there is none such.
    """
    if name == "auto":
        name = "cuda" if cuda_devices else "cpu"
    if not re.fullmatch(r"cpu|cuda(:[0-9]+)?", name):
        raise UserError(f"--device {name}: no such device", "auto, cpu, cuda or cuda:1")
    if worker is not None and name.startswith("cuda"):
        if ":" in name:
            raise UserError(f"--device {name}: is one device, for several workers", "--device cuda, or no --devices")
        name = f"cuda:{worker}"
    kind, _, index = name.partition(":")
    if kind == "cuda" and int(index or 0) >= cuda_devices:
        raise UserError(f"--device {name}: this machine has {cuda_devices} CUDA devices", "--device cpu")
    return name


def _keep_memory() -> None:
    """Keeps what tensors leave free in the process, in huge pages, instead of returning it to the system.

    The next tensor would get it back page by page, each a fault and cleared anew: a twentieth of a training update.
    Does nothing where the C library is not glibc.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # PyTorch looks at its first large allocation
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, TypeError, AttributeError):
        return
    mallopt(-1, -1)  # M_TRIM_THRESHOLD: never
    mallopt(-4, 0)  # M_MMAP_MAX: no mappings of their own, which freeing would undo
