"""Which of several equal processes this one is: started by torchrun, by Slurm or by `nmt train`, or alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nmt.errors import UserError


@dataclass(frozen=True)
class Place:
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


def find_place(environment: Mapping[str, str]) -> Place | None:
    """The place that torchrun, or srun with several tasks, gives this process; None where it runs alone."""
    if "RANK" in environment and "WORLD_SIZE" in environment:
        names, has_own_cores = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"), False
    elif environment.get("SLURM_STEP_NUM_TASKS", "1") != "1":
        names = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE")
        has_own_cores = is_bound(environment)
    else:
        return None
    given = {name: environment[name] for name in names if name in environment}
    try:
        numbers = (int(given.get(name, default)) for name, default in zip(names, (0, 1, 0, 1), strict=True))
        rank, size, local_rank, local_size = numbers
        return Place(rank, size, local_rank, local_size, has_own_cores)
    except ValueError:
        listed = ", ".join(f"{name}={value}" for name, value in given.items())
        raise UserError(
            f"the environment must place this process by whole numbers, but has {listed}",
            f"start it by torchrun or srun, or alone: unset {' '.join(given)}",
        ) from None


def is_bound(environment: Mapping[str, str]) -> bool:
    """Return whether Slurm gives each task cores of its own; without --cpus-per-task and binding they share them."""
    return "SLURM_CPUS_PER_TASK" in environment or "cpu" in environment.get("SLURM_CPU_BIND_TYPE", "")


def device_of(device: str, place: Place) -> str:
    """The device of one process of a group, which sees all GPUs of its host or only its own."""
    import torch

    if device == "cpu" or place.size == 1 or not torch.cuda.is_available():
        return device
    return f"cuda:{0 if torch.cuda.device_count() == 1 else place.local_rank}"
