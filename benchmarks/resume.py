"""Runs stopped at random moments and resumed, against the run never stopped: are final weights and moments bit-equal?

    python benchmarks/resume.py [--trials 30] [--seed 1] [--ranks 1 2]

Each trial trains a small model with dropout for 60 updates, which are two epochs, with checkpoints and validation, and
is stopped once or twice after a random update by SIGKILL or SIGTERM, of the process that was started or, where there
are several ranks, of any of them; then the same command goes on. Trials take the numbers of ranks in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from nmt.bundle import checkpoint_path

UPDATES = 60
DELAY = 0.3  # seconds at most from a random update to the signal: into the next updates, validation, writing
PATIENCE = 120.0  # seconds that anything may take
RECIPE = {
    "name": "resume",
    "data": {
        "source": "en",
        "target": "de",
        "train": [{"source": "train.en", "target": "train.de"}],
        "valid": [{"source": "valid.en", "target": "valid.de"}],
        "max_length": 100,
    },
    "tokenizer": {"vocab_size": 400},
    "model": {"layers": 2, "d_model": 64, "d_ff": 256, "heads": 4, "dropout": 0.1},
    "training": {
        "updates": UPDATES,
        "batch_tokens": 768,
        "device_tokens": 256,
        "warmup": 100,
        "checkpoint_updates": 7,
        "keep_last": 3,
        "log_updates": 1,
        "valid_beam": 1,
    },
    "decoding": {"max_extra": 5},
}


def start(folder: Path, out: Path, ranks: int) -> subprocess.Popen[bytes]:
    """The command that begins a run and goes on with it."""
    command = [sys.executable, "-m", "nmt", "train", "recipe.yaml", "--device", "cpu", "--devices", str(ranks)]
    with (folder / f"{out.name}.log").open("ab") as log:
        return subprocess.Popen([*command, "--threads", "1", "--out", str(out)], cwd=folder, stderr=log)


def is_at(process: subprocess.Popen[bytes], out: Path, step: int) -> bool:
    """Waits until the run has logged an update; False where it ended before."""
    metrics = out / "metrics.jsonl"
    while True:
        ended = process.poll() is not None
        if metrics.exists() and any(f'"step": {step},' in line for line in metrics.read_text().splitlines()):
            return True
        if ended:
            return False
        time.sleep(0.005)


def workers(process: subprocess.Popen[bytes]) -> list[int]:
    """Processes of the ranks that a launcher has started."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(child) for child in children if b"nmt\0train" in Path(f"/proc/{child}/cmdline").read_bytes()]


def is_running(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def stop(process: subprocess.Popen[bytes], ranks: int, choose: random.Random) -> str:
    """Sends a random signal to a random process of a run; says what it did. Returns when the run has ended, if it was
    the process that a user started."""
    number = choose.choice((signal.SIGKILL, signal.SIGTERM))
    found = workers(process) if ranks > 1 else []
    rank = choose.choice([None, None, *range(ranks)]) if len(found) == ranks else None
    if rank is not None:
        os.kill(found[rank], number)
        return f"{number.name} of a rank"
    process.send_signal(number)
    process.wait(PATIENCE)
    until = time.monotonic() + PATIENCE
    while any(is_running(pid) for pid in found):  # they notice that the launcher is gone, save and end
        if time.monotonic() > until:
            raise SystemExit(f"ranks {found} outlived their launcher by {PATIENCE:.0f} s")
        time.sleep(0.05)
    return f"{number.name} of {'the launcher' if ranks > 1 else 'the process'}"


def trial(folder: Path, out: Path, ranks: int, choose: random.Random) -> str:
    """A run stopped and resumed to its end; says how it was stopped."""
    told = []
    process = start(folder, out, ranks)
    for step in sorted(choose.sample(range(1, UPDATES), choose.choice((1, 2)))):
        while not is_at(process, out, step):
            process = start(folder, out, ranks)
        time.sleep(choose.uniform(0, DELAY))
        told.append(f"{stop(process, ranks, choose)} after update {step}")
        if process.poll() is not None:
            process = start(folder, out, ranks)
    finish(folder, out, ranks, process)
    return ", ".join(told)


def finish(folder: Path, out: Path, ranks: int, process: subprocess.Popen[bytes]) -> None:
    """Goes on with a run to its end."""
    for _ in range(3):
        if process.wait(PATIENCE) == 0:
            return
        process = start(folder, out, ranks)
    raise SystemExit(f"{out.name} does not end well:\n{(folder / f'{out.name}.log').read_text()}")


def outcome(out: Path) -> tuple[bytes, ...]:
    """Final weights and moments as they lie on disk."""
    last = checkpoint_path(out, UPDATES)
    return tuple((last / name).read_bytes() for name in ("model.safetensors", "training.safetensors"))


def main() -> None:
    """Prints a line a trial and the count of equal ones."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    arguments = parser.parse_args()
    choose = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        corpus = Path(__file__).resolve().parents[1] / "recipes" / "demo_corpus.py"
        sizes = ["--train", "600", "--valid", "20", "--test", "1"]
        subprocess.run([sys.executable, str(corpus), str(folder), *sizes], check=True, stdout=subprocess.DEVNULL)
        (folder / "recipe.yaml").write_text(json.dumps(RECIPE))  # JSON is YAML
        unbroken = {}
        for ranks in arguments.ranks:
            out = folder / f"unbroken-{ranks}"
            finish(folder, out, ranks, start(folder, out, ranks))
            unbroken[ranks] = outcome(out)
        equal = 0
        for number in range(arguments.trials):
            ranks = arguments.ranks[number % len(arguments.ranks)]
            out = folder / f"trial-{number + 1}"
            told = trial(folder, out, ranks, choose)
            same = outcome(out) == unbroken[ranks]
            equal += same
            print(f"{number + 1}: {ranks} ranks, {told}: {'equal' if same else 'DIFFERENT'}", flush=True)
        print(f"{equal} of {arguments.trials} bit-equal to the run never stopped")


if __name__ == "__main__":
    main()
