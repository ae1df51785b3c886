"""Table 3 of *Attention Is All You Need* scaled down: rows trained on a small corpus, changes beside the paper's.

    python benchmarks/table3.py --data FOLDER [--rows base c_layers2 ...] [--seeds 1 2] [--factor 8] [--updates 2400]
        [--norm pre|post] [--recipe recipes/multi30k_en_de.yaml] [--work runs/table3] [--jobs 1] [--device cpu|cuda]
        [--table FILE]

Every row is its recipe of recipes/table3 with all widths (d_model, d_ff, d_k, d_v) divided by one factor; layers,
heads, dropout and label smoothing stay. LayerNorm stands before the sub-layers unless `--norm post`: the paper's way
learns too slowly for an hour or two. Data and tokenizer are those of `--recipe`, whose data.root is FOLDER; the rows
share one prepared data set. `--updates` is what base trains for, a row that trains longer in the paper does so here.
As in the paper the last checkpoint is scored on the development set, by beam search; perplexity is per subword,
without smoothing, BLEU is sacreBLEU's on raw text.

Runs that stopped go on, and finished ones are not run again: the same command line completes the table. `--jobs` runs
several at a time, on a CPU each with its share of the threads, else on a GPU each.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from nmt import recipe as recipes
from nmt.checkpoint.reading import Bundle, checkpoint_path, checkpoints
from nmt.data.prepare import prepare
from nmt.recipe import Recipe
from nmt.system.console import Console
from nmt.system.parallelism import cores
from paper import TABLE3, Row

WIDTHS = ("d_model", "d_ff", "d_k", "d_v")
BASE = TABLE3[0]


@dataclass(frozen=True)
class Scale:
    """What is changed in every row alike."""

    factor: int
    """By which widths are divided."""
    updates: int
    """Of base."""
    warmup: int
    batch_tokens: int
    norm: str


@dataclass(frozen=True)
class Result:
    """Dev scores of a row, one for each seed."""

    perplexity: list[float]
    bleu: list[float]


def settings_of(row: Row, scale: Scale, corpus: Recipe, seed: int) -> list[str]:
    """The overrides that make a row's recipe a small one on another corpus."""
    full, base = recipes.load(row.recipe), recipes.load(BASE.recipe)
    values: dict[str, object] = {
        "data": corpus.data.model_dump(mode="json", exclude_none=True),
        "tokenizer": corpus.tokenizer.model_dump(mode="json", exclude_none=True),
        "training.updates": scale.updates * full.training.updates // base.training.updates,
        "training.warmup": scale.warmup,
        "training.batch_tokens": scale.batch_tokens,
        "training.seed": seed,
        "model.norm": scale.norm,
    }
    values["training.checkpoint_updates"] = values["training.updates"]
    for key in WIDTHS:
        width = getattr(full.model, key)
        if width is not None:
            values[f"model.{key}"] = max(1, width // scale.factor)
    return [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in values.items()]


def trained(row: Row, seed: int, scale: Scale, corpus: Recipe, work: Path, threads: int, device: str) -> Bundle:
    """The last checkpoint of a run, which is trained first unless it is there."""
    settings = settings_of(row, scale, corpus, seed)
    recipe = recipes.load(row.recipe, settings)
    key = hashlib.sha256(recipe.to_yaml().encode()).hexdigest()[:8]  # runs of other settings stand elsewhere
    folder = work / row.name / f"seed{seed}-{key}"
    last = checkpoint_path(folder, recipe.training.updates)
    found = [bundle for bundle in checkpoints(folder) if bundle.path == last and bundle.scores]
    if found:
        return found[0]
    overrides = [word for setting in settings for word in ("--set", setting)]
    command = [sys.executable, "-m", "nmt", "train", str(row.recipe), *overrides, "--out", str(folder)]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "log").open("a", encoding="utf-8") as log:
        subprocess.run([*command, "--threads", str(threads), "--device", device], check=True, stderr=log, stdout=log)
    bundle = Bundle.read(last)
    scores = bundle.scores
    minutes = bundle.cost["seconds"] / 60
    print(
        f"{row.name}, seed {seed}: PPL {scores['perplexity']:.2f}, BLEU {scores['bleu']:.2f}; {minutes:.1f} min",
        file=sys.stderr,
        flush=True,
    )
    return bundle


