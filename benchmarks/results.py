"""Figures of scripts that run one after another: written as JSON lines at once, read as one table."""

from __future__ import annotations

import argparse
import importlib
import json
import traceback
from ast import literal_eval
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

NAME, KERNELS = "results.jsonl", "kernels.jsonl"


class Results:
    """Print figures, and append them to a folder's results.jsonl where there is a folder."""

    def __init__(self, folder: Path | None, variant: str = "") -> None:
        """`variant` begins the names of all rows."""
        self.folder, self.variant = folder, variant
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def add(self, row: str, **figures: Any) -> None:
        """Add figures to a row; `failed` is the reason why others are missing."""
        print(line(row, figures), flush=True)
        self.write({"row": self.named(row), **figures})

    def named(self, row: str) -> str:
        return f"[{self.variant}] {row}" if self.variant else row

    def write(self, record: Mapping[str, Any], name: str = NAME) -> None:
        if self.folder is not None:
            with (self.folder / name).open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")

    def attempt(self, row: str, work: Callable[[], object]) -> bool:
        """Let `work` run; an error becomes a row, and what comes after goes on. Return whether there was none."""
        try:
            work()
            return True
        except Exception as error:
            traceback.print_exc()
            self.add(row, failed=" ".join(f"{type(error).__name__}: {error}".split())[:200])
            return False


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of every script that a GPU runs."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--device", default="cuda")
    made.add_argument("--out", type=Path, help=f"a folder for {NAME} and other files; none are written unless given")
    return made


def settings_of(variant: str) -> dict[str, Any]:
    """Set constants, such as nmt.training.batches.SIZES=8, and options of PyTorch's compiler, such as
    torch._inductor.config:triton.mix_order_reduction=False; return what others set: training.packing=false.

    Several are joined by +.
    """
    found = dict[str, Any]()
    for each in filter(None, variant.split("+")):
        name, _, text = each.partition("=")
        owner, _, key = name.rpartition(":" if ":" in name else ".")
        try:
            value = literal_eval(text)
        except (SyntaxError, ValueError):
            value = {"true": True, "false": False, "null": None}.get(text, text)
        if not owner.startswith(("nmt.", "torch.")):
            found[name] = value
            continue
        module = importlib.import_module(owner)
        attrgetter(key)(module)  # a misspelt name is an error
        setattr(module, key, value)
    return found


def section(variant: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return those settings that belong to a section of a recipe."""
    return {key.partition(".")[2]: value for key, value in variant.items() if key.startswith(f"{name}.")}


def read(path: Path) -> dict[str, dict[str, Any]]:
    """Return figures by row; passed checks are left out, and half a line, of a process that was killed, too."""
    rows: dict[str, dict[str, Any]] = {}
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            record = json.loads(text)
        except json.JSONDecodeError:
            continue
        if not record.get("passed", False):
            rows.setdefault(record.pop("row"), {}).update(record)
    return rows


def table(rows: Mapping[str, Mapping[str, Any]], last: Mapping[str, Mapping[str, Any]], most: int) -> Iterable[str]:
    """Return at most so many lines, each figure with the last one that was measured in brackets."""
    lines = [line(row, figures, last.get(row, {})) for row, figures in rows.items()]
    return lines if len(lines) <= most else [*lines[: most - 1], f"and {len(lines) - most + 1} more rows in {NAME}"]


def line(row: str, figures: Mapping[str, Any], last: Mapping[str, Any] | None = None) -> str:
    found = last or {}
    shown = [
        f"{key} {show(value)}" + (f" [{show(found[key])}]" if key in found else "") for key, value in figures.items()
    ]
    return f"{row:34s} {', '.join(shown)}"


def show(figure: Any) -> str:
    """Return a number in three digits, or more where it has more before the point."""
    if isinstance(figure, bool) or not isinstance(figure, int | float):
        return str(figure)
    return f"{figure:,.0f}" if abs(figure) >= 100 or isinstance(figure, int) else f"{figure:.3g}"
