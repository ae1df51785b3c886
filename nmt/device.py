"""Which device computes, and on how many threads."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
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
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise UserError(f"--device {name}: no such device", "auto, cpu, cuda or cuda:1")
    if worker is not None and name.startswith("cuda"):
        if ":" in name:
            raise UserError(f"--device {name}: is one device, for several workers", "--device cuda, or no --devices")
        name = f"cuda:{worker}"
    kind, _, index = name.partition(":")
    if kind == "cuda" and int(index or 0) >= cuda_devices:
        raise UserError(f"--device {name}: this machine has {cuda_devices} CUDA devices", "--device cpu")
    return name


def available_memory(device: torch.device) -> int | None:
    """Bytes that a process could still get: of a GPU what is free, else of the machine what is available, swap counted,
    or the limit of the process's cgroup where that is less. None where nobody tells.
    """
    import torch

    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    bounds = list(_cgroup_limits(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")))
    with suppress(OSError, KeyError, ValueError):
        lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
        sizes = {words[0]: 1024 * int(words[1]) for words in lines}
        bounds.append(sizes["MemAvailable:"] + sizes["SwapFree:"])
    return min(bounds, default=None)


def _cgroup_limits(membership: Path, root: Path) -> Iterator[int]:
    """Bytes that the cgroups of this process may have, of version 2 or 1; nothing where there is no limit."""
    with suppress(OSError):
        for line in membership.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers not in ("", "memory"):
                continue
            top, name = (root, "memory.max") if not controllers else (root / "memory", "memory.limit_in_bytes")
            here = top / path.lstrip("/")
            for folder in (here, *here.parents):
                if folder.is_relative_to(top):
                    with suppress(OSError, ValueError):  # "max" is no number
                        yield int((folder / name).read_text())


def memory_error(error: Exception) -> UserError | None:
    """What to tell the user where memory could not be had; None of any other error."""
    text = str(error)
    refused = r"can't allocate|not enough memory|out of memory|size calculation overflowed"
    if not isinstance(error, MemoryError) and not (isinstance(error, RuntimeError) and re.search(refused, text)):
        return None
    asked = re.search(r"allocate (\d+(?:\.\d+)? ?\w+)", text)  # 1024 bytes; or 20.00 GiB
    return UserError(
        "out of memory" + (f": {_readable(asked[1])} could not be had at once" if asked else ""),
        "take a smaller beam, fewer tokens at a time (decoding.batch_tokens, training.device_tokens) or a smaller "
        "model, or a machine with more memory",
    )


def _readable(size: str) -> str:
    number, unit = size.split() if " " in size else (size, "")
    return f"{int(number) / 2**30:.1f} GiB" if unit == "bytes" else size


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
