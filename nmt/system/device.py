"""Which device computes, on how many threads and in how much memory, and which of several processes this one is."""

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
    """CPU cores that this process may keep busy: those of its affinity mask, or fewer by its container's CPU quota.

    For a task of Slurm, SLURM_CPUS_PER_TASK is a limit as well, since not every Slurm binds tasks to their cores.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota()
    if quota is not None:
        allowed = max(1, min(allowed, math.ceil(quota)))
    if "SLURM_STEP_NUM_TASKS" in os.environ:  # not set in a batch script, whose processes share the cores of all tasks
        with suppress(KeyError, ValueError):
            allowed = max(1, min(allowed, int(os.environ["SLURM_CPUS_PER_TASK"])))
    return allowed


def let_waiting_threads_sleep() -> None:
    """Shorten how long threads spin while they wait for one another; to be called before torch is imported.

    GNU OpenMP, which PyTorch computes with, lets a thread that waits spin for milliseconds. Where another process
    wants the same cores, the spinning keeps the thread that is waited for from running. The user's own settings of
    OpenMP stay.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPINS))


def choose_device(name: str, threads: int | None, worker: int | None = None) -> torch.device:
    """The device that `find_device` says, from now on the current one; sets PyTorch's threads and attention kernels.

    Without `threads` PyTorch has as many as it likes, but no more than `cores`.
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
    """cpu, cuda or cuda:N of a device called so or auto; of one of several workers, counted from 0, its own.

    Raises UserError where there is none such.
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
    """Return the bytes that this process could still get: of a GPU what is free or held unused by PyTorch's allocator.

    Elsewhere return `host_memory`.
    """
    import torch

    if device.type != "cuda":
        return host_memory()
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def host_memory() -> int | None:
    """Bytes that the machine has available, swap counted, or the limit of the process's cgroup where that is less.

    None where nobody tells.
    """
    limit = memory_limit()
    bounds = [] if limit is None else [limit]
    with suppress(OSError, KeyError, ValueError):
        lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
        sizes = {words[0]: 1024 * int(words[1]) for words in lines}
        bounds.append(sizes["MemAvailable:"] + sizes["SwapFree:"])
    return min(bounds, default=None)


def check_room(needed: int, there: int | None, what: str, hint: str) -> None:
    """Raises UserError where `what` needs more bytes than there are; None where nobody knows how many these are."""
    if there is not None and needed > there:
        available = f"{there / GIB:,.1f} GiB of memory are available"
        raise UserError(f"{what} need {needed / GIB:,.1f} GiB or more, but {available}", hint)


def memory_error(error: Exception) -> UserError | None:
    """What to tell the user where memory could not be had; None of any other error."""
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
    """What to tell the user where a GPU, or what ran on it, has failed and may work again in another process.

    None of any other error, and where the memory ran out or PyTorch is not built for the GPU.
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
    """Lets PyTorch extend the memory that it has of a GPU, so that shapes that vary leave fewer gaps in it.

    The user's own settings stay, and some virtual GPUs cannot do it.
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


# --- processes of a group: started by torchrun, by Slurm or by `nmt train` -------------------------------------


@dataclass(frozen=True)
class World:
    """Which process of a group this is."""

    rank: int = 0
    size: int = 1
    """Ranks in all"""
    local_rank: int = 0
    """Number among the ranks of this host"""
    local_size: int = 1
    """Ranks on this host"""
    has_own_cores: bool = False
    """Whether the cores that this process may use are its own, as Slurm may give them; else the ranks share them"""

    def threads(self, cores: int) -> int:
        """Return how many threads this process should have where it may use so many cores."""
        return cores if self.has_own_cores else max(1, cores // self.local_size)


def find_world(environment: Mapping[str, str]) -> World | None:
    """The place that torchrun, or srun with several tasks, gives this process; None where it runs alone."""
    if "RANK" in environment and "WORLD_SIZE" in environment:
        names, has_own_cores = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"), False
    elif environment.get("SLURM_STEP_NUM_TASKS", "1") != "1":
        names = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE")
        has_own_cores = is_bound(environment)
    else:
        return None
    rank, size, local_rank, local_size = (
        int(environment.get(name, default)) for name, default in zip(names, (0, 1, 0, 1), strict=True)
    )
    return World(rank, size, local_rank, local_size, has_own_cores)


def is_bound(environment: Mapping[str, str]) -> bool:
    """Return whether Slurm gives each task cores of its own; without --cpus-per-task and binding they share them."""
    return "SLURM_CPUS_PER_TASK" in environment or "cpu" in environment.get("SLURM_CPU_BIND_TYPE", "")


def device_of(device: str, world: World) -> str:
    """The device of one process of a group, which sees all GPUs of its host or only its own."""
    import torch

    if device == "cpu" or world.size == 1 or not torch.cuda.is_available():
        return device
    return f"cuda:{0 if torch.cuda.device_count() == 1 else world.local_rank}"


# --- what the control groups of Linux grant this process, as containers and batch systems set them --------------
# Versions 1 and 2 are read. A limit of any group on the way up from that of the process binds it.


def cpu_quota(groups: Path = GROUPS, own: Path = OWN) -> float | None:
    """Cores' worth of time, such as 2.0 under `docker --cpus=2`; None where there is no limit."""
    limits = []
    for folder in _folders("cpu", groups, own):
        with suppress(OSError, ValueError, ZeroDivisionError):  # "max" is no number
            if (folder / "cpu.max").exists():
                quota, period = map(int, (folder / "cpu.max").read_text().split())
            else:
                quota, period = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
            if quota > 0:  # version 1 writes -1 where there is none
                limits.append(quota / period)
    return min(limits, default=None)


def memory_limit(groups: Path = GROUPS, own: Path = OWN) -> int | None:
    """Bytes that the process may have; None where there is no limit."""
    limits = []
    for folder in _folders("memory", groups, own):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with suppress(OSError, ValueError):  # "max" is no number
                limits.append(int((folder / name).read_text()))
    return min(limits, default=None)


def _folders(controller: str, groups: Path, own: Path) -> Iterator[Path]:
    """The groups of the process that may limit it by a controller, and those above; none where there is no Linux."""
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
