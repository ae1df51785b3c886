"""What `nmt train` finds in a run's directory: whether it may train there, and the checkpoint from which it goes on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from nmt import bundle as bundles
from nmt.bundle import CHECKPOINT, POSITION, Bundle, NewerFormat
from nmt.errors import UserError
from nmt.files import clear_parts, remedy
from nmt.training.loop import Position
from nmt.training.progress import METRICS


@dataclass(frozen=True)
class Start:
    """Where a run begins or goes on, as rank 0 reads it from the directory for all ranks.

    Directories of a shared file system may look different from another host for a while.
    """

    checkpoint: Bundle | None = None
    """None where the run begins."""
    best_score: float | None = None
    """The best dev score of all checkpoints."""
    without_improvement: int = 0
    """Checkpoints since the one with the best dev score."""

    def to_json(self) -> dict[str, Any]:
        """Plain values, from which `from_json` makes the same on another rank."""
        found = self.checkpoint
        checkpoint = None if found is None else {"name": found.path.name, "info": found.info}
        return {
            "checkpoint": checkpoint,
            "best_score": self.best_score,
            "without_improvement": self.without_improvement,
        }

    @classmethod
    def from_json(cls, out: Path, values: dict[str, Any]) -> Self:
        """Of a run in `out`."""
        found = values["checkpoint"]
        checkpoint = None if found is None else Bundle(out / found["name"], found["info"])
        return cls(**values | {"checkpoint": checkpoint})


def check_directory(out: Path) -> None:
    """Raises UserError where a directory holds files and no run, or something else where a checkpoint would go.

    Hidden files, and the lost+found of a disk, do not count.
    """
    if not out.is_dir():
        return
    entries = {path.name for path in out.iterdir()}
    of_a_run = {name for name in entries if name in (".lock", METRICS) or CHECKPOINT.fullmatch(name)}
    if not of_a_run and any(not name.startswith(".") and name != "lost+found" for name in entries):
        raise UserError(f"--out {out}: holds other files and no run", "name another directory, or an empty one")
    for path in (out / name for name in sorted(of_a_run) if CHECKPOINT.fullmatch(name)):
        if not path.is_dir():
            raise UserError(f"{path}: has the name of a checkpoint and is not a directory", "move it away")


def clear_leftovers(out: Path) -> None:
    """Removes what killed processes left in a run's directory, whose lock the caller holds."""
    for name in ("step-*", ".epoch-*"):
        clear_parts(out, name, locked=True)
    for folder in bundles.checkpoint_folders(out):
        clear_parts(folder, "*", locked=True)
    clear_parts(out, "*")  # those of other commands, which hold no lock


def find_start(out: Path) -> tuple[Start, dict[Path, str]]:
    """Where a run goes on, which is its newest whole checkpoint; and by folder what is wrong with damaged ones.

    Raises UserError where there are checkpoints and none is whole, or one of them is of a later version of nmt.
    """
    readable: list[Bundle] = []
    newest: Bundle | None = None
    damaged: dict[Path, str] = {}
    for path in reversed(bundles.checkpoint_folders(out)):
        try:
            checkpoint = Bundle.read(path)
            if newest is None:  # of older ones nothing else is needed
                checkpoint.check()
                position_of(checkpoint)
                newest = checkpoint
            readable.append(checkpoint)
        except NewerFormat:
            raise
        except UserError as error:
            damaged[path] = error.message
    if newest is None:
        if damaged:
            raise UserError(
                f"{out}: all checkpoints are damaged; the newest: {next(iter(damaged.values()))}",
                f"copy a whole checkpoint into {out}, or start a new run: --out OTHER",
            )
        return Start(), {}
    best = bundles.best(readable)
    scored = next((bundle for bundle in readable if bundle.scores), None)
    without_improvement = int(scored.info.get("without_improvement", 0)) if scored else 0
    return Start(newest, best.dev_score if best else None, without_improvement), damaged


def position_of(checkpoint: Bundle) -> Position:
    """How far the run of a checkpoint was; raises UserError where training.json does not say it."""
    try:
        return Position.restore(checkpoint.position(), checkpoint.cost, checkpoint.step)
    except ValueError as error:
        raise UserError(
            f"{checkpoint.path}: its training state is not complete: {error}", remedy(checkpoint.path / POSITION)
        ) from None
