"""Limits of Linux control groups, which containers and batch systems set.

Versions 1 and 2 are supported. The limits of the process's cgroup and all its ancestors apply.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

GROUPS = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


def cpu_quota(groups: Path = GROUPS, own: Path = OWN) -> float | None:
    """Return the CPU quota in cores, such as 2.0 under `docker --cpus=2`; None if there is no limit."""
    limits = []
    for folder in _folders("cpu", groups, own):
        with suppress(OSError, ValueError, ZeroDivisionError):  # ValueError: "max", which means no limit
            if (folder / "cpu.max").exists():
                quota, period = map(int, (folder / "cpu.max").read_text().split())
            else:
                quota = int((folder / "cpu.cfs_quota_us").read_text())
                period = int((folder / "cpu.cfs_period_us").read_text())
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
    if not own.exists():
        return
    for line in own.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        # 0::/path in version 2, which names no controllers; 4:cpu,cpuacct:/path in version 1
        if not controllers or controller in controllers.split(","):
            group = PurePosixPath(path)
            # In a container, the cgroup is mounted at the root, whatever its path outside.
            for above in (group, *group.parents):
                yield groups / controllers / above.relative_to("/")
