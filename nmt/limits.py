"""What the control groups of Linux grant this process, as containers and batch systems set them: CPU time and memory.

Versions 1 and 2 are read. A limit of any group on the way up from that of the process binds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

GROUPS, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


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
