"""How long a checkpoint holds up training: runs with one every 5th update beside runs with none, update by update.

    python benchmarks/checkpoint_stall.py [--data FOLDER] [--size base] [--pairs 2] [--checkpoints 4]

FOLDER holds train.en.gz and train.de.gz (Multi30k). The same updates are timed in alternating processes; what an
update takes longer after a checkpoint is given in units of the median update. The first one after it waits for the
copy of weights and moments, those after it share the machine with the thread that writes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from nmt import recipe as recipes
from nmt.console import Console
from nmt.data.prepare import prepare

SIZES = {
    "small": {"layers": 3, "d_model": 256, "d_ff": 1024, "heads": 4},
    "base": {"layers": 6, "d_model": 512, "d_ff": 2048, "heads": 8},
}
EVERY = 5
THREADS = 2


def write_recipe(folder: Path, data: Path, size: str, checkpoints: int) -> recipes.Recipe:
    """The run as a recipe file in `folder`."""
    content = {
        "name": "stall",
        "data": {"source": "en", "target": "de", "train": [{"source": "train.en.gz", "target": "train.de.gz"}]},
        "tokenizer": {"vocab_size": 8000},
        "model": {**SIZES[size], "dropout": 0.1},
        "training": {
            "updates": EVERY * (checkpoints + 1) + 1,  # the last checkpoint is not one that training goes on after
            "batch_tokens": 3700,
            "log_updates": 1,
            "checkpoint_minutes": None,
            "keep_last": 2,
        },
    }
    path = folder / "recipe.yaml"
    path.write_text(json.dumps(content))  # JSON is YAML
    return recipes.load(path, [f"data.root={data}"])


def seconds_per_update(folder: Path, data: Path, *settings: str) -> list[float]:
    """Of a run, from the first update on."""
    with tempfile.TemporaryDirectory(dir=folder) as out:
        command = [sys.executable, "-m", "nmt", "train", "recipe.yaml", "--quiet", "--device", "cpu", "--out", out]
        for setting in (f"data.root={data}", *settings):
            command += ["--set", setting]
        subprocess.run([*command, "--threads", str(THREADS)], cwd=folder, check=True)
        rows = [json.loads(line) for line in (Path(out) / "metrics.jsonl").read_text().splitlines()]
    return [row["seconds_per_update"] for row in rows if "loss" in row]


def main() -> None:
    """Measures and prints as it goes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data/raw/multi30k"))
    parser.add_argument("--size", choices=SIZES, default="base")
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--checkpoints", type=int, default=4)
    arguments = parser.parse_args()
    data = arguments.data.resolve()
    late: dict[int, list[float]] = {place: [] for place in range(1, EVERY + 1)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recipe = write_recipe(folder, data, arguments.size, arguments.checkpoints)
        os.chdir(folder)
        prepare(recipe, Console(quiet=True), THREADS)
        for pair in range(1, arguments.pairs + 1):
            without = seconds_per_update(folder, data)
            having = seconds_per_update(folder, data, f"training.checkpoint_updates={EVERY}")
            usual = statistics.median(without[EVERY:])
            print(f"{arguments.size} {pair}: an update without checkpoints {usual:.2f} s", flush=True)
            for step in range(EVERY, EVERY * (arguments.checkpoints + 1)):
                late[step % EVERY + 1].append((having[step] - without[step]) / usual)
    for place, values in late.items():
        middle, low, high = statistics.median(values), min(values), max(values)
        print(f"update {place} after a checkpoint: {middle:+.2f} updates ({low:+.2f} to {high:+.2f})")
    print(f"a checkpoint in all: {sum(map(statistics.median, late.values())):+.2f} updates")


if __name__ == "__main__":
    main()
