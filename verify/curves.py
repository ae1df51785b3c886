"""Curves of what a process and its descendants hold while they work, and whether these are flat; for Linux."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

SHARE = 0.03  # by which memory may be larger in the last quarter of a curve than in the third
FEWEST = 12  # samples of a curve


class Sample(NamedTuple):
    """What a process and its descendants held at some moment."""

    done: int
    """Lines or updates by then"""
    memory: int
    """KiB of memory that no file backs; a page that forks share is counted in each"""
    descriptors: int
    """Open files, pipes and so on"""
    threads: int


def family(process: int) -> list[int]:
    """A process and all its descendants; those that have ended are left out."""
    with suppress(OSError):
        children = [int(child) for task in _listed(process, "task") for child in _children(process, task)]
        return [process, *(member for child in children for member in family(child))]
    return []


def _listed(process: int, what: str) -> list[str]:
    return os.listdir(f"/proc/{process}/{what}")


def _children(process: int, task: str) -> list[str]:
    with suppress(OSError):  # the thread has ended
        return Path(f"/proc/{process}/task/{task}/children").read_text().split()
    return []


def sample(process: int, done: int) -> Sample:
    """Look at a process and its descendants now."""
    memory = descriptors = threads = 0
    for member in family(process):
        with suppress(OSError):  # it has ended
            # A page that forks share is counted in each of them, else it would look like a leak that they go on to
            # copy pages of their parent when they write to them. Pages of libraries are not counted: the kernel
            # drops them and reads them again.
            rollup = Path(f"/proc/{member}/smaps_rollup").read_text()
            memory += sum(map(int, re.findall(r"^(?:Anonymous|Pss_Shmem|Swap): *(\d+)", rollup, re.MULTILINE)))
            descriptors += len(_listed(member, "fd"))
            threads += len(_listed(member, "task"))
    return Sample(done, memory, descriptors, threads)


def growth(curve: Sequence[Sample]) -> float:
    """Median of the bytes for each line or update by which memory grows from one sample to the next.

    What is lost makes it grow from nearly each to the next. Steps do not matter: they come with batches that are larger
    than all before, and when memory is given back.
    """
    return 1024 * median(
        (after.memory - before.memory) / (after.done - before.done) for before, after in pairwise(curve)
    )


def figures(curve: Sequence[Sample]) -> dict[str, float]:
    """Figures of the second half of a curve.

    In the first, buffers and caches grow to their sizes, and so do the largest batches, and the most lines in flight,
    that chance has brought about.
    """
    if len(curve) < FEWEST:
        return {}
    third, last = _quarters(curve)
    return {
        "memory_before": median(point.memory for point in third),
        "memory_after": median(point.memory for point in last),
        "bytes_each": growth(curve[len(curve) // 2 :]),
        "descriptors_before": median(point.descriptors for point in third),
        "descriptors_after": median(point.descriptors for point in last),
        "threads_before": median(point.threads for point in third),
        "threads_after": median(point.threads for point in last),
    }


def _quarters(curve: Sequence[Sample]) -> tuple[Sequence[Sample], Sequence[Sample]]:
    """The third quarter and the last."""
    half, quarter = curve[len(curve) // 2 :], len(curve) // 4
    return half[:quarter], half[-quarter:]


def growing(curve: Sequence[Sample], bytes_each: float) -> list[str]:
    """What of a curve is not flat; memory may grow by less than `bytes_each` for each line or update."""
    if len(curve) < FEWEST:
        return [f"only {len(curve)} samples"]
    found, figure = [], figures(curve)
    if figure["bytes_each"] >= bytes_each:
        found.append(f"memory grows by {figure['bytes_each']:.1f} bytes each")
    if figure["memory_after"] > figure["memory_before"] * (1 + SHARE):
        found.append(f"memory: {figure['memory_after']:g} in the last quarter, {figure['memory_before']:g} before")
    for what in ("descriptors", "threads"):  # some come and go: what is lost raises the fewest and the most of them
        third, last = ([getattr(point, what) for point in part] for part in _quarters(curve))
        if min(last) > min(third) and max(last) > max(third):
            found.append(f"{what}: {min(last)} to {max(last)} in the last quarter, {min(third)} to {max(third)} before")
    return found
