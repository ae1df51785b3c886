"""Training on a machine whose cores another process wants too: how long waiting threads spin decides.

    python benchmarks/busy_machine.py [--rounds 7] [--seconds 10] [--recipe recipes/demo.yaml]

Updates per second of `nmt train` with two threads, with one thread, and with two whose waiting is GNU OpenMP's own,
300,000 spins, as it was before the command set it. Every round has each of them once on the machine as it is, which
should be idle, and once beside a process that computes all the time.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
TRAININGS: dict[str, tuple[dict[str, str], int]] = {
    "two threads": ({}, 2),
    "two threads, spinning as before": ({"GOMP_SPINCOUNT": "300000"}, 2),
    "one thread": ({}, 1),
}
"""What is added to the environment, and the threads."""


@contextmanager
def spinning(wanted: bool) -> Iterator[None]:
    """A process that computes all the time, if one is wanted."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if wanted else None
    try:
        yield
    finally:
        if process is not None:
            process.kill()
            process.wait()


def updates_per_second(work: Path, recipe: Path, environment: dict[str, str], threads: int, seconds: float) -> float:
    """Of a run that is measured from its second update on and then killed."""
    with tempfile.TemporaryDirectory(dir=work) as out:
        command = [
            sys.executable,
            "-m",
            "nmt",
            "train",
            str(recipe),
            "--quiet",
            "--out",
            out,
            "--threads",
            str(threads),
        ]
        for setting in (f"data.root={work}", "data.valid=[]", "training.log_updates=1", "training.updates=1000000"):
            command += ["--set", setting]
        process = subprocess.Popen(command, cwd=work, env=os.environ | {"PYTHONPATH": str(ROOT)} | environment)
        try:
            metrics, start, before = Path(out) / "metrics.jsonl", time.monotonic(), 0
            while time.monotonic() < start + seconds or not before:
                time.sleep(0.1)
                if process.poll() is not None:
                    raise SystemExit(f"training ended with {process.returncode}")
                if not before and metrics.exists() and (before := done(metrics)) < 2:
                    before, start = 0, time.monotonic()
            return (done(metrics) - before) / (time.monotonic() - start)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()


def done(metrics: Path) -> int:
    """Updates logged so far."""
    lines = metrics.read_text().split("\n")[:-1]
    return int(json.loads(lines[-1])["step"]) if lines else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--recipe", type=Path, default=ROOT / "recipes" / "demo.yaml")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        subprocess.run([sys.executable, ROOT / "recipes" / "demo_corpus.py", work], check=True)
        results: dict[tuple[str, bool], list[float]] = {
            (name, busy): [] for busy in (False, True) for name in TRAININGS
        }
        for number in range(arguments.rounds + 1):
            for name, busy in results:
                with spinning(busy):
                    speed = updates_per_second(work, arguments.recipe, *TRAININGS[name], arguments.seconds)
                if number:  # the first round prepares the data and is not counted
                    results[name, busy].append(speed)
    print(f"{arguments.recipe.name}, {arguments.rounds} rounds of {arguments.seconds:g} s, {datetime.now():%Y-%m-%d}")
    for (name, busy), speeds in results.items():
        against = results["one thread" if busy else "two threads, spinning as before", busy]
        ratios = [speed / other for speed, other in zip(speeds, against, strict=True)]
        print(
            f"  {'busy' if busy else 'idle'}, {name:32s} {statistics.median(speeds):6.2f} updates/s   "
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) of "
            f"{'one thread' if busy else 'spinning as before'}"
        )


if __name__ == "__main__":
    main()
