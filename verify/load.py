"""A million lines through `nmt translate` and `nmt parse`, and ten thousand updates: what is held must not grow.

    python verify/load.py [--lines 1000000] [--updates 10000] [--seed 1] [--only translate-stream ...] [--report FILE]

A tiny translator and a tiny parser are trained, of which each line costs little. Then

- `stream`: a writer sends bursts of lines, pauses, and single lines; a reader stops for seconds at times. Every line
  comes back in its place, and few are held in between;
- `killed`: the same with three workers, of which one is killed at a drawn line. The command ends with one error and one
  hint, no process is left, and what has come is the beginning of the whole output;
- `resumed`: three workers and --resume, of which one is killed at a drawn moment. The same command then goes on, and
  the output is that of a command that nobody disturbed;
- `train`: tiny updates with checkpoints, validations and ends of epochs.

All the while memory, open descriptors and threads of all processes are sampled. Their curves must be flat; see
`curves.py`. Findings are printed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import re
import subprocess
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from curves import figures, sample
from small_models import RECIPES, drawn, nmt, prepare, write_corpus
from streaming import BYTES_A_LINE, SAMPLES, WORKERS, Stream, Trial, check_failure, kill_worker

BYTES_AN_UPDATE = 500  # the size of a few objects of Python
TRIALS = [*(f"{task}-{kind}" for task in RECIPES for kind in ("stream", "killed", "resumed")), "train"]
TINY = {
    "data.max_length": 20,
    "training.batch_tokens": 60,
    "training.device_tokens": 40,
    "training.checkpoint_updates": 100,
    "training.keep_last": 3,
    "training.report": "true",
}


def resume(command: str, lines: int, seed: int, expected: dict[str, str]) -> Trial:
    """Make a big output twice: the first time, a worker is killed in the first half."""
    began, draw, trial = time.monotonic(), random.Random(seed), Trial()
    Path("big.in").write_text("".join(f"{line}\n" for line in drawn(lines, seed)))
    command += " --input big.in --output big.out --resume"
    trial.killed_at = draw.randrange(lines // 10, lines // 2)
    relatives, code, said = follow(command, trial, lines, draw)
    check_failure(trial, code, said, relatives)
    trial.curve.clear()
    _, code, said = follow(command, trial, lines)
    trial.expect(code == 0, f"ends with {code} when it goes on: {said[-300:]}")
    if code == 0:
        with open("big.out") as output:
            wanted = (expected[line] + "\n" for line in drawn(lines, seed))
            same = all(line == other for line, other in itertools.zip_longest(output, wanted))
        trial.expect(same, "the output is another than without a kill")
    left = sorted(path.name for path in Path().glob("*big.out*"))
    trial.expect(left == ["big.out"], f"{left} are left")
    trial.must_be_flat(BYTES_A_LINE)
    trial.seconds = time.monotonic() - began
    return trial


def follow(command: str, trial: Trial, lines: int, killing: random.Random | None = None) -> tuple[list[int], int, str]:
    """Run a command with --resume and sample it after every block but the last; `killing` draws a worker to kill.

    Returns the processes that there were when one was killed, the exit code, and what was said.
    """
    relatives: list[int] = []
    with tempfile.TemporaryFile() as stderr, nmt(command, stderr=stderr) as process:
        before = 0
        while process.poll() is None:
            done = 10_000 * sum(1 for _ in Path("big.out.parts").glob("0*.json"))
            if lines > done > before and not relatives:
                trial.curve.append(sample(process.pid, done))
                before = done
                if killing and done >= trial.killed_at:
                    time.sleep(killing.uniform(0, 1))
                    relatives = kill_worker(process.pid, killing)
            time.sleep(0.02)
        stderr.seek(0)
        return relatives, process.returncode, stderr.read().decode()


def train(updates: int) -> Trial:
    """Train by tiny updates."""
    began, trial, said = time.monotonic(), Trial(), []
    settings = {**TINY, "training.updates": updates, "training.log_updates": updates // SAMPLES}
    options = " ".join(f"--set {key}={value}" for key, value in settings.items())
    command = f"train translate.yaml --device cpu --threads 1 --out many {options}"
    with nmt(command, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        for line in process.stderr:
            said.append(line.decode())
            if found := re.match(r"update (\d+)/\d+  loss", said[-1]):
                trial.curve.append(sample(process.pid, int(found[1])))
    ended = "".join(said[-20:])
    whole = process.returncode == 0 and f"finished: {updates:,} of {updates:,} updates" in ended
    trial.expect(whole, f"ends with {process.returncode}: {ended}")
    trial.must_be_flat(BYTES_AN_UPDATE)
    trial.seconds = time.monotonic() - began
    return trial


# --- the command ---------------------------------------------------------------------------------------------------


def run(name: str, lines: int, updates: int, seed: int) -> Trial:
    """One of the trials."""
    if name == "train":
        return train(updates)
    task, kind = name.split("-")
    command, expected = prepare(task)
    shared = f"{command} --devices {WORKERS} --threads {WORKERS}"
    match kind:
        case "stream":
            return Stream(f"{command} --devices 1 --threads 1", lines, seed, expected).run()
        case "killed":
            return Stream(shared, lines, seed, expected).run(random.Random(seed).randrange(lines // 2, lines))
    return resume(shared, lines, seed, expected)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=1_000_000, help="of each stream; at least 300,000")
    parser.add_argument("--updates", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=TRIALS, default=TRIALS, metavar="TRIAL", help=", ".join(TRIALS))
    parser.add_argument("--report", type=Path, help="write figures, curves and findings as JSON")
    return parser.parse_args()


def row(name: str, trial: Trial) -> str:
    """What came of a trial, as a row of the table in docs/testing.md."""
    cells = [name, *(f"{count:,}" if count else "–" for count in (trial.killed_at, trial.held))]
    if figure := figures(trial.curve):
        cells += [f"{trial.curve[-1].done:,}", f"{figure['bytes_each']:.1f}"]
        cells.append(f"{figure['memory_before'] / 1024:.1f} → {figure['memory_after'] / 1024:.1f}")
        cells += [f"{figure[f'{what}_before']:g} → {figure[f'{what}_after']:g}" for what in ("descriptors", "threads")]
    return f"| {' | '.join(cells)} | {trial.seconds / 60:.0f} |"


def main() -> None:
    given, results = arguments(), {}
    report = given.report and given.report.absolute()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        write_corpus()
        for name in given.only:
            trial = run(name, given.lines, given.updates, given.seed)
            print(row(name, trial), *(f"    {finding}" for finding in trial.findings), sep="\n", flush=True)
            results[name] = {**asdict(trial), "figures": figures(trial.curve)}
            if report:
                report.parent.mkdir(parents=True, exist_ok=True)
                report.write_text(json.dumps(results))
        os.chdir("/")
    raise SystemExit(any(result["findings"] for result in results.values()))


if __name__ == "__main__":
    main()
