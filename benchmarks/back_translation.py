"""Back-translation on Multi30k: half of the pairs, and the target sides of the other half as monolingual text.

Trains a model from German to English on the half, draws a translation of each monolingual line, and trains two models
from English to German for as many updates: on the half, and on the half with the synthetic pairs.

    python benchmarks/back_translation.py FOLDER OUT [--updates 4000] [--threads 1]

FOLDER holds Multi30k; OUT is made, and a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import gzip
import subprocess
import sys
from pathlib import Path

RECIPE = """extends: {recipe}
name: {name}
data:
  root: {root}
  source: {source}
  target: {target}
  train: [{train}]
  valid: [{{source: val.{source}.gz, target: val.{target}.gz}}]
  test: [{{source: test_2016_flickr.{source}.gz, target: test_2016_flickr.{target}.gz}}]
model: {{d_ff: 256, dropout: 0.2}}
training: {{updates: {updates}}}
"""
SMALL = Path(__file__).resolve().parent.parent / "recipes/multi30k_en_de.yaml"


def nmt(folder: Path, *arguments: object) -> str:
    """Runs a command in a folder, and returns what it prints."""
    command = [sys.executable, "-m", "nmt", *map(str, arguments)]
    return subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout


def write_half(source: Path, odd: Path, even: Path | None = None) -> None:
    """Writes the lines with odd numbers to one compressed file, and those with even ones to another."""
    with gzip.open(source) as file:
        lines = file.readlines()
    for path, part in ((odd, lines[0::2]), (even, lines[1::2])):
        if path is not None:
            path.write_bytes(gzip.compress(b"".join(part)))


def main() -> None:
    """Prints the scores of both models, with the probability that the difference is chance."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--updates", type=int, default=4000)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    raw = given.out.resolve() / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for name in ("val", "test_2016_flickr"):
        for language in ("en", "de"):
            (raw / f"{name}.{language}.gz").write_bytes((given.folder / f"{name}.{language}.gz").read_bytes())
    write_half(given.folder / "train.en.gz", raw / "half.en.gz")
    write_half(given.folder / "train.de.gz", raw / "half.de.gz", raw / "mono.de.gz")

    def train(name: str, source: str, target: str, *pairs: tuple[str, str]) -> Path:
        folder: Path = given.out / name
        folder.mkdir(exist_ok=True)
        sets = ", ".join(f"{{source: {one}, target: {other}}}" for one, other in pairs)
        values = dict(name=name, root=raw, source=source, target=target, train=sets, updates=given.updates)
        (folder / "recipe.yaml").write_text(RECIPE.format(recipe=SMALL, **values))
        nmt(folder, "train", "recipe.yaml", "--threads", given.threads)
        nmt(folder, "average", "ckpts")
        return folder

    half = ("half.en.gz", "half.de.gz")
    reverse = train("reverse", "de", "en", half[::-1])
    drawn = ("--sample", 1, "--set", "decoding.top_k=10", "--input", raw / "mono.de.gz")
    nmt(reverse, "translate", *drawn, "--output", raw / "synthetic.en.gz", "--resume")
    test = ("--input", raw / "test_2016_flickr.en.gz", "--quiet", "--output", "test.de")
    without = train("half", "en", "de", half)
    with_ = train("both", "en", "de", half, ("synthetic.en.gz", "mono.de.gz"))
    for folder in (without, with_):
        nmt(folder, "translate", *test)
    hypotheses = (with_ / "test.de", "--baseline", without.resolve() / "test.de")
    print(nmt(Path(), "score", raw / "test_2016_flickr.de.gz", *hypotheses, "--metric", "bleu,chrf"), end="")


if __name__ == "__main__":
    main()
