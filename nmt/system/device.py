"""Use a device: make it current, copy to and from it, know its memory, and tell its errors apart.

Which device, and how many threads, `nmt/system/parallelism.py` answers.
"""

from __future__ import annotations

import ctypes
import math
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nmt.system import torch_internals
from nmt.system.cgroups import memory_limit
from nmt.system.errors import UserError
from nmt.system.parallelism import find_device, threads_of_torch

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from torch import Tensor

GIB = 2**30
SPINS = 1000  # iterations that a waiting thread spins before it sleeps; GNU OpenMP's default is 300,000


def let_waiting_threads_sleep() -> None:
    """Reduce the time that waiting OpenMP threads spin; call this before importing torch.

    PyTorch's GNU OpenMP lets waiting threads spin for milliseconds. If another process competes for the cores, spinning
    threads delay the very thread they wait for. The user's own OpenMP settings take precedence.
    """
    if not os.environ.get("OMP_WAIT_POLICY"):
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPINS))


def choose_device(name: str, threads: int | None, worker: int | None = None) -> torch.device:
    """Resolve a device by `find_device` and make it current; configure PyTorch's threads, kernels and allocators.

    `threads` defaults to those of `threads_of_torch`; `worker` is the number of one of several, as for `find_device`.
    """
    import torch

    torch.set_num_threads(threads_of_torch(threads))
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
        segments = torch.cuda.memory_snapshot()
    except RuntimeError:  # CUDA's own allocator has no snapshots
        return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
    for segment in segments:
        # Pool (0, 0) is the default one; CUDA graphs have private pools, which other tensors cannot use.
        if segment["device"] == at and segment["segment_pool_id"] == (0, 0):
            free += segment["total_size"] - segment["allocated_size"]
    return int(free)


def host_memory() -> int | None:
    """Return the available bytes of memory and swap, or the cgroup's limit if lower; None if neither is known."""
    bounds = [memory_limit()]
    with suppress(OSError, KeyError, ValueError):
        sizes = {}
        for line in Path("/proc/meminfo").read_text().splitlines():
            name, size, *_ = line.split()
            sizes[name] = 1024 * int(size)
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
    problem = "out of memory"
    asked = re.search(r"allocate (\d+(?:\.\d+)? ?\w+)", text)  # such as `1024 bytes` or `20.00 GiB`
    if asked:
        problem += f": {asked[1]} could not be allocated"
    return UserError(
        problem,
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
    if found is None:
        return None
    hint = "run this again; if it fails again, look for the GPU's faults: dmesg | grep Xid, or nvidia-smi -q"
    return UserError(found[0], hint)


def known_error(error: Exception) -> UserError:
    """Convert any error of a process that has no stderr to a UserError."""
    if isinstance(error, UserError):
        return error
    known = memory_error(error) or device_error(error)
    if known:
        return known
    message = " ".join(f"{type(error).__name__}: {error}".split())
    return UserError(message, "run it with --debug and report the traceback")


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


RETRY = 0.9  # factor by which to shrink a size that did not fit


def largest_fitting(measure: Callable[[int], int], least: int, most: int, limit: int) -> int:
    """Return the largest micro-batch size between `least` and `most` tokens that fits in `limit` bytes, or `least`.

    `measure` runs a micro-batch of the given size and returns its memory in bytes, or raises torch.OutOfMemoryError.
    Memory is linear in tokens, so the size is extrapolated from two small micro-batches and verified by a third.
    """
    import torch

    def memory_of(tokens: int) -> float:
        with suppress(torch.OutOfMemoryError):
            return measure(tokens)
        torch.cuda.empty_cache()  # outside `suppress`, so the traceback's tensors are freed
        return math.inf

    small = min(most, 4 * least)
    first = memory_of(least)
    second = memory_of(small)
    if small == most and second <= limit:
        return most
    if second <= limit:
        slope = max(1.0, (second - first) / (small - least))
        tokens = min(most, least + int((limit - first) / slope))
    else:
        tokens = int(RETRY * small)
    while tokens > least and memory_of(tokens) > limit:
        tokens = int(RETRY * tokens)
    return max(least, tokens)
