"""Two small sides of text, a recipe on them, and what preparing them has written."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from nmt.data.folders import look_up
from nmt.recipe import Recipe
from nmt.system.console import Console

TEXT = "the a dog cat sees likes tree big small red green house man woman walks runs under over"
WORDS = TEXT.split()
OUT = Path("data/x")
QUIET = Console(quiet=True)


def sentences(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=7)) + f" {n}" for n in range(count)]


def write(name: str, lines: Sequence[str | bytes]) -> None:
    Path(name).write_bytes(b"".join((x.encode() if isinstance(x, str) else x) + b"\n" for x in lines))


def recipe(**sections: dict[str, Any]) -> Recipe:
    """A recipe on the files that `workplace` writes, with some keys of its sections changed."""
    data = {"name": "x", "source": "en", "target": "de", "train": [{"source": "a.en", "target": "a.de"}]}
    data |= {"valid": [{"source": "v.en", "target": "v.de"}], "test": [{"source": "t.en", "target": "t.de"}]}
    tree: dict[str, Any] = {"name": "x", "data": data, "tokenizer": {"vocab_size": 300}}
    for section, changes in sections.items():
        tree[section] = tree.get(section, {}) | changes
    return Recipe.model_validate(tree)


def snapshot(folder: Path = OUT) -> dict[str, tuple[bytes, int, int]]:
    """Content, time and inode of all files: unchanged only where nothing was written."""
    return {
        str(path): (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_ino)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def table(split: str, out: Path = OUT) -> pa.Table:
    with pa.OSFile(str(out / f"{split}.arrow")) as file:
        return pa.ipc.open_stream(file).read_all()


def report(split: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((OUT / "report.json").read_text())[split]
    return found


def fingerprint(recipe: Recipe) -> str:
    """The hash of a recipe's current inputs and settings."""
    return str(look_up(recipe, None)[1]["fingerprint"])