def results(
    rows: Sequence[Row], seeds: Sequence[int], scale: Scale, corpus: Recipe, work: Path, jobs: int, device: str
) -> dict[str, Result]:
    """Trains every row by every seed, `jobs` at a time; seed by seed, so that what is there can be compared early."""
    places: SimpleQueue[str] = SimpleQueue()
    for job in range(jobs):
        places.put("cpu" if device == "cpu" else f"cuda:{job}")

    def run(row: Row, seed: int) -> Bundle:
        place = places.get()
        try:
            return trained(row, seed, scale, corpus, work, max(1, cores() // jobs), place)
        finally:
            places.put(place)

    with ThreadPoolExecutor(jobs) as pool:
        futures = {(row.name, seed): pool.submit(run, row, seed) for seed in seeds for row in rows}
        scores = {key: future.result().scores for key, future in futures.items()}
    return {
        row.name: Result(*([scores[row.name, seed][key] for seed in seeds] for key in ("perplexity", "bleu")))
        for row in rows
    }


def spread(values: Sequence[float]) -> float:
    """Half of the range."""
    return (max(values) - min(values)) / 2


def sign(change: float) -> str:
    """Of a change as printed, to two decimals."""
    return "+" if change >= 0.005 else "−" if change <= -0.005 else "0"


def table(found: dict[str, Result]) -> str:
    """Markdown: the paper's figures and ours, and whether the changes against base have one sign."""
    base = found[BASE.name]
    lines = [
        "| row | change | paper: PPL | BLEU | ours: PPL | BLEU | change of PPL, paper → ours | of BLEU |",
        "|---|---|---:|---:|---:|---:|---|---|",
    ]
    counted = dict.fromkeys(("agree", "compared", "agree beyond", "beyond"), 0)

    def change(theirs: float, mine: Sequence[float], of_base: Sequence[float]) -> str:
        ours = statistics.mean(mine) - statistics.mean(of_base)
        same, clear = sign(theirs) == sign(ours), abs(ours) > spread(mine) + spread(of_base)
        if sign(theirs) == "0":
            return f"0 → {ours:+.2f}"
        counted["compared"] += 1
        counted["agree"] += same
        counted["beyond"] += clear
        counted["agree beyond"] += clear and same
        return f"{theirs:+.2f} → {ours:+.2f}, {'same' if same else '**other**'}{'' if clear else ', within seeds'}"

    def figure(values: Sequence[float]) -> str:
        return f"{statistics.mean(values):.2f}" + (f" ± {spread(values):.2f}" if len(values) > 1 else "")

    for row in TABLE3:
        if row.name not in found:
            continue
        result = found[row.name]
        cells = [row.name, row.change, f"{row.perplexity:.2f}", f"{row.bleu:.1f}"]
        cells += [figure(result.perplexity), figure(result.bleu)]
        if row is not BASE:
            cells.append(change(row.perplexity - BASE.perplexity, result.perplexity, base.perplexity))
            cells.append(change(row.bleu - BASE.bleu, result.bleu, base.bleu))
        lines.append(f"| {' | '.join(cells + [''] * (8 - len(cells)))} |")
    lines += ["", f"Signs agree in {counted['agree']} of {counted['compared']} comparisons."]
    if len(base.bleu) > 1:
        lines[-1] += (
            f" Of the {counted['beyond']} whose change exceeds the spread of seeds they agree in "
            f"{counted['agree beyond']}. ± is half of the range over seeds."
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Trains what is not trained yet and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--recipe", type=Path, default=Path(__file__).parents[1] / "recipes" / "multi30k_en_de.yaml")
    parser.add_argument("--rows", nargs="+", choices=[row.name for row in TABLE3], default=[r.name for r in TABLE3])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--factor", type=int, default=8)
    parser.add_argument("--updates", type=int, default=2400)
    parser.add_argument("--warmup", type=int, default=500)
    parser.add_argument("--vocabulary", type=int, default=4000)
    parser.add_argument("--batch-tokens", type=int, default=1024)
    parser.add_argument("--norm", choices=("pre", "post"), default="pre")
    parser.add_argument("--work", type=Path, default=Path("runs/table3"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--table", type=Path, help="write the table there instead of to stdout")
    arguments = parser.parse_args()
    root = f"data.root={json.dumps(str(arguments.data.resolve()))}"
    corpus = recipes.load(arguments.recipe, [root, f"tokenizer.vocab_size={arguments.vocabulary}"])
    scale = Scale(arguments.factor, arguments.updates, arguments.warmup, arguments.batch_tokens, arguments.norm)
    chosen = [row for row in TABLE3 if row.name in {BASE.name, *arguments.rows}]
    prepare(corpus, Console(quiet=True), cores())  # once, before several runs would
    found = results(chosen, arguments.seeds, scale, corpus, arguments.work, arguments.jobs, arguments.device)
    text = table(found)
    if arguments.table:
        arguments.table.write_text(text, encoding="utf-8")
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
