"""Time and memory of `nmt score --metric brackets`, reading of both sides included.

    python benchmarks/brackets_speed.py [--trees 10000 100000] [--repeat 3]

Trees are random and of the size of the Wall Street Journal's: 23.5 words and 18 constituents in the mean, one per line.
In hypotheses one label of twelve is another one, and one tree of six is drawn anew. Each time is that of a process with
one core, start-up included; memory is its peak resident set.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LABELS = ["NP", "VP", "PP", "S", "SBAR", "ADVP", "ADJP", "PRT", "QP", "WHNP"]
TAGS = ["NN", "IN", "NNP", "DT", "JJ", "VBD", ",", ".", "RB", "CD"]


def tree(draw: random.Random, words: list[str]) -> str:
    """A random tree over tagged words."""
    if len(words) == 1:
        return words[0] if draw.random() < 0.75 else f"({draw.choice(LABELS)} {words[0]})"
    ends = sorted(draw.sample(range(1, len(words)), min(draw.choice([1, 2, 2, 3]), len(words) - 1)))
    parts = [words[start:end] for start, end in zip([0, *ends], [*ends, len(words)], strict=True)]
    return f"({draw.choice(LABELS)} {' '.join(tree(draw, part) for part in parts)})"


def relabelled(draw: random.Random, line: str) -> str:
    """The tree with one constituent of twelve called something else."""
    return re.sub(r"\(\w+ (?=\()", lambda m: f"({draw.choice(LABELS)} " if draw.random() < 1 / 12 else m[0], line)


def write(folder: Path, trees: int) -> tuple[float, float]:
    """Writes gold and hypotheses, and gives words and constituents of a tree in the mean."""
    draw = random.Random(1)
    words = brackets = 0
    with (folder / "gold").open("w") as gold, (folder / "hypotheses").open("w") as hypotheses:
        for _ in range(trees):
            length = max(1, min(100, round(draw.gauss(23.5, 11))))
            leaves = [f"({draw.choice(TAGS)} word{draw.randrange(20_000)})" for _ in range(length)]
            line = tree(draw, leaves)
            gold.write(f"(TOP {line})\n")
            hypotheses.write(f"(TOP {tree(draw, leaves) if draw.random() < 1 / 6 else relabelled(draw, line)})\n")
            words += length
            brackets += line.count("(") - length
    return words / trees, brackets / trees


def score(folder: Path) -> tuple[float, float, float]:
    """Seconds by the clock and of the processor, and peak MiB, of a process with one core."""
    core = max(os.sched_getaffinity(0))
    command = [sys.executable, "-m", "nmt", "score", "--metric", "brackets", "gold", "hypotheses", "--json"]
    start = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.DEVNULL, preexec_fn=lambda: os.sched_setaffinity(0, [core])
    )
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0
    return time.perf_counter() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main() -> None:
    """Prints a line per number of trees."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trees", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    for trees in arguments.trees:
        with tempfile.TemporaryDirectory() as name:
            words, brackets = write(Path(name), trees)
            clock, processor, memory = zip(*(score(Path(name)) for _ in range(arguments.repeat)), strict=True)
        wall, busy = (
            f"{statistics.median(times):.1f} s ({min(times):.1f} to {max(times):.1f})" for times in (clock, processor)
        )
        print(
            f"{trees:,} trees of {words:.1f} words and {brackets:.1f} constituents: {wall}, of the processor {busy}; "
            f"{max(memory):.0f} MiB",
            flush=True,
        )


if __name__ == "__main__":
    main()
