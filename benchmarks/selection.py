"""Choose between settings of a recipe: train each for the same processor seconds, and compare their dev scores.

    python benchmarks/selection.py TRIALS.toml --out OUT [--seconds 1500] [--scores 4] [--jobs 2] [--python PYTHON]

TRIALS.toml names what is tried; of a trial, only name and recipe must be given:

    [[trial]]
    name = "wider"
    recipe = "recipes/laptop.yaml"
    set = ["data.root=FOLDER", "model.d_model=192"]
    seconds = 1500           # instead of --seconds
    updates = 9000           # instead of as many as fit into the seconds
    code = "../checkout"     # a folder with a package nmt to try instead of this one

Each trial runs on one thread, `--jobs` of them at a time. How many updates fit into its seconds is measured first, by
two short trainings, from whose difference start and end cancel. A trial that was stopped goes on, and one that has a
row in OUT/results.jsonl is not run again: the same command completes the table. Dev scores alone decide; test sets are
not touched.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

SHORT = (50, 200)  # updates of the two trainings that tell how long an update takes
HOME = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Trial:
    """A recipe with settings, and how long it is trained."""

    name: str
    recipe: str
    set: tuple[str, ...] = ()
    seconds: float | None = None
    updates: int | None = None
    code: str = str(HOME)


@dataclass(frozen=True)
class Runner:
    """How trials are run."""

    out: Path
    python: str
    seconds: float
    scores: int
    """Number of dev scores of a trial"""

    def train(self, trial: Trial, updates: int, folder: str, sets: Sequence[str]) -> float:
        """Train a trial to its end in a folder of its own; return the processor seconds of this call."""
        command = [self.python, "-m", "nmt", "train", str(Path(trial.recipe).resolve()), "--quiet"]
        command += ["--threads", "1", "--devices", "1", "--out", str(self.out / trial.name / folder)]
        everywhere = (f"training.updates={updates}", "training.minutes=1e6", "training.report=false")
        for each in (*trial.set, *everywhere, *sets):
            command += ["--set", each]
        environment = {**os.environ, "PYTHONPATH": str(Path(trial.code).resolve()), "OMP_NUM_THREADS": "1"}
        log = (self.out / trial.name / "log").open("a")
        with log, subprocess.Popen(command, cwd=self.out, env=environment, stdout=log, stderr=log) as process:
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            sys.exit(f"{trial.name}: nmt train failed; {self.out / trial.name / 'log'} says why")
        return float(usage.ru_utime + usage.ru_stime)  # with those of its children

    def fitting(self, trial: Trial) -> int:
        """Return how many updates fit into a trial's seconds."""
        if trial.updates is not None:
            return trial.updates
        kept = self.out / trial.name / "updates"
        if not kept.exists():
            spent = []
            for updates in SHORT:
                folder = f"short-{updates}"
                schedule = ("training.warmup=10", f"training.checkpoint_updates={updates}", "data.valid=[]")
                spent.append(self.train(trial, updates, folder, schedule))
                shutil.rmtree(self.out / trial.name / folder)
            each = (spent[1] - spent[0]) / (SHORT[1] - SHORT[0])
            kept.write_text(f"{(trial.seconds or self.seconds) / each:.0f}\n")
        return int(kept.read_text())

    def run(self, trial: Trial) -> dict[str, object]:
        """Train a trial; return its dev scores and what it took."""
        (self.out / trial.name).mkdir(parents=True, exist_ok=True)
        updates = self.fitting(trial)
        seconds = self.train(trial, updates, "run", (f"training.checkpoint_updates={-(-updates // self.scores)}",))
        lines = (self.out / trial.name / "run" / "metrics.jsonl").read_text().splitlines()
        curve = list[dict[str, float]]()
        for line in map(json.loads, lines):
            scores = {name: round(line[name], 3) for name in line if name.startswith("valid_")}
            if scores:
                curve.append({"step": line["step"], "tokens": line["tokens"], **scores})
        return {"name": trial.name, **curve[-1], "processor_seconds": round(seconds), "curve": curve[:-1]}


def read_trials(path: Path) -> list[Trial]:
    """Return the trials of a file, in its order."""
    given = tomllib.loads(path.read_text())["trial"]
    return [Trial(**each | {"set": tuple(each.get("set", ()))}) for each in given]


def main() -> None:
    """Run the trials that have no result yet, and print all results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trials", type=Path, metavar="TRIALS.toml")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=1500, help="of the processor, for each trial")
    parser.add_argument("--scores", type=int, default=4, help="on the development set, for each trial")
    parser.add_argument("--jobs", type=int, default=2, help="trials at a time, a thread each")
    parser.add_argument("--python", default=sys.executable)
    options = parser.parse_args()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    results = out / "results.jsonl"
    results.touch()
    runner = Runner(out, options.python, options.seconds, options.scores)
    finished = {json.loads(line)["name"] for line in results.read_text().splitlines()}
    writing = Lock()

    def complete(trial: Trial) -> None:
        row = runner.run(trial)
        with writing, results.open("a") as file:
            print(json.dumps(row), file=file, flush=True)

    with ThreadPoolExecutor(options.jobs) as pool:
        waiting = [trial for trial in read_trials(options.trials) if trial.name not in finished]
        list(pool.map(complete, waiting))
    print(results.read_text(), end="")


if __name__ == "__main__":
    main()
