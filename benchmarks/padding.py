"""Share of padding in training batches, over both sides, of this project's order and of plainer ones.

    python benchmarks/padding.py [--data FOLDER] [--batch-tokens 4096] [--vocab-size 8000]

FOLDER holds train.en.gz and train.de.gz (Multi30k).
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import numpy as np

from nmt import recipe as recipes
from nmt.console import Console
from nmt.data.batches import split_update
from nmt.data.corpus import Corpus, Ids, Rows
from nmt.data.epochs import plan_epoch
from nmt.data.prepare import directory, prepare


def share(batches: list[Rows], sides: tuple[Ids, Ids]) -> float:
    """Padded cells of all cells, `</s>` counted among the tokens."""
    cells = sum(int((side[rows].max() + 1) * len(rows)) for rows in batches for side in sides)
    tokens = sum(int(side[rows].sum() + len(rows)) for rows in batches for side in sides)
    return 1 - tokens / cells


def in_order(order: Rows, sides: tuple[Ids, Ids], batch_tokens: int) -> list[Rows]:
    """Cuts pairs into batches of at most `batch_tokens` tokens on either side, in the given order."""
    batches: list[Rows] = []
    batch: list[int] = []
    sums = np.zeros(2, dtype=np.int64)
    for row in order:
        size = np.array([side[row] + 1 for side in sides])
        if batch and (sums + size).max() > batch_tokens:
            batches.append(np.array(batch))
            batch, sums = [], np.zeros(2, dtype=np.int64)
        batch.append(int(row))
        sums += size
    return [*batches, np.array(batch)]


def main() -> None:
    """Prints a share per order."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data/raw/multi30k"))
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--vocab-size", type=int, default=8000)
    arguments = parser.parse_args()
    content = "{name: padding, data: {source: en, target: de, train: [{source: train.en.gz, target: train.de.gz}]}}"
    data, tokens = arguments.data.resolve(), arguments.batch_tokens
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("recipe.yaml").write_text(content)
        recipe = recipes.load("recipe.yaml", [f"data.root={data}", f"tokenizer.vocab_size={arguments.vocab_size}"])
        prepare(recipe, Console(quiet=True), threads=1)
        corpus = Corpus(directory(recipe) / "train.arrow")
        source, target = sides = (corpus.source_lengths, corpus.target_lengths)
        plan = plan_epoch(source, target, tokens, seed=1, epoch=0)
        updates = [plan.rows(update) for update in range(len(plan))]
        micro = [rows[part] for rows in updates for part in split_update(source[rows], target[rows], tokens)]
        random = np.random.default_rng(1).permutation(len(source))
        alternating = np.where(target % 2 == 0, source, -source)
        orders = {
            "no order": random,
            "target, then source": np.lexsort((source, target)),
            "target, then source up and down in turn": np.lexsort((alternating, target)),
        }
        for name, order in orders.items():
            print(f"{name:<45}{share(in_order(order, sides, tokens), sides):6.2%}")
        print(f"{'this project, updates':<45}{share(updates, sides):6.2%}")
        print(f"{'this project, micro-batches':<45}{share(micro, sides):6.2%}")


if __name__ == "__main__":
    main()
