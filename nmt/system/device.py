"""Devices, threads and memory."""

from __future__ import annotations

import ctypes
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from nmt.system import torch_internals
from nmt.system.errors import UserError
from nmt.system.launchers import World, cores_of_task

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from torch import Tensor

GIB = 2**30
GROUPS, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
SPINS = 1000  # iterations that a waiting thread spins before it sleeps; GNU OpenMP's default is 300,000


def cores() -> int:
    """Return the number of usable CPU cores: the size of the affinity mask, or the container's CPU quota if lower.

    The cores of a Slurm task are a limit too, since Slurm does not always bind tasks to them.
    """
    limits = [len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1]
    if quota := cpu_quota():
        limits.append(math.ceil(quota))
    if (reserved := cores_of_task(os.environ)) is not None:
        limits.append(reserved)
    return max(1, min(limits))


def let_waiting_threads_sleep() -> None:
    """Reduce the time that waiting OpenMP threads spin; call this before importing torch.

    PyTorch's GNU OpenMP lets waiting threads spin for milliseconds. If another process competes for the cores, spinning
    threads delay the very thread they wait for. The user's own OpenMP settings take precedence.
    """
    if not os.environ.get("OMP_WAIT_POLICY"):
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPINS))


def choose_device(name: str, threads: int | None, worker: int | None = None) -> torch.device:
    """Resolve a device by `find_device` and make it current; configure PyTorch's threads, kernels and allocators.

    `threads` defaults to PyTorch's own number of threads, at most `cores()`.
    """
    import torch

    torch.set_num_threads(threads or min(torch.get_num_threads(), cores()))
    device = torch.device(find_device(name, torch.cuda.device_count(), worker))
    if device.type == "cpu":
        _keep_memory()
        return device
    # On recent GPUs PyTorch prefers cuDNN's attention, which takes up to 0.5 s to build a plan for each new shape, and
    # sentences come in thousands of shapes. The flash and memory-efficient kernels need no plan.
    torch.backends.cuda.enable_cudnn_sdp(False)
    if device.index is not None:
        torch.cuda.set_device(device)
    _let_segments_grow(device)
    return device


def find_device(name: str, cuda_devices: int, worker: int | None = None) -> str:
    """Resolve a device name, such as auto, to cpu, cuda or cuda:N; the 0-based `worker` N gets cuda:N.

    Raise UserError if there is no such device.
    """
    if name == "auto":
        name = "cuda" if cuda_devices else "cpu"
    if not re.fullmatch(r"cpu|cuda(:[0-9]+)?", name):
        raise UserError(f"--device {name}: no such device", "use auto, cpu, cuda or cuda:1")
    if worker is not None and name.startswith("cuda"):
        if ":" in name:
            raise UserError(f"--device {name}: is one device for several workers", "use --device cuda, or no --devices")
        name = f"cuda:{worker}"
    kind, _, index = name.partition(":")
    if kind == "cuda" and int(index or 0) >= cuda_devices:
        raise UserError(f"--device {name}: this machine has {cuda_devices} CUDA devices", "use another, such as cpu")
    return name


def device_of(device: str, world: World) -> str:
    """Return the device of this process's rank, which may see all GPUs of its host or only its own.

    Raise UserError if there is no such device.
    """
    import torch

    if world.size == 1:
        return device
    there = torch.cuda.device_count()
    if ":" in device and world.local_size == 1:
        return find_device(device, there)
    return find_device(device, there, 0 if there == 1 else world.local_rank)


def is_cpu(name: str) -> bool:
    """Return whether `find_device` resolves a device name to the CPU."""
    import torch

    return find_device(name, torch.cuda.device_count()) == "cpu"


