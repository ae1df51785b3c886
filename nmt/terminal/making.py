"""What an unfinished output is made from: whether blocks that are there still belong to it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmt.errors import UserError
from nmt.files import identify
from nmt.integrity import HASHES, read_manifest, replace_manifest

FORMAT = 1
BLOCK_LINES = 10_000  # lines that a kill may lose; the fewer, the more often a search runs empty at the end of a block


@dataclass(frozen=True)
class Making:
    """An output, and what it is made from; if any of that changes, finished blocks no longer belong to it."""

    output: Path
    inputs: Mapping[str, Path]
    """Files that are read line by line, by the options that name them."""
    models: Sequence[Path]
    """Files of weights. `settings` has their hashes."""
    settings: Mapping[str, Any]
    """All else that the output depends on, by names that users know: plain values that JSON can hold."""

    def is_done(self) -> bool:
        """Whether the output is there, and as new as all it is made from."""
        sources = [*self.inputs.values(), *self.models]
        output = self.output
        return output.exists() and output.stat().st_mtime_ns >= max(source.stat().st_mtime_ns for source in sources)


def agree_on_plan(path: Path, making: Making, count: Callable[[], int]) -> dict[str, Any]:
    """Read the plan of some blocks, or write it if there is none: `lines`, `block_lines`, `files` and `settings`.

    Raises UserError if it is the plan of another output. `count` counts the lines of the input.
    """
    folder = path.parent
    before = _read_plan(path) if os.path.lexists(path) else None
    if before is None and (others := sorted(file.name for file in folder.glob("[!.]*"))):
        hint = "move it away, or name another --output"
        raise UserError(f"{folder}: should hold blocks of the output, but holds {others[0]}", hint)
    files = {
        option: identify(file, before["files"].get(option) if before else None)
        for option, file in making.inputs.items()
    }
    settings = json.loads(json.dumps(making.settings))
    if before is None:
        plan: dict[str, Any] = {"format": FORMAT, "lines": count(), "block_lines": BLOCK_LINES}
        plan |= {"files": files, "settings": settings, HASHES: {}}
        replace_manifest(path, plan)
        return plan
    there = {**before["settings"], **{option: stamp[2:] for option, stamp in before["files"].items()}}
    here = {**settings, **{option: stamp[2:] for option, stamp in files.items()}}
    if differences := _differences(there, here):
        raise UserError(
            f"{folder}: holds blocks that were made otherwise: {', '.join(differences)}",
            f"repeat the command that made them, or remove {folder} to begin anew",
        )
    return {**before, "files": files}


def _read_plan(path: Path) -> dict[str, Any]:
    with suppress(UserError, KeyError, TypeError):
        plan: dict[str, Any] = read_manifest(path)
        if plan["format"] == FORMAT and HASHES in plan:
            return plan
    raise UserError(
        f"{path}: damaged, or written by another version of nmt",
        f"remove {path.parent} to begin anew, or take the version that wrote it",
    )


def _differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """The settings that differ, with their values if people can read them."""
    different = [name for name in {**there, **here} if there.get(name) != here.get(name)]
    values = {name: (there.get(name), here.get(name)) for name in different}
    return [
        name if any(isinstance(value, list | dict) for value in pair) else "{} ({} there, {} here)".format(name, *pair)
        for name, pair in values.items()
    ]
