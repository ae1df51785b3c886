"""Time and memory of reading a Marian model as ours: `python benchmarks/import_marian.py FOLDER [--half]`.

Writes a random model of OPUS-MT's size (6 + 6 layers, d_model 512, d_ff 2,048, a vocabulary of 58,101) into FOLDER
unless one is there, and reads it in a process of its own, in which only the model is loaded.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1] / "tests" / "support"
VOCABULARY = 58_101


def write(folder: Path, half: bool) -> None:
    """Writes a random model whose vocabulary has as many pieces as that of opus-mt-en-de."""
    sys.path.insert(0, str(TESTS))
    from marian_folders import write_model, write_tokenizer
    from safetensors.torch import load_file, save_file

    draw = random.Random(1)
    words = ["".join(draw.choices("abcdefghijklmnop", k=draw.randint(1, 6))) for _ in range(2000)]
    lines = [" ".join(draw.choices(words, k=10)) for _ in range(2000)]
    write_tokenizer(folder, lines, lines, 2000)
    path = folder / "vocab.json"
    ids = {piece: index for index, piece in enumerate(json.loads(path.read_text())) if piece != "<pad>"}
    ids |= {f"unused{index}": index for index in range(len(ids), VOCABULARY - 1)}
    path.write_text(json.dumps({**ids, "<pad>": VOCABULARY - 1}))
    layers: dict[str, Any] = {f"{side}_{key}": n for side in ("encoder", "decoder") for key, n in SHAPE.items()}
    write_model(folder, (VOCABULARY, VOCABULARY), d_model=512, **layers)
    if half:
        weights = folder / "model.safetensors"
        save_file({name: tensor.half() for name, tensor in load_file(weights).items()}, weights)


SHAPE = {"layers": 6, "attention_heads": 8, "ffn_dim": 2048}


def measure(folder: Path) -> None:
    """Reads the model and prints how long that takes, and the memory before, after and at most."""
    import torch

    from nmt.bundle import resolve
    from nmt.model import transformer  # before the clock starts

    def resident() -> float:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize() / 1e6

    assert transformer
    before, began = resident(), time.perf_counter()
    model = resolve(folder)[0].model(torch.device("cpu"))
    seconds, after = time.perf_counter() - began, resident()
    size = sum(weight.numel() for weight in model.parameters()) * 4 / 1e6
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    file = (folder / "model.safetensors").stat().st_size / 1e6
    print(
        f"{seconds:.2f} s; weights {size:.0f} MB, file {file:.0f} MB; memory {before:.0f} MB before, {after:.0f} MB "
        f"after, {most:.0f} MB at most: {(most - before) / size:.2f} times the weights"
    )


def main() -> None:
    """Writes the model if it is missing, and measures three times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--half", action="store_true", help="fp16, as some models on the hub")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options.folder)
        return
    if not options.folder.exists():
        write(options.folder, options.half)
    for _ in range(3):
        subprocess.run([sys.executable, __file__, str(options.folder), "--measure"], check=True)


if __name__ == "__main__":
    main()
