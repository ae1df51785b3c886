"""Which devices, processes and threads a command uses, one function per question.

The answers depend on the options --device, --devices and --threads, on the machine, and on what a launcher has
assigned. `nmt/system/device.py:choose_device` applies them to this process; what the processes compute is not known
here. A training has ranks, and a search has workers. Each has a GPU of its own, or a share of the CPU's threads.
"""

from __future__ import annotations

import math
import os
import re
import sys

from nmt.system.cgroups import cpu_quota
from nmt.system.errors import UserError
from nmt.system.launchers import World, cores_of_task

MOST_WORKERS = 256  # above any host's number of GPUs, and any useful number of CPU workers
MOST_THREADS = 1024
MOST_PROCESSES = 16  # on a CPU, unless the user asks for more
LEAST_SHARE = 500  # with fewer tokens per update and side for each process, threads are faster than processes

# --- devices ----------------------------------------------------------------------------------------------------


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


# --- processes --------------------------------------------------------------------------------------------------


def forks() -> bool:
    """Return whether processes can be forked here; elsewhere they are started anew."""
    return sys.platform == "linux"


def is_gpu(device: str) -> bool:
    """Return whether `--device` stands for a GPU; raise UserError if there is no such device."""
    import torch

    return find_device(device, torch.cuda.device_count()) != "cpu"


def can_fork(device: str) -> bool:
    """Return whether processes that compute on a device are forks: only on a CPU.

    Raise UserError if there is no such device.
    """
    return not is_gpu(device) and forks()


def count_ranks(device: str, devices: int | None, on_cpu: int = 1, found: World | None = None) -> int:
    """Return how many ranks of a training this process starts, itself included, for `--device` and `--devices`.

    The default is one per visible GPU, or `on_cpu`. A rank that a launcher has started, `found`, starts no others.
    Raise UserError if the launcher or the machine has another number.
    """
    import torch

    if found is not None:
        if devices not in (None, found.size, found.local_size):
            problem = f"--devices {devices}: a launcher has started {found.size:,} ranks, each for one device"
            raise UserError(problem, "leave --devices out, or start nmt train without a launcher")
        return 1
    on_gpu = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
    if devices is None:
        if not on_gpu:
            return on_cpu
        return 1 if ":" in device else max(1, torch.cuda.device_count())
    if devices > 1 and ":" in device:
        raise UserError(f"--devices {devices}: --device {device} is one device", "use --device cuda, or no --devices")
    there = torch.cuda.device_count()
    if on_gpu and devices > there:
        hint = f"use --devices {there}" if there else "use --device cpu"
        raise UserError(f"--devices {devices}: this machine has {there} CUDA devices", hint)
    return devices


def ranks_on_cpu(threads: int, batch_tokens: int, is_compiled: bool) -> int:
    """Return the default number of ranks that train on a CPU with this many threads and tokens an update and side.

    Compiled operations use all threads themselves.
    """
    if is_compiled or not forks():
        return 1
    return max(1, min(threads, MOST_PROCESSES, batch_tokens // LEAST_SHARE))


def count_workers(wanted: int | None, threads: int | None, are_forked: bool) -> int:
    """Return the number of processes of a search; by default one per thread if they are forked, else one."""
    if wanted:
        return wanted
    if are_forked:
        return min(threads_in_all(threads), MOST_PROCESSES)
    return 1


def check_counts(workers: int | None, threads: int | None) -> None:
    """Raise UserError unless the numbers of workers and threads are those that the command line takes, or None."""
    for name, count, most in (("workers", workers, MOST_WORKERS), ("threads", threads, MOST_THREADS)):
        if count is not None and not 1 <= count <= most:
            raise UserError(f"{name}: must be from 1 to {most:,} (got {count:,})", f"leave {name} out for the default")


# --- threads ----------------------------------------------------------------------------------------------------


def cores() -> int:
    """Return the number of usable CPU cores: the size of the affinity mask, or the container's CPU quota if lower.

    The cores of a Slurm task are a limit too, since Slurm does not always bind tasks to them.
    """
    limits = [os.cpu_count() or 1]
    if hasattr(os, "sched_getaffinity"):
        limits = [len(os.sched_getaffinity(0))]
    quota = cpu_quota()
    if quota:
        limits.append(math.ceil(quota))
    reserved = cores_of_task(os.environ)
    if reserved is not None:
        limits.append(reserved)
    return max(1, min(limits))


def threads_in_all(wanted: int | None) -> int:
    """Return the number of threads of all processes of a command: as many as wanted, or one per core."""
    return wanted or cores()


def threads_of_torch(wanted: int | None) -> int:
    """Return the number of threads of one process's operations: as many as wanted, or PyTorch's default.

    The default is capped at `cores()`, since waiting threads would slow down working ones.
    """
    import torch

    return wanted or min(torch.get_num_threads(), cores())


def threads_of_rank(wanted: int | None, world: World) -> int | None:
    """Return the number of threads of a rank that a launcher has started; for a process alone, what is wanted."""
    if world.size == 1:
        return wanted
    threads = threads_in_all(wanted)
    if world.has_own_cores:
        return threads
    return share_of_threads(threads, world.local_size)


def threads_of_worker(wanted: int | None, workers: int) -> int | None:
    """Return the number of threads of each of a search's `workers`; for one alone, what is wanted."""
    if workers == 1:
        return wanted
    return share_of_threads(threads_in_all(wanted), workers)


def share_of_threads(threads: int, processes: int) -> int:
    """Return the number of threads of each of several processes of a host."""
    return max(1, threads // processes)
