"""A task small enough to be learned in a test, and a shell to do it in."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path


def shell(command: str, cwd: Path, seconds: float = 300) -> subprocess.CompletedProcess[bytes]:
    """Runs a command line as a user would, with `nmt` on the path and pipefail on."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=cwd,
        env={**os.environ, "PATH": path},
        capture_output=True,
        timeout=seconds,
        check=False,
    )


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
  batch_tokens: 1000
  warmup: 200
  learning_rate_scale: 0.6
  label_smoothing: 0.0
  checkpoint_updates: 200
  valid_beam: 1
decoding: {average_last: 2}
"""


def write_reverse_task(folder: Path) -> None:
    """Text files whose target is the source's words in reverse, with no sentence in two splits; and a recipe."""
    draw = random.Random(1)
    seen: set[str] = set()
    for split, count in (("test", 100), ("valid", 50), ("train", 5000)):
        lines = []
        while len(lines) < count:
            line = " ".join(draw.choices("abcdefghij", k=draw.randint(3, 6)))
            if line not in seen:
                seen.add(line)
                lines.append(line)
        (folder / f"{split}.a").write_text("".join(f"{line}\n" for line in lines))
        (folder / f"{split}.b").write_text("".join(f"{line[::-1]}\n" for line in lines))
    (folder / "recipe.yaml").write_text(REVERSE_RECIPE)