def available_memory(device: torch.device) -> int | None:
    """Return the allocatable bytes: `host_memory`, or on a GPU those that are free or cached by PyTorch's allocator.

    What CUDA graphs hold does not count.
    """
    import torch

    if device.type != "cuda":
        return host_memory()
    free, _ = torch.cuda.mem_get_info(device)
    at = torch.cuda.current_device() if device.index is None else device.index
    try:
        segments = [each for each in torch.cuda.memory_snapshot() if each["device"] == at]
    except RuntimeError:  # CUDA's own allocator has no snapshots
        return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
    shared = (each for each in segments if each["segment_pool_id"] == (0, 0))
    return int(free + sum(each["total_size"] - each["allocated_size"] for each in shared))


def host_memory() -> int | None:
    """Return the available bytes of memory and swap, or the cgroup's limit if lower; None if neither is known."""
    bounds = [memory_limit()]
    with suppress(OSError, KeyError, ValueError):
        lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
        sizes = {words[0]: 1024 * int(words[1]) for words in lines}
        bounds.append(sizes["MemAvailable:"] + sizes["SwapFree:"])
    return min((bound for bound in bounds if bound is not None), default=None)


def check_room(needed: int, available: int | None, what: str, hint: str) -> None:
    """Raise UserError if `what` needs more bytes than are `available`; None means unknown."""
    if available is not None and needed > available:
        memory = f"{available / GIB:,.1f} GiB of memory are available"
        raise UserError(f"{what} need {needed / GIB:,.1f} GiB or more, but {memory}", hint)


def upload(values: Tensor | NDArray[Any] | Sequence[Any], device: torch.device) -> Tensor:
    """Return host values as a tensor on `device`."""
    import torch

    tensor = torch.as_tensor(values)
    if device.type == "cuda":
        tensor = tensor.pin_memory()  # a copy from pageable memory would block the host
    return tensor.to(device, non_blocking=True)


class Download:
    """Asynchronous copies of a device's tensors to the host."""

    def __init__(self, *tensors: Tensor) -> None:
        import torch

        self._copies = [tensor.to("cpu", non_blocking=True) for tensor in tensors]
        self._there = torch.cuda.Event() if tensors[0].is_cuda else None
        if self._there is not None:
            self._there.record(torch.cuda.current_stream(tensors[0].device))

    def read(self) -> list[Tensor]:
        """Wait for the copies and return them."""
        if self._there is not None:
            self._there.synchronize()
        return self._copies


def memory_error(error: Exception) -> UserError | None:
    """Convert an out-of-memory error to a UserError; return None for any other error."""
    text = str(error)
    refused = r"can't allocate|[Cc]annot allocate memory|not enough memory|out of memory|size calculation overflowed"
    if not isinstance(error, MemoryError) and not (isinstance(error, RuntimeError) and re.search(refused, text)):
        return None
    asked = re.search(r"allocate (\d+(?:\.\d+)? ?\w+)", text)  # such as `1024 bytes` or `20.00 GiB`
    return UserError(
        "out of memory" + (f": {asked[1]} could not be allocated" if asked else ""),
        "use a smaller beam, fewer tokens at a time (decoding.batch_tokens, training.device_tokens), a smaller model "
        "or a machine with more memory",
    )


def device_error(error: BaseException | None) -> UserError | None:
    """Convert the failure of a GPU or a kernel to a UserError; return None for any other error.

    Return None also for errors that would recur in a new process: out of memory, or a PyTorch not built for the GPU.
    """
    if not isinstance(error, RuntimeError) or memory_error(error) is not None:
        return None
    failures = r"^(CUDA (driver )?error|cuDNN error|Triton Error \[CUDA\])(?!.*no kernel image).*"
    found = re.search(failures, str(error), re.MULTILINE)
    hint = "run this again; if it fails again, look for the GPU's faults: dmesg | grep Xid, or nvidia-smi -q"
    return UserError(found[0], hint) if found else None


def known_error(error: Exception) -> UserError:
    """Convert any error of a process that has no stderr to a UserError."""
    message = " ".join(f"{type(error).__name__}: {error}".split())
    bug = UserError(message, "run it with --debug and report the traceback")
    return error if isinstance(error, UserError) else memory_error(error) or device_error(error) or bug


