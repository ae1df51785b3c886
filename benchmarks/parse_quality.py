"""How well a parser of GUM parses: F1 by beam, and F1 by the size of the treebank.

    python benchmarks/parse_quality.py --data FOLDER --model CKPTS [--beams 1 4 21]    # a trained parser
    python benchmarks/parse_quality.py --data FOLDER --curve [--shares 8 4 2 1] [--updates 6000] [--work FOLDER]

FOLDER holds train, dev and test .trees.gz (GUM). The curve trains recipes/gum.yaml on every 8th, 4th, … tree, for
equally many updates, averages the last three checkpoints and parses the test set; what a work folder holds is not
trained again.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path

from nmt.api import Parser
from nmt.bundle import resolve
from nmt.device import choose_device
from nmt.metrics.brackets import BracketScores, score_brackets
from nmt.text.tree import Tree, prepare_tree, read_trees

RECIPE = Path(__file__).parent.parent / "recipes" / "gum.yaml"


def prepared(path: Path) -> list[Tree]:
    """The trees of a file as a parser learns them."""
    return [tree for tree in map(prepare_tree, read_trees(path)) if tree is not None]


def with_beam(path: Path, beam: int) -> Parser:
    """The parser of a bundle or a run's directory."""
    bundle, _ = resolve(path)
    decoding = bundle.recipe.decoding.model_copy(update={"beam": beam})
    return Parser(bundle.model(choose_device("auto", None)), bundle.tokenizer(), decoding)


def line_of(name: str, scores: BracketScores, seconds: float) -> str:
    short = scores.short
    return (
        f"{name:24s} F1 {scores.f1:.2f}, failures missed {scores.f1_all:.2f}; ≤ 40 words {short.f1:.2f}, "
        f"{short.f1_all:.2f}; exact {scores.exact:.2f}; errors {scores.errors} of {scores.sentences}; {seconds:.0f} s"
    )


def quality(data: Path, model: Path, beams: Iterable[int]) -> None:
    """F1 of the test set by beam."""
    gold = prepared(data / "test.trees.gz")
    lines = [" ".join(tree.leaves()) for tree in gold]
    for beam in beams:
        parser = with_beam(model, beam)
        start = time.perf_counter()
        scores = score_brackets(gold, (parse.trees[0] for parse in parser.stream(lines)))
        print(line_of(f"beam {beam}", scores, time.perf_counter() - start))


def curve(data: Path, shares: Iterable[int], updates: int, work: Path) -> None:
    """F1 of the test set by the number of trees that training saw."""
    gold = prepared(data / "test.trees.gz")
    trees = prepared(data / "train.trees.gz")
    random.Random(1).shuffle(trees)
    for share in shares:
        part, folder = trees[: len(trees) // share], work / f"share{share}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "train.trees").write_text("".join(f"{tree}\n" for tree in part), encoding="utf-8")
        settings = {
            "data.root": str(data),
            "data.name": f"gum_share{share}",
            "data.train": f"[{{trees: {folder.resolve() / 'train.trees'}}}]",
            "training.updates": updates,
            "training.checkpoint_updates": max(1, updates // 6),
            "data.valid": "[]",
        }
        overrides = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        command = [sys.executable, "-m", "nmt"]
        subprocess.run([*command, "train", RECIPE.resolve(), *overrides, "--out", "ckpts"], cwd=folder, check=True)
        subprocess.run([*command, "average", "ckpts", "--last", "3"], cwd=folder, check=True)
        parser = with_beam(folder / "ckpts" / "averaged", 4)
        start = time.perf_counter()
        scores = score_brackets(gold, parser.parse([" ".join(tree.leaves()) for tree in gold]))
        print(line_of(f"{len(part):,} trees", scores, time.perf_counter() - start), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", type=Path, help="a bundle or a run's directory")
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 4, 21])
    parser.add_argument("--curve", action="store_true")
    parser.add_argument("--shares", type=int, nargs="+", default=[8, 4, 2, 1])
    parser.add_argument("--updates", type=int, default=6000)
    parser.add_argument("--work", type=Path, help="keeps what the curve trains")
    arguments = parser.parse_args()
    if arguments.model:
        quality(arguments.data, arguments.model, arguments.beams)
    if arguments.curve:
        with nullcontext(arguments.work) if arguments.work else tempfile.TemporaryDirectory() as folder:
            curve(arguments.data, arguments.shares, arguments.updates, Path(folder))


if __name__ == "__main__":
    main()
