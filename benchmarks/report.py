"""How large a report is and how long it takes to write; and which share of a run's time its report took.

    python benchmarks/report.py [--steps 100000] [--validations 20] [--sentences 1000] [--out FOLDER]
    python benchmarks/report.py --runs CKPTS ...

The first form makes the files of a run with so many logged steps and scored checkpoints, of made-up words and figures,
and writes its page. The second adds up `report_seconds` of runs' metrics.jsonl: processor time of the process that
writes the page, and what the run's own process spends on scoring sentences.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nmt.console import Console
from nmt.files import write_json
from nmt.recipe import load
from nmt.training.progress import ABOUT, METRICS
from nmt.training.refreshing import PAGE
from nmt.training.samples import SAMPLES, Samples

RECIPE = Path(__file__).parents[1] / "recipes" / "wmt14_en_de.yaml"
REPORT = {
    "read": 4_500_000,
    "kept": 4_400_000,
    "kept by set": [4_400_000],
    "dropped: empty": 40_000,
    "dropped: too long": 60_000,
    "mean length of sources": 28.1,
    "mean length of targets": 29.6,
    "sentences by length in subwords, up to": {str(top): 1_000_000 for top in (5, 10, 20, 30, 40, 60, 80, 100)},
}


def write_run(out: Path, steps: int, validations: int, sentences: int, seed: int) -> float:
    """Writes what a report is made from; returns the mean characters of a sentence."""
    random = np.random.default_rng(seed)
    letters = np.array(list("abcdefghiklmnoprstuvwz"))
    words = ["".join(random.choice(letters, size)) for size in random.integers(2, 11, 5000)]

    def texts() -> list[list[str]]:
        sizes = np.exp(random.normal(2.9, 0.5, sentences)).clip(2, 80).astype(int)
        return [[words[row] for row in random.integers(0, len(words), size)] for size in sizes]

    def made_up(_: Sequence[str], outputs: Sequence[str]) -> list[float]:
        return [float(score) for score in random.uniform(0, 100, len(outputs))]

    references, sources = texts(), [" ".join(text) for text in texts()]
    lines = [" ".join(text) for text in references]
    samples = Samples(out / SAMPLES, sources, lines, made_up, Console())
    every, rows = steps // validations, []
    for step in range(1, steps + 1):
        loss = 2 + 6 * np.exp(-step / steps * 5) + random.normal(0, 0.05)
        rows.append(logged(step, loss, random))
        if step % every == 0:
            share = 0.1 + 0.6 * np.exp(-3 * step / steps)
            hypotheses = [
                [w if random.random() > share else words[random.integers(5000)] for w in t] for t in references
            ]
            samples.add(step, [" ".join(words) for words in hypotheses])
            figures = {"step": step, "seconds": step / 3, "tokens": 25_000 * step, "report_seconds": 0.5}
            rows.append(figures | {"valid_bleu": 30 - 30 * share, "valid_perplexity": float(np.exp(loss - 1))})
    (out / METRICS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = load(RECIPE)
    (out / "recipe.yaml").write_text(recipe.to_yaml(), encoding="utf-8")
    write_json(out / ABOUT, {"parameters": 63_000_000, "base": None, "data": {"train": REPORT, "valid": REPORT}})
    return float(np.mean([len(line) for line in lines]))


def logged(step: int, loss: float, random: np.random.Generator) -> dict[str, float]:
    """A line of the training log, with the keys of a run on a GPU."""
    return {
        "step": step,
        "epoch": step // 8000,
        "seconds": step / 3,
        "tokens": 25_000 * step,
        "learning_rate": 512**-0.5 * min(step**-0.5, step * 4000**-1.5),
        "loss": loss,
        "perplexity": float(np.exp(loss - 1)),
        "gradient_norm": float(random.gamma(4, 0.1)),
        "tokens_per_second": float(random.normal(75_000, 2_000)),
        "tokens_per_update": float(random.normal(25_000, 100)),
        "seconds_per_update": float(random.normal(1 / 3, 0.01)),
        "padding": float(random.uniform(0, 0.1)),
        "data_wait": float(random.uniform(0, 0.01)),
        "memory_bytes": 12_000_000_000,
        "flops_per_second": float(random.normal(1e14, 1e12)),
        "skipped": 0,
    }


def measure(out: Path) -> None:
    """Writes the page of a run and prints what that takes."""
    times = [(time.perf_counter(), time.process_time())]
    from nmt.report.page import write_page
    from nmt.report.record import read_run

    times.append((time.perf_counter(), time.process_time()))
    record = read_run(out)
    times.append((time.perf_counter(), time.process_time()))
    write_page([record], out / PAGE)
    times.append((time.perf_counter(), time.process_time()))
    size = (out / PAGE).stat().st_size
    print(f"page: {size:,} bytes, {size / 1e6:.2f} MB (bar: under 5)")
    for kind, seconds in zip(("seconds", "of the processor"), np.diff(times, axis=0).T, strict=True):
        importing, reading, writing = seconds
        parts = f"importing {importing:.2f}, reading {reading:.2f}, writing {writing:.2f}"
        print(f"{kind}: {sum(seconds):.2f} (bar: under 5): {parts}")
    print(f"shown: outputs of {len(record.dev_outputs)} checkpoints, {len(record.logged['step']):,} logged steps")


def share(run: Path) -> None:
    """Prints the share of a run's time that its report took."""
    rows = [json.loads(line) for line in (run / METRICS).read_text().splitlines()]
    spent, seconds = sum(row.get("report_seconds", 0.0) for row in rows), max(row["seconds"] for row in rows)
    print(f"{run}: {spent:.2f} s of {seconds:,.1f} s, a share of {spent / seconds:.4f}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--validations", type=int, default=20)
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="keep the files there, an empty folder")
    parser.add_argument("--runs", type=Path, nargs="+", metavar="CKPTS")
    given = parser.parse_args(arguments)
    if given.runs:
        for run in given.runs:
            share(run)
        return
    with tempfile.TemporaryDirectory() as folder:
        out: Path = given.out or Path(folder)
        out.mkdir(parents=True, exist_ok=True)
        mean = write_run(out, given.steps, given.validations, given.sentences, given.seed)
        texts = f"{given.validations} × {given.sentences:,} sentences of {mean:.0f} characters"
        print(f"a run of {given.steps:,} logged steps, {texts}")
        measure(out)


if __name__ == "__main__":
    main()
