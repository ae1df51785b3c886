"""Commands that are disturbed, and the small corpus and model with which they are."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path


@dataclass(frozen=True)
class Scenario:
    """A command, and those that prepare the folder in which it runs."""

    name: str
    before: Sequence[str]
    command: str
    unfinished: str = r"(?!)"
    """Files that a command that was ended keeps, to go on from there: a regular expression"""
    never: str = r"(?!)"
    """What the next run does not say"""


TRAIN = "train recipe.yaml --device cpu --threads 1 --out ckpts"
TRANSLATE = "translate --model ckpts --device cpu --threads 1 --input test.en"
RUN = r"ckpts/.*"
SCENARIOS = [
    Scenario("preprocess", [], "preprocess recipe.yaml --threads 1"),
    Scenario("preprocess-again", ["preprocess recipe.yaml --set data.max_length=20"], "preprocess recipe.yaml"),
    Scenario("train", [], TRAIN, RUN),
    Scenario("resume", [f"{TRAIN} --set training.updates=2"], TRAIN, RUN, never=r"starting: "),
    Scenario("average", [TRAIN, "average ckpts --last 1"], "average ckpts"),
    Scenario("average-auto", [TRAIN], "average ckpts --last auto --device cpu --threads 1"),
    Scenario("average-huggingface", [TRAIN], "average ckpts --format huggingface --out hf"),
    Scenario("translate", [TRAIN, f"{TRANSLATE} --beam 1 --output out.de"], f"{TRANSLATE} --output out.de"),
    Scenario("translate-json", [TRAIN], f"{TRANSLATE} --devices 2 --n-best 2 --json --output out.jsonl.gz"),
    Scenario("translate-resume", [TRAIN], f"{TRANSLATE} --output out.de --resume", r"out\.de\.parts/.*"),
    Scenario("average-ctranslate2", [TRAIN], "average ckpts --format ctranslate2 --out ct2"),
]
if find_spec("ctranslate2") is None:
    SCENARIOS.pop()
WORDS = {"a": "ein", "dog": "Hund", "cat": "Kater", "sees": "sieht", "the": "den", "old": "alten", "man": "Mann"}
RECIPE = """
name: faults
data:
  source: en
  target: de
  train: [{source: train.en, target: train.de}]
  valid: [{source: valid.en, target: valid.de}]
  max_length: 50
tokenizer: {vocab_size: 280}
model: {layers: 1, d_model: 16, d_ff: 32, heads: 2, dropout: 0.1}
training: {updates: 3, batch_tokens: 200, warmup: 2, checkpoint_updates: 1, keep_last: 2, log_updates: 1, valid_beam: 1}
decoding: {beam: 2, max_extra: 3}
"""
BLOCK_LINES = 9  # of translate --resume: three blocks


def write_corpus(folder: Path) -> None:
    """A recipe and a corpus of 130 pairs of its own."""
    draw = random.Random(3)
    lines = [" ".join(draw.choices(list(WORDS), k=draw.randint(2, 7))) for _ in range(130)]
    parts = {"train": lines[:100], "valid": lines[100:103], "test": lines[106:]}
    (folder / "recipe.yaml").write_text(RECIPE)
    for name, part in parts.items():
        (folder / f"{name}.en").write_text("".join(f"{line}.\n" for line in part))
        (folder / f"{name}.de").write_text("".join(" ".join(WORDS[w] for w in line.split()) + ".\n" for line in part))