def _let_segments_grow(device: torch.device) -> None:
    """Enable PyTorch's expandable segments where supported, to reduce fragmentation by varying shapes.

    The user's own settings take precedence.
    """
    import torch

    set_allocator = torch_internals.find("torch:_C._accelerator_setAllocatorSettings")
    if set_allocator is None or os.environ.keys() & {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}:
        return
    try:
        set_allocator("expandable_segments:True")
        torch.empty(1, device=device)
    except RuntimeError:  # CUDA driver error: operation not supported, on some virtual GPUs
        set_allocator("expandable_segments:False")


def _keep_memory() -> None:
    """Make glibc keep freed memory, in huge pages, instead of returning it to the system.

    Reallocating it would cost a page fault per page: 5% of a training update.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # PyTorch reads this on its first large allocation
    with suppress(OSError, TypeError, AttributeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(-1, -1)  # M_TRIM_THRESHOLD: never trim the heap
        mallopt(-4, 0)  # M_MMAP_MAX: no separate mappings, which `free` would unmap


# --- limits of Linux control groups, which containers and batch systems set --------------------------------------
# Versions 1 and 2 are supported. The limits of the process's cgroup and all its ancestors apply.


def cpu_quota(groups: Path = GROUPS, own: Path = OWN) -> float | None:
    """Return the CPU quota in cores, such as 2.0 under `docker --cpus=2`; None if there is no limit."""
    limits = []
    for folder in _folders("cpu", groups, own):
        with suppress(OSError, ValueError, ZeroDivisionError):  # ValueError: "max", which means no limit
            if (folder / "cpu.max").exists():
                quota, period = map(int, (folder / "cpu.max").read_text().split())
            else:
                quota, period = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
            if quota > 0:  # version 1 writes -1 for no limit
                limits.append(quota / period)
    return min(limits, default=None)


def memory_limit(groups: Path = GROUPS, own: Path = OWN) -> int | None:
    """Return the memory limit in bytes; None if there is no limit."""
    limits = []
    for folder in _folders("memory", groups, own):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with suppress(OSError, ValueError):  # ValueError: "max", which means no limit
                limits.append(int((folder / name).read_text()))
    return min(limits, default=None)


def _folders(controller: str, groups: Path, own: Path) -> Iterator[Path]:
    """Yield the directories of the process's cgroups for `controller` and of their ancestors; none outside Linux."""
    for line in own.read_text().splitlines() if own.exists() else ():
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            group = PurePosixPath(path)
            # In a container, the cgroup is mounted at the root, whatever its path outside.
            for above in (group, *group.parents):
                yield groups / controllers / above.relative_to("/")


RETRY = 0.9  # factor by which to shrink a size that did not fit


def largest_fitting(measure: Callable[[int], int], least: int, most: int, limit: int) -> int:
    """Return the largest micro-batch size between `least` and `most` tokens that fits in `limit` bytes, or `least`.

    `measure` runs a micro-batch of the given size and returns its memory in bytes, or raises torch.OutOfMemoryError.
    Memory is linear in tokens, so the size is extrapolated from two small micro-batches and verified by a third.
    """
    import torch

    def taken(tokens: int) -> float:
        with suppress(torch.OutOfMemoryError):
            return measure(tokens)
        torch.cuda.empty_cache()  # outside `suppress`, so the traceback's tensors are freed
        return math.inf

    small = min(most, 4 * least)
    first, second = taken(least), taken(small)
    if small == most and second <= limit:
        return most
    if second <= limit:
        slope = max(1.0, (second - first) / (small - least))
        tokens = min(most, least + int((limit - first) / slope))
    else:
        tokens = int(RETRY * small)
    while tokens > least and taken(tokens) > limit:
        tokens = int(RETRY * tokens)
    return max(least, tokens)
