"""Which device computes, and on how many threads."""

from __future__ import annotations

import ctypes
import math
import os
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from nmt.errors import UserError

if TYPE_CHECKING:
    import torch

SPINS = 1000  # rounds that a waiting thread spins before it sleeps; GNU OpenMP has 300,000


def cores() -> int:
    """CPU cores that this process may keep busy: those of its affinity mask, or fewer by its container's CPU quota."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota()
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota)))


def cpu_quota(groups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> float | None:
    """Cores' worth of time that the control groups of this process grant it, such as 2.0 under `docker --cpus=2`.

    None where they set no limit. Versions 1 and 2 of Linux's control groups are read; the smallest limit on the way
    up from the group that `own` names counts.
    """
    try:
        entries = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:  # not Linux
        return None
    limits = []
    for _, controllers, path in (entry for entry in entries if len(entry) == 3):
        if controllers and "cpu" not in controllers.split(","):
            continue
        for group in (PurePosixPath(path), *PurePosixPath(path).parents):
            # A container sees its own group as the root of the hierarchy, whatever its path is called outside.
            limits += _quota_of(groups / controllers / group.relative_to("/"))
    return min(limits, default=None)


def _quota_of(group: Path) -> list[float]:
    """The limit that one control group sets, in cores; none if it sets none."""
    try:
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota, period = ((group / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        return [int(quota) / int(period)] if quota.isdecimal() and int(quota) > 0 else []
    except (OSError, ValueError, ZeroDivisionError):
        return []


def let_waiting_threads_sleep() -> None:
    """Shorten how long threads spin while they wait for one another; to be called before torch is imported.

    GNU OpenMP, which PyTorch computes with, lets a thread that waits spin for milliseconds. Where another process
    wants the same cores, the spinning keeps the thread that is waited for from running. The user's own settings of
    OpenMP stay.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPINS))


def choose_device(name: str, threads: int | None, worker: int | None = None) -> torch.device:
    """The device that `find_device` says, from now on the current one; sets PyTorch's threads.

    Without `threads` PyTorch has as many as it likes, but no more than `cores`.
    """
    import torch

    torch.set_num_threads(threads or min(torch.get_num_threads(), cores()))
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
