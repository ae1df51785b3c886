"""A run's directory: the names of its files, its lock, and its intact checkpoints.

The report's process starts often, so importing this module loads neither torch nor pyarrow.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from nmt import __version__
from nmt.checkpoint.reading import AVERAGED, CHECKPOINT, MANIFEST, Bundle, NewerFormat, checkpoint_folders
from nmt.recipe import Recipe
from nmt.system.errors import UserError
from nmt.system.files import OutOfResources, clear_parts, make_directory
from nmt.system.processes import exclusive
from nmt.training.log import LOG
from nmt.training.run_state import RunState

ABOUT = "run.json"
PAGE = "report.html"
LOCK = ".lock"
PLACES = "places"
"""Key of the bundle.json of an average: the folder whose place its run is about to take, and what that becomes"""
FIRST = "first"
"""Key likewise: the model before all corrections, relative to the folder around the run, and the name of its run"""
DECIDED = "decided"
"""Key likewise: whether the decision about training.replace_init is made and carried out"""


def lock_directory(out: Path, data: Path, held: ExitStack, say: Callable[[str], None]) -> None:
    """Create a run's directory unless it exists, lock it until `held` closes, and clear what killed processes left.

    Raise UserError if it is inside the prepared `data`, if it holds other files but no run, or if a file in it is named
    like a checkpoint. Hidden files and a disk's lost+found do not count.
    """
    if Path(os.path.realpath(out)).is_relative_to(os.path.realpath(data)):
        raise UserError(f"--out {out}: is inside the prepared data", "name another directory")
    entries = {path.name for path in out.iterdir()} if out.is_dir() else set()
    steps = sorted(name for name in entries if CHECKPOINT.fullmatch(name))
    others = [name for name in entries if not name.startswith(".") and name != "lost+found"]
    is_run = steps or entries & {LOCK, LOG}
    if others and not is_run:
        raise UserError(f"--out {out}: holds other files and no run", "name another directory, or an empty one")
    for name in steps:
        if not (out / name).is_dir():
            raise UserError(f"{out / name}: has the name of a checkpoint and is not a directory", "move it away")
    make_directory(out)
    held.enter_context(exclusive(out / LOCK, str(out), say))
    clear_leftovers(out)


def clear_leftovers(out: Path) -> None:
    """Remove files left by killed processes from a run's directory, whose lock the caller holds."""
    for name in ("step-*", ".epoch-*"):  # checkpoints and plans of epochs
        clear_parts(out, name, locked=True)
    for folder in checkpoint_folders(out):
        clear_parts(folder, "*", locked=True)
    clear_parts(out, "*")  # leftovers of other commands, which take no lock


def find_checkpoints(out: Path) -> tuple[list[Bundle], dict[Path, str]]:
    """Return the readable checkpoints, the first of them intact, and the problems of damaged ones by path.

    Raise UserError if all checkpoints are damaged, or if one may be intact but cannot be read, because it is from a
    later version of nmt or the system is out of resources.
    """
    readable: list[Bundle] = []
    damaged: dict[Path, str] = {}
    for path in reversed(checkpoint_folders(out)):
        try:
            checkpoint = Bundle.read(path)
            if not readable:  # check only the newest in full
                checkpoint.check()
                RunState.of(checkpoint)
            readable.append(checkpoint)
        except (NewerFormat, OutOfResources):
            raise
        except UserError as error:
            damaged[path] = error.message
    if damaged and not readable:
        newest, *_ = damaged.values()
        hint = f"copy a whole checkpoint into {out}, or start a new run: --out OTHER"
        raise UserError(f"{out}: all checkpoints are damaged; the newest: {newest}", hint)
    return readable, damaged


def about_run(parameters: int, base: Recipe | None, data: dict[str, Any], prepared: str) -> dict[str, Any]:
    """Return the content of run.json: what the report needs beside recipe and metrics, and where the data is.

    `base` is the recipe that the run's recipe extends, `data` the figures of the prepared data's report.json, and
    `prepared` its directory, relative to the run's. A run that has ended also has `finished`, its last update.
    """
    return {
        "version": __version__,
        "command": _utf_8(shlex.join(["nmt", *sys.argv[1:]])),
        "parameters": parameters,
        "base": base and base.model_dump(mode="json"),
        "data": data,
        "prepared": _utf_8(prepared),
    }


def _utf_8(text: str) -> str:
    """Escape the bytes of arguments and paths that are not UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()


def place_of(start: Path) -> Path | None:
    """Return the folder that a run with training.replace_init takes the place of, by its training.init_from.

    That of a run's average is the run. None can be replaced where the start is a checkpoint, which its run needs, or no
    folder here.
    """
    if not start.is_dir():
        return None
    if not checkpoint_folders(start.parent):
        return start
    if start.name == AVERAGED:
        return start.parent
    return None if CHECKPOINT.fullmatch(start.name) else start


def undecided(run: Path) -> Bundle | None:
    """Return the average of a run that was interrupted before training.replace_init was decided and carried out."""
    if not (run / AVERAGED / MANIFEST).exists():
        return None
    average = Bundle.read(run / AVERAGED)
    return average if average.recipe.training.replace_init and not average.written.get(DECIDED) else None
