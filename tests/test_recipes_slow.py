"""Minutes of training: what the shipped recipes promise."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from reverse_task import shell

ROOT = Path(__file__).parent.parent


def figures_of(folder: Path, *lines: str) -> Any:
    """The scores that the last of these commands prints."""
    shutil.copytree(ROOT / "recipes", folder / "recipes")
    for line in lines:
        done = shell(line, folder, seconds=1800)
        assert done.returncode == 0, (line, done.stderr.decode())
    return json.loads(done.stdout)


@pytest.mark.slow
def test_the_demo_reaches_90_bleu_on_unseen_sentences(tmp_path: Path) -> None:
    found = figures_of(
        tmp_path,
        f"{sys.executable} recipes/demo_corpus.py runs/demo/text",
        "nmt train recipes/demo.yaml && nmt average ckpts/",
        "nmt translate < runs/demo/text/test.en | nmt score runs/demo/text/test.de --json",
    )
    assert found["bleu"]["score"] >= 90


@pytest.mark.slow
def test_the_demo_parses_unseen_sentences_with_an_f1_of_95(tmp_path: Path) -> None:
    found = figures_of(
        tmp_path,
        f"{sys.executable} recipes/demo_treebank.py runs/demo/trees",
        "nmt train recipes/demo_parse.yaml && nmt average ckpts/",
        "nmt parse < runs/demo/trees/test.words | nmt score --metric brackets runs/demo/trees/test.trees --json",
    )
    assert found["brackets"]["f1"] >= 95
    assert found["brackets"]["errors"] == 0
