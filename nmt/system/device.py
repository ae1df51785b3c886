"""Devices, threads, memory, and the rank of this process."""

from __future__ import annotations

import ctypes
import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from nmt.system.errors import UserError

if TYPE_CHECKING:
    import torch

GIB = 2**30
GROUPS, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
SPINS = 1000  # rounds that a waiting thread spins before it sleeps; GNU OpenMP has 300,000


def cores() -> int:
    """Count the CPU cores that this process may use: those of its affinity mask, or its container's CPU quota if lower.

    In a task of Slurm, SLURM_CPUS_PER_TASK is a limit as well, since not every Slurm binds tasks to their cores.
    """
    limits = [len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1]
    if quota := cpu_quota():
        limits.append(math.ceil(quota))
    if "SLURM_STEP_NUM_TASKS" in os.environ:  # not set in a batch script, whose processes share the cores of all tasks
        with suppress(KeyError, ValueError):
            limits.append(int(os.environ["SLURM_CPUS_PER_TASK"]))
    return max(1, min(limits))


def let_waiting_threads_sleep() -> None:
    """Shorten how long threads spin while they wait for one another; call this before torch is imported.

    GNU OpenMP, which PyTorch uses, lets a waiting thread spin for milliseconds. If another process wants the same
    cores, the spinning keeps the thread that is waited for from running. The user's own settings of OpenMP stay.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPINS))


def choose_device(name: str, threads: int | None, worker: int | None = None) -> torch.device:
    """Return the device that `find_device` finds, made current; set PyTorch's threads and attention kernels.

    Without `threads`, PyTorch's own default applies, up to `cores`.
    """
    import torch

    torch.set_num_threads(threads or min(torch.get_num_threads(), cores()))
    device = torch.device(find_device(name, torch.cuda.device_count(), worker))
    if device.type == "cpu":
        _keep_memory()
        return device
    # On recent GPUs PyTorch prefers cuDNN's attention, which builds a plan, up to half a second each, for every new
    # shape. Sentences make thousands of shapes; the flash and memory-efficient kernels take any without preparation.
    torch.backends.cuda.enable_cudnn_sdp(False)
    if device.index is not None:
        torch.cuda.set_device(device)
    _let_segments_grow(device)
    return device


def find_device(name: str, cuda_devices: int, worker: int | None = None) -> str:
    """Return cpu, cuda or cuda:N for the name of a device, which may be auto; for a worker, from 0, its own GPU.

    Raises UserError if there is no such device.
    """
    if name == "auto":
        name = "cuda" if cuda_devices else "cpu"
    if not re.fullmatch(r"cpu|cuda(:[0-9]+)?", name):
        raise UserError(f"--device {name}: no such device", "use auto, cpu, cuda or cuda:1")
    if worker is not None and name.startswith("cuda"):
        if ":" in name:
            raise UserError(
                f"--device {name}: is one device, but there are several workers", "use --device cuda, or no --devices"
            )
        name = f"cuda:{worker}"
    kind, _, index = name.partition(":")
    if kind == "cuda" and int(index or 0) >= cuda_devices:
        raise UserError(
            f"--device {name}: this machine has {cuda_devices} CUDA devices", "use another --device, such as cpu"
        )
    return name


def available_memory(device: torch.device) -> int | None:
    """Return the bytes that this process can still allocate: on a GPU, what is free or cached by PyTorch's allocator.

    On a CPU, return `host_memory`.
    """
    import torch

    if device.type != "cuda":
        return host_memory()
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def host_memory() -> int | None:
    """Return the bytes that the machine has available, with swap, or the limit of the process's cgroup if lower.

    None if neither is known.
    """
    limit = memory_limit()
    bounds = [] if limit is None else [limit]
    with suppress(OSError, KeyError, ValueError):
        lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
        sizes = {words[0]: 1024 * int(words[1]) for words in lines}
        bounds.append(sizes["MemAvailable:"] + sizes["SwapFree:"])
    return min(bounds, default=None)


def check_room(needed: int, there: int | None, what: str, hint: str) -> None:
    """Raise UserError if `what` needs more bytes than are available, if that is known."""
    if there is not None and needed > there:
        available = f"{there / GIB:,.1f} GiB of memory are available"
        raise UserError(f"{what} need {needed / GIB:,.1f} GiB or more, but {available}", hint)


def memory_error(error: Exception) -> UserError | None:
    """Return what to tell the user if an allocation failed; None for any other error."""
    text = str(error)
    refused = r"can't allocate|[Cc]annot allocate memory|not enough memory|out of memory|size calculation overflowed"
    if not isinstance(error, MemoryError) and not (isinstance(error, RuntimeError) and re.search(refused, text)):
        return None
    asked = re.search(r"allocate (\d+(?:\.\d+)? ?\w+)", text)  # 1024 bytes; or 20.00 GiB
    return UserError(
        "out of memory" + (f": {asked[1]} could not be allocated" if asked else ""),
        "use a smaller beam, fewer tokens at a time (decoding.batch_tokens, training.device_tokens), a smaller model "
        "or a machine with more memory",
    )


def device_error(error: BaseException | None) -> UserError | None:
    """Return what to tell the user if a GPU, or a kernel on it, failed and may work again in another process.

    None for any other error, also if memory ran out or PyTorch is not built for the GPU.
    """
    if not isinstance(error, RuntimeError) or memory_error(error) is not None:
        return None
    failures = r"^(CUDA (driver )?error|cuDNN error|Triton Error \[CUDA\])(?!.*no kernel image).*"
    found = re.search(failures, str(error), re.MULTILINE)
    hint = (
        "run the same command again; if it fails again, look for the GPU's faults: dmesg | grep Xid, or nvidia-smi -q"
    )
    return UserError(found[0], hint) if found else None


def _let_segments_grow(device: torch.device) -> None:
    """Use PyTorch's expandable segments, so that varying shapes fragment a GPU's memory less.

    The user's own settings stay. Some virtual GPUs do not support it.
    """
    import torch

    if os.environ.keys() & {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}:
        return
    try:
        torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
        torch.empty(1, device=device)
    except RuntimeError:  # CUDA driver error: operation not supported
        torch._C._accelerator_setAllocatorSettings("expandable_segments:False")


def _keep_memory() -> None:
    """Keep freed memory in the process, in huge pages, instead of returning it to the system.

    The next tensor would get it back page by page, with a page fault each: 5% of a training update. Only glibc can.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # PyTorch looks at its first large allocation
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, TypeError, AttributeError):
        return
    mallopt(-1, -1)  # M_TRIM_THRESHOLD: never
    mallopt(-4, 0)  # M_MMAP_MAX: no mappings of their own, which freeing would undo


