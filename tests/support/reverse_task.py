"""A translation task that is learned within a test, and a shell to run it in."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import fork_server
import pytest
import torch
from torch import Tensor

from nmt.checkpoint.reading import checkpoints, read_tensors
from nmt.system.integrity import MANIFESTS, write_manifest


def shell(command: str, cwd: Path, seconds: float = 300) -> subprocess.CompletedProcess[bytes]:
    """Runs a command line as a user would, with `nmt` on the path and pipefail on."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    function, variables = fork_server.for_shells()
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", function + command],
        cwd=cwd,
        env={**os.environ, **variables, "PATH": path},
        capture_output=True,
        timeout=seconds,
        check=False,
    )


def reseal(folder: Path) -> None:
    """Updates the hashes of a bundle or of prepared data to the files as they are, after a test changed them."""
    manifest = next(folder / name for name in MANIFESTS if (folder / name).exists())
    write_manifest(manifest, json.loads(manifest.read_text()))


def sets(*settings: str) -> list[str]:
    """Command-line arguments that override keys of a recipe."""
    return [part for setting in settings for part in ("--set", setting)]


def small(training: str, *settings: str) -> list[str]:
    """Arguments for a tiny model and a short training, such as `small("updates: 12", *BARE)`."""
    model = "model={layers: 1, d_model: 16, d_ff: 16, heads: 2, dropout: 0.1}"
    return sets(model, f"training={{batch_tokens: 500, warmup: 20, {training}}}", *settings)


def parameters(folder: Path) -> dict[str, Tensor]:
    """All tensors of a run's last checkpoint, including Adam's moments."""
    newest = checkpoints(folder)[-1].path
    return read_tensors(newest / "model.safetensors") | read_tensors(newest / "training.safetensors")


def assert_equal_to_the_bit(folder: Path, other: Path) -> None:
    """Assert that the last checkpoints of two runs have the same weights and moments."""
    first, second = parameters(folder), parameters(other)
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []


def assert_near(folder: Path, other: Path, tolerance: float) -> None:
    """Assert that tensors of two runs differ by a share of their norms at most, and that the runs saw the same."""
    first, second = parameters(folder), parameters(other)
    assert first.keys() == second.keys()
    differences = {name: float((first[name] - second[name]).norm() / second[name].norm()) for name in first}
    allowed = {name: tolerance * (10 if ":" in name else 1) for name in first}  # moments are of few updates
    assert {name: by for name, by in differences.items() if by > allowed[name]} == {}
    places = [{key: position(of)[key] for key in ("step", "epoch", "offset", "tokens")} for of in (folder, other)]
    assert places[0] == places[1]
    losses = [[row["loss"] for row in metrics(of) if "loss" in row] for of in (folder, other)]
    assert losses[0] == pytest.approx(losses[1], rel=max(tolerance, 1e-6))


def names(folder: Path) -> list[str]:
    """Return the names of what is in a folder, sorted."""
    return sorted(path.name for path in folder.iterdir())


def metrics(folder: Path) -> list[dict[str, float]]:
    """The lines of a run's metrics.jsonl."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def position(folder: Path) -> dict[str, float]:
    """The training.json of a run's last checkpoint: how far the run had come."""
    return json.loads((checkpoints(folder)[-1].path / "training.json").read_text())  # type: ignore[no-any-return]


AUGMENTED = "data.augment={upper: 0.2, title: 0.2, unpunctuated: 0.3, typos: 0.3, joined: 0.2}"
BARE = "data.name=bare", "data.valid=[]"
"""Settings for the task without its development set; `prepared_task` holds this data as well."""

REVERSE_RECIPE = """\
name: reverse
data:
  source: a
  target: b
  max_length: 50
  train: [{source: train.a, target: train.b}]
  valid: [{source: valid.a, target: valid.b}]
tokenizer: {vocab_size: 280}
model: {layers: 1, d_model: 64, d_ff: 128, heads: 4, dropout: 0.0}
training:
  updates: 800
  batch_tokens: 500
  warmup: 200
  learning_rate_scale: 0.6
  label_smoothing: 0.0
  checkpoint_updates: 200
  valid_beam: 1
  report: false
  average_last: 2
"""


def write_reverse_task(folder: Path) -> None:
    """Write text files whose target is the source's words in reverse, and a recipe; no sentence is in two splits."""
    draw = random.Random(1)
    seen: set[str] = set()
    for split, count in (("test", 100), ("valid", 50), ("train", 5000)):
        lines: list[str] = []
        while len(lines) < count:
            line = " ".join(draw.choices("abcdefghij", k=draw.randint(3, 6)))
            if line not in seen:
                seen.add(line)
                lines.append(line)
        (folder / f"{split}.a").write_text("".join(f"{line}\n" for line in lines))
        (folder / f"{split}.b").write_text("".join(f"{line[::-1]}\n" for line in lines))
    (folder / "recipe.yaml").write_text(REVERSE_RECIPE)
