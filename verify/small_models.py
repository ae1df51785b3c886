"""A tiny translator and a tiny parser, the sentences that they know, and commands that use them."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import IO

SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvzch" for vowel in "aeiou"]
SENTENCES = ["", *(" ".join(words) for count in (1, 2) for words in itertools.product(SYLLABLES, repeat=count))]
MODEL = """
model: {layers: 1, d_model: 32, d_ff: 32, heads: 1, dropout: 0.0, norm: pre}
training: {updates: 400, batch_tokens: 1500, warmup: 100, log_updates: 400, report: false, valid_beam: 1}
"""
RECIPES = {
    "translate": "name: translate\ndata:\n  source: en\n  target: de\n"
    "  train: [{source: train.en, target: train.de}]\n  valid: [{source: valid.en, target: valid.de}]\n"
    "tokenizer: {vocab_size: 440}\ndecoding: {beam: 1, max_extra: 2, keep: false}",
    "parse": "name: parse\ndata:\n  source: en\n  target: tree\n  train: [{trees: train.mrg}]\n"
    "  valid: [{trees: valid.mrg}]\ntokenizer: {vocab_size: 340}\ndecoding: {beam: 1, max_extra: 10}",
}


def tree(sentence: str) -> str:
    """The tree of one or two words."""
    first, *second = sentence.split()
    return f"(TOP (S (NP (NN {first})) (VP (VB {second[0]}))))" if second else f"(TOP (NP (NN {first})))"


def write_corpus() -> None:
    """Recipes and texts in the current directory."""
    lines = random.Random(1).sample(SENTENCES[1:], len(SENTENCES) - 1)
    for name, part in (("train", lines), ("valid", lines[:20])):
        for ending, shown in (("en", str), ("de", str.upper), ("mrg", tree)):
            Path(f"{name}.{ending}").write_text("".join(f"{shown(line)}\n" for line in part))
    for name, recipe in RECIPES.items():
        Path(f"{name}.yaml").write_text(recipe + MODEL)


def drawn(lines: int, seed: int) -> Iterator[str]:
    """Sentences drawn at random, blank ones among them, so that a line that is lost or moved shows at once."""
    draw = random.Random(seed)
    weights = [len(SENTENCES) / 100, *[1.0] * (len(SENTENCES) - 1)]
    bounds = list(itertools.accumulate(weights))
    for begin in range(0, lines, 1000):
        yield from draw.choices(SENTENCES, cum_weights=bounds, k=min(1000, lines - begin))


def nmt(arguments: str, **streams: IO[bytes] | int) -> subprocess.Popen[bytes]:
    """Begin a command."""
    return subprocess.Popen([sys.executable, "-m", "nmt", *arguments.split()], **streams)  # type: ignore[call-overload, no-any-return]


def succeed(arguments: str) -> None:
    """Run a command that must end well."""
    with nmt(arguments, stderr=subprocess.PIPE) as process:
        said = process.communicate()[1].decode()
    if process.returncode:
        raise SystemExit(f"nmt {arguments} ends with {process.returncode}: {said}")


@cache
def prepare(task: str) -> tuple[str, dict[str, str]]:
    """Train a model; returns the command that searches with it, and what that writes for each sentence."""
    succeed(f"train {task}.yaml --device cpu --threads 1 --out {task}")
    Path("all.in").write_text("".join(f"{line}\n" for line in SENTENCES))
    command = f"{task} --model {task} --device cpu"
    succeed(f"{command} --devices 1 --threads 1 --input all.in --output all.out")
    outputs = Path("all.out").read_text().split("\n")[:-1]
    if len(set(outputs)) < 0.99 * len(SENTENCES):
        raise SystemExit(f"{task}: only {len(set(outputs)):,} outputs of {len(SENTENCES):,} sentences differ")
    return command, dict(zip(SENTENCES, outputs, strict=True))