# --- ranks: processes started by torchrun, by Slurm or by `nmt train` ------------------------------------------


@dataclass(frozen=True)
class World:
    """The rank of this process among those that train together."""

    rank: int = 0
    size: int = 1
    """Number of ranks"""
    local_rank: int = 0
    """Rank on this host"""
    local_size: int = 1
    """Ranks on this host"""
    has_own_cores: bool = False
    """Whether the cores of this process are its own, as Slurm may assign them; else the ranks of a host share them"""

    def threads(self, cores: int) -> int:
        """Return how many threads this process should use if it may use so many cores."""
        return cores if self.has_own_cores else max(1, cores // self.local_size)


def find_world(environment: Mapping[str, str]) -> World | None:
    """Return the rank that torchrun, or srun with several tasks, gives this process; None if it runs alone."""
    if "RANK" in environment and "WORLD_SIZE" in environment:
        names, has_own_cores = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"), False
    elif environment.get("SLURM_STEP_NUM_TASKS", "1") != "1":
        names = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE")
        # Without --cpus-per-task and binding, Slurm's tasks share their cores.
        has_own_cores = "SLURM_CPUS_PER_TASK" in environment or "cpu" in environment.get("SLURM_CPU_BIND_TYPE", "")
    else:
        return None
    rank, size, local_rank, local_size = (
        int(environment.get(name, default)) for name, default in zip(names, (0, 1, 0, 1), strict=True)
    )
    return World(rank, size, local_rank, local_size, has_own_cores)


def device_of(device: str, world: World) -> str:
    """Return the device of a rank, which sees all GPUs of its host or only its own."""
    import torch

    if device == "cpu" or world.size == 1 or not torch.cuda.is_available():
        return device
    return f"cuda:{0 if torch.cuda.device_count() == 1 else world.local_rank}"


# --- limits of Linux control groups, which containers and batch systems set --------------------------------------
# Versions 1 and 2 are read. The limits of the process's group and of all groups above it apply.


def cpu_quota(groups: Path = GROUPS, own: Path = OWN) -> float | None:
    """Return the CPU quota in cores, such as 2.0 under `docker --cpus=2`; None if there is no limit."""
    limits = []
    for folder in _folders("cpu", groups, own):
        with suppress(OSError, ValueError, ZeroDivisionError):  # "max" is no number
            if (folder / "cpu.max").exists():
                quota, period = map(int, (folder / "cpu.max").read_text().split())
            else:
                quota, period = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
            if quota > 0:  # version 1 writes -1 for no limit
                limits.append(quota / period)
    return min(limits, default=None)


def memory_limit(groups: Path = GROUPS, own: Path = OWN) -> int | None:
    """Return the bytes that the process may have; None if there is no limit."""
    limits = []
    for folder in _folders("memory", groups, own):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with suppress(OSError, ValueError):  # "max" is no number
                limits.append(int((folder / name).read_text()))
    return min(limits, default=None)


def _folders(controller: str, groups: Path, own: Path) -> Iterator[Path]:
    """Yield the process's groups for a controller, and those above them; none outside Linux."""
    try:
        entries = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:
        return
    for _, controllers, path in (entry for entry in entries if len(entry) == 3):
        if not controllers or controller in controllers.split(","):
            group = PurePosixPath(path)
            # A container sees its own group at the top of the hierarchy, whatever it is called outside.
            for above in (group, *group.parents):
                yield groups / controllers / above.relative_to("/")
