"""Whether `verify/curves.py` sees what grows, since a check of flatness that never fails proves nothing."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from curves import Sample, family, growing, growth, sample

LINES = range(10_000, 1_010_000, 10_000)
EACH = 8  # bytes


def curve(leak: float = 0, step: int = 0, descriptors: int = 0, threads: int = 0) -> list[Sample]:
    """300 MB with noise, peaks and a beginning that grows, and what leaks in addition: bytes a line, KiB and counts."""
    draw, points = random.Random(1), []
    for number, line in enumerate(LINES):
        late = number >= 75
        start = min(0, number - 40) * 4_000
        peak = 60_000 if number % 12 == 5 else 0
        memory = 300_000 + start + peak + draw.randrange(40) + step * late + int(leak * line / 1024)
        at_times = number % 3 == 0
        points.append(Sample(line, memory, 12 + descriptors * late + at_times, 3 + threads * late + at_times))
    return points


def test_noise_peaks_a_step_and_the_beginning_are_flat() -> None:
    assert growing(curve(), EACH) == []
    assert growing(curve(step=8_000), EACH) == []


@pytest.mark.parametrize(
    ("leaking", "finding"),
    [
        (curve(leak=9), "memory grows by 9."),
        (curve(leak=200), "memory grows by 200."),
        (curve(step=15_000), "memory: 31"),
        (curve(descriptors=1), "descriptors: 13 to 14 in the last quarter, 12 to 13 before"),
        (curve(threads=1), "threads: 4 to 5 in the last quarter, 3 to 4 before"),
        (curve()[:11], "only 11 samples"),
    ],
)
def test_a_leak_is_found(leaking: list[Sample], finding: str) -> None:
    assert any(each.startswith(finding) for each in growing(leaking, EACH))


def test_growth_is_that_between_most_samples() -> None:
    points = [Sample(10 * x, 30 * x + 5_000 * (x > 7) + 8_000 * (x == 12), 0, 0) for x in range(20)]
    assert growth(points) == 3 * 1024


HOLDING = """
import os, threading
if {holds}:
    held, file = bytearray(b"x" * 50_000_000), open("/dev/null")
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    if os.fork() == 0:
        threading.Event().wait(60)
print(flush=True)
input()
os.killpg(0, 9)
"""


@pytest.mark.skipif(
    not (Path("/proc/self/smaps_rollup").exists() and Path(f"/proc/self/task/{os.getpid()}/children").exists()),
    reason="needs Linux's /proc, with lists of children",
)
def test_what_a_process_and_its_child_hold_is_counted() -> None:
    counted = []
    for holds in (False, True):
        command = [sys.executable, "-I", "-c", HOLDING.format(holds=holds)]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            counted.append((sample(process.pid, 0), len(family(process.pid))))
            process.communicate("\n")
    (before, alone), (after, both) = counted
    assert (alone, both) == (1, 2)
    assert after.threads == before.threads + 2
    assert after.descriptors == 2 * before.descriptors + 2
    assert 95_000 < after.memory - before.memory < 120_000  # KiB: what a fork shares is counted in both
