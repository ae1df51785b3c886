"""The same update on any number of devices: 20 updates by one process, by 2 ranks and by 4, on a CPU, without dropout.

    python benchmarks/ranks.py [--data FOLDER] [--updates 20] [--warmup 400] [--epsilon 1e-9]

FOLDER holds train.en.gz and train.de.gz (Multi30k). One process accumulates micro-batches of at most 512 tokens; ranks
share them and add up gradients through gloo. One more process takes micro-batches of 1,024 tokens: what it differs by
is the order of sums alone. Prints the loss curves side by side and, over all tensors, the largest and the median of
‖a − b‖ / ‖a‖ and the largest of |‖a‖ − ‖b‖| / ‖a‖, where a is the one process's tensor, and how much of the worst
tensor's squared difference one number makes: rounding that pushes one token over the kink of one ReLU shows so.
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

from torch import Tensor

from nmt import recipe as recipes
from nmt.bundle import checkpoint_path, read_tensors
from nmt.console import Console
from nmt.data.prepare import prepare

RUNS = {"1 rank": (1, 512), "1 rank, 1,024": (1, 1024), "2 ranks": (2, 512), "4 ranks": (4, 512)}
"""Ranks, and the most tokens of a micro-batch"""
BARS = {"fp32": 1e-5, "fp64": 1e-9}


def write_recipe(folder: Path, data: Path, updates: int, warmup: int, epsilon: float) -> recipes.Recipe:
    """The run as a recipe file in `folder`."""
    content = {
        "name": "ranks",
        "data": {"source": "en", "target": "de", "train": [{"source": "train.en.gz", "target": "train.de.gz"}]},
        "tokenizer": {"vocab_size": 4000},
        "model": {"layers": 2, "d_model": 64, "d_ff": 256, "heads": 4, "dropout": 0.0},
        "training": {
            "updates": updates,
            "batch_tokens": 2048,
            "warmup": warmup,
            "adam_epsilon": epsilon,
            "log_updates": 1,
            "checkpoint_minutes": None,
        },
    }
    path = folder / "recipe.yaml"
    path.write_text(json.dumps(content))  # JSON is YAML
    return recipes.load(path, [f"data.root={data}"])


def train(folder: Path, data: Path, updates: int, precision: str, run: str) -> tuple[dict[str, Tensor], list[float]]:
    """Weights and losses of a run."""
    out, (ranks, device_tokens) = folder / f"{precision} {run}", RUNS[run]
    command = [sys.executable, "-m", "nmt", "train", "recipe.yaml", "--quiet", "--device", "cpu", "--threads", "1"]
    command += ["--devices", str(ranks), "--out", str(out), "--set", f"data.root={data}"]
    command += ["--set", f"training.precision={precision}", "--set", f"training.device_tokens={device_tokens}"]
    subprocess.run(command, cwd=folder, check=True)
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    weights = read_tensors(checkpoint_path(out, updates) / "model.safetensors")
    return {name: tensor.double() for name, tensor in weights.items()}, [row["loss"] for row in rows if "loss" in row]


def compare(one: dict[str, Tensor], other: dict[str, Tensor], bar: float) -> str:
    """How far weights are from those of the first run, in words."""
    apart = {name: float((a - other[name]).norm() / a.norm()) for name, a in one.items()}
    norms = max(float(abs(a.norm() - other[name].norm()) / a.norm()) for name, a in one.items())
    worst, middle = max(apart, key=lambda name: apart[name]), statistics.median(apart.values())
    difference = one[worst] - other[worst]
    return (
        f"norm of the difference at most {apart[worst]:.1e}, median {middle:.1e}, "
        f"{sum(value <= bar for value in apart.values())} of {len(apart)} tensors within {bar:.0e}; "
        f"difference of norms at most {norms:.1e}; worst {worst}, "
        f"{float(difference.abs().max() / difference.norm()) ** 2:.0%} of it one number"
    )


def main() -> None:
    """Trains and compares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data/raw/multi30k"))
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=400)
    parser.add_argument("--epsilon", type=float, default=1e-9)
    arguments = parser.parse_args()
    data, updates = arguments.data.resolve(), arguments.updates
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recipe = write_recipe(folder, data, updates, arguments.warmup, arguments.epsilon)
        os.chdir(folder)
        prepare(recipe, Console(quiet=True), threads=1)
        for precision, bar in BARS.items():
            runs = {run: train(folder, data, updates, precision, run) for run in RUNS}
            print(f"{precision} loss".ljust(12) + "".join(f"{run:>20}" for run in RUNS))
            for step, losses in enumerate(zip(*(losses for _, losses in runs.values()), strict=True), 1):
                print(f"update {step}".ljust(12) + "".join(f"{loss:20.14f}" for loss in losses))
            one, *others = RUNS
            for run in others:
                print(f"{precision}, {run} and {one}: {compare(runs[one][0], runs[run][0], bar)}", flush=True)


if __name__ == "__main__":
    main()
