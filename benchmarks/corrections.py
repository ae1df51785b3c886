"""What a translator of programs' strings learns from corrections: those of a program that it has not seen, in order.

Learns the first 300 units of a PO file by `nmt train corrected.po --set training.init_from=MODEL` and translates the
next 300, learns 600 and translates the next, and so on, beside the model that learns nothing and with them as its
memory.

    python benchmarks/corrections.py program.po --model po-model --out OUT [--units 300] [--steps 3] [--threads 2]

MODEL is a run in this folder that was trained without the program, such as by `nmt train po/`. It stays as it is: OUT
is made, and has copies of it and of its data.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from nmt.metrics import string_metrics

TRANSLATION = re.compile(r'^(msgstr(?:\[\d\])?) ((?:".*"\n?)+)', re.MULTILINE)


def units_of(path: Path) -> tuple[str, list[str]]:
    """Return the header of a PO file, and its units that are translated and reviewed."""
    header, *units = path.read_text(encoding="utf-8").strip().split("\n\n")
    done = [unit for unit in units if not re.search(r'^#~|^#,.*fuzzy|^msgstr(\[\d\])? ""(?!\n")', unit, re.MULTILINE)]
    return header, done


def texts_of(unit: str) -> list[str]:
    """Return the translations of a unit, as they are escaped."""
    return ["".join(line[1:-1] for line in found[2].split("\n")) for found in TRANSLATION.finditer(unit)]


def nmt(folder: Path, *arguments: object) -> list[str]:
    """Run a command in a folder, and return the lines that it says."""
    command = [sys.executable, "-m", "nmt", *map(str, arguments)]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stderr.splitlines()


def translate(folder: Path, header: str, units: list[str], model: str, *more: object) -> list[str]:
    """Return the translations of units, without the spaces around them; of what looks wrong, an empty one."""
    empty = [TRANSLATION.sub(r'\1 ""\n', unit).rstrip() for unit in units]
    (folder / "next.po").write_text("\n\n".join([header, *empty]) + "\n", encoding="utf-8")
    (folder / "translated.po").unlink(missing_ok=True)
    nmt(folder, "translate", "--model", model, "--input", "next.po", "--output", "translated.po", *more)
    _, *translated = (folder / "translated.po").read_text(encoding="utf-8").strip().split("\n\n")
    return [text.strip() for unit in translated for text in texts_of(unit)]


def scores(outputs: dict[str, list[str]], units: list[str]) -> dict[str, object]:
    """Return the chrF2 of each way to translate units, of all of them and of those that none leaves empty."""
    references = [text.strip() for unit in units for text in texts_of(unit)]
    everywhere = [row for row in range(len(references)) if all(texts[row] for texts in outputs.values())]
    found: dict[str, object] = {"strings": len(references), "never empty": len(everywhere)}
    for name, texts in outputs.items():
        of_all = string_metrics.score(texts, [references], ["chrf"])["chrf"].score
        pairs = [texts[row] for row in everywhere], [[references[row] for row in everywhere]]
        found[name] = [of_all, string_metrics.score(*pairs, ["chrf"])["chrf"].score]
    return found


def main() -> None:
    """Print a row for each step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path, metavar="program.po")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--units", type=int, default=300)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    out, name = options.out, options.model.name
    out.mkdir()
    for path in Path().iterdir():
        if path.name in (name, "data"):
            shutil.copytree(path, out / path.name)
        elif path.resolve() != out.resolve():
            (out / path.name).symlink_to(path.resolve())
    shutil.copytree(options.model / "averaged", out / "start")
    threads = ("--threads", options.threads)
    header, units = units_of(options.program)
    for learned in range(options.units, options.units * options.steps + 1, options.units):
        following = units[learned : learned + options.units]
        (out / "corrected.po").write_text("\n\n".join([header, *units[:learned]]) + "\n", encoding="utf-8")
        outputs = {
            "nothing": translate(out, header, following, "start", *threads),
            "memory": translate(out, header, following, "start", "--memory", "corrected.po", *threads),
        }
        began = time.monotonic()
        said = nmt(out, "train", "corrected.po", "--set", f"training.init_from={name}", *threads)
        seconds = round(time.monotonic() - began)
        outputs["model"] = translate(out, header, following, name, *threads)
        decision = [line for line in said if "accepted" in line]
        row = {"learned": learned, **scores(outputs, following), "seconds": seconds, "said": decision}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
