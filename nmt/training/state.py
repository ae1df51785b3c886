"""The state of a run: its progress and cost, saved with each checkpoint; and the checkpoint that a run resumes from."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import pydantic.dataclasses
from pydantic import ConfigDict, ValidationError

from nmt.checkpoint.reading import CHECKPOINT, POSITION, Bundle, Count, Figure, NewerFormat, best, checkpoint_folders
from nmt.data.epochs import remove_damaged_plans
from nmt.data.prepare import directory, fingerprint, prepare
from nmt.exchange.resolve import initial_bundle, with_model_of
from nmt.recipe import Recipe, Task
from nmt.system.console import Console
from nmt.system.errors import UserError
from nmt.system.files import OutOfResources, clear_parts, exclusive, remedy, set_aside
from nmt.training.arithmetic import device_name, sustained_flops
from nmt.training.distributed import Group
from nmt.training.run_files import METRICS


@pydantic.dataclasses.dataclass(config=ConfigDict(strict=True, extra="forbid", allow_inf_nan=False))
class RunState:
    """Progress and cost of a run, as training.json holds them."""

    step: Count  # updates done, including skipped ones
    epoch: Count
    offset: Count  # updates of this epoch done
    skipped: Count = 0  # updates that changed nothing because a gradient was not finite
    device_tokens: Count = 0  # size of micro-batches, on which sums depend to the last bit; 0 before it is known
    place: str = ""  # devices that this size is meant for, such as 8 × NVIDIA H200
    tokens: Count = 0  # target tokens seen
    flops: Figure = 0.0  # of the model, forward and backward, over all devices
    seconds: Figure = 0.0  # time spent in training and validation, over all resumptions
    device_seconds: Figure = 0.0  # the same, times the number of devices
    estimated_flops: Figure | None = 0.0
    """The same, times the FLOP/s that a device sustains in single precision: the paper's estimate; None if not known"""
    devices: dict[str, Figure] = field(default_factory=dict)
    """Seconds by the devices that computed, such as 8 × NVIDIA H200"""

    @classmethod
    def of(cls, checkpoint: Bundle) -> Self:
        """Read the state from a checkpoint's training.json and from the cost in its bundle.json.

        The latter includes the last validation. Earlier versions did not estimate FLOPs. Raise UserError if a value is
        missing, of the wrong kind, or of another update than the checkpoint.
        """
        found = checkpoint.position()
        values = found if isinstance(found, dict) else {}
        try:
            state = replace(cls(**{"estimated_flops": None, **values}), **checkpoint.cost)
        except ValidationError as error:
            names = error.errors()[0]["loc"] or ("a name",)  # Pydantic does not give a name that is no text
            problem = f"{names[0]} is missing or of the wrong kind"
        else:
            if state.step == checkpoint.step >= state.skipped:
                return state
            problem = f"its position is not that of update {checkpoint.step}"
        raise UserError(
            f"{checkpoint.path}: its training state is not complete: {problem}", remedy(checkpoint.path / POSITION)
        )


COST = ("seconds", "device_seconds", "tokens", "flops", "estimated_flops", "devices")
"""Fields of `RunState` that bundle.json holds under `cost`: sums over all resumptions of a run."""


def cost_of(state: RunState) -> dict[str, Any]:
    """Return what a run has cost so far, as plain values, without the work that was lost with a killed process."""
    values = asdict(state)
    return {name: values[name] for name in COST}


class Clock:
    """The time that passes, added to a run's state with its cost by the paper's estimate (section 6.1)."""

    def __init__(self, state: RunState, group: Group) -> None:
        self._state, self._devices = state, group.size
        self._sustained = sustained_flops(group.device)
        self._place = f"{group.size} × {device_name(group.device)}"
        self._last = time.perf_counter()

    def tick(self) -> None:
        """Add the time since the last tick."""
        now, state = time.perf_counter(), self._state
        seconds = now - self._last
        state.seconds += seconds
        state.device_seconds += self._devices * seconds
        state.devices[self._place] = state.devices.get(self._place, 0.0) + seconds
        if state.estimated_flops is not None:
            state.estimated_flops += self._devices * seconds * self._sustained
        self._last = now


ELSEWHERE = "train into another directory: --out OTHER"
# Keys of training that shape the first update and no later one.
ONLY_AT_START = {f"training.{key}" for key in ("init_from", "init_state", "source_embeddings", "target_embeddings")}


@dataclass
class BestScore:
    """The best dev score of a run, and how long ago it was reached."""

    score: float | None = None  # None before the first
    without_improvement: int = 0  # checkpoints since then

    def add(self, score: float, task: Task) -> bool:
        """Count the dev score of the next checkpoint; return whether it is the best so far."""
        is_best = self.score is None or task.rank(score) > task.rank(self.score)
        self.score = score if is_best else self.score
        self.without_improvement = 0 if is_best else self.without_improvement + 1
        return is_best


def open_directory(
    recipe: Recipe, out: Path, console: Console, threads: int, held: ExitStack
) -> tuple[Bundle | None, BestScore]:
    """Lock the directory, check that a run in it can go on with this recipe, and prepare the data.

    Keep damaged checkpoints under other names. Return the checkpoint to resume from, if there is one, and the best
    score so far.
    """
    if Path(os.path.realpath(out)).is_relative_to(os.path.realpath(directory(recipe))):
        raise UserError(
            f"--out {out}: is inside the prepared data, which is replaced as a whole", "name another directory"
        )
    _check_directory(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {out}: cannot be created: {error.strerror}", "name another directory") from None
    held.enter_context(exclusive(out / ".lock", str(out), console.say))
    clear_leftovers(out)
    remove_damaged_plans(out)  # before the other ranks go on, which would map them
    resumed, top, damaged = _find_checkpoint(out)
    # A resumed run needs its own checkpoint, and no longer the bundle that it started from.
    origin = (resumed or initial_bundle(recipe)) if recipe.training.init_from else None
    tokenizer_from = origin.path if origin else None
    recipe = with_model_of(recipe, origin)
    if resumed is None and recipe.training.init_state and origin is not None:
        _check_origin(origin, recipe)
    if resumed is not None:
        _check_same_run(resumed, recipe, fingerprint(recipe, tokenizer_from))
        for line in _changes(resumed, recipe):
            console.say(line)
    if prepare(recipe, console, threads, tokenizer_from):
        console.say(f"data: {directory(recipe)} was missing or out of date, and is prepared now")
    for path, problem in damaged.items():
        console.say(f"damaged checkpoint: {problem}; kept as {set_aside(path)}")
    return resumed, top


def _check_directory(out: Path) -> None:
    """Raise UserError if a directory holds files but no run, or something else in the place of a checkpoint.

    Hidden files and the lost+found of a disk do not count.
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
    """Remove what killed processes left in a run's directory, whose lock the caller holds."""
    for name in ("step-*", ".epoch-*"):
        clear_parts(out, name, locked=True)
    for folder in checkpoint_folders(out):
        clear_parts(folder, "*", locked=True)
    clear_parts(out, "*")  # those of other commands, which hold no lock


def _find_checkpoint(out: Path) -> tuple[Bundle | None, BestScore, dict[Path, str]]:
    """Find the newest whole checkpoint, the best score, and what is wrong with damaged checkpoints, by folder.

    Raise UserError if there are checkpoints but none is whole, or if one may be intact: it is from a later version of
    nmt, or the system is short of something.
    """
    readable: list[Bundle] = []
    newest: Bundle | None = None
    damaged: dict[Path, str] = {}
    for path in reversed(checkpoint_folders(out)):
        try:
            checkpoint = Bundle.read(path)
            if newest is None:  # older ones need no further check
                checkpoint.check()
                RunState.of(checkpoint)
                newest = checkpoint
            readable.append(checkpoint)
        except (NewerFormat, OutOfResources):
            raise
        except UserError as error:
            damaged[path] = error.message
    if newest is None:
        if damaged:
            raise UserError(
                f"{out}: all checkpoints are damaged; the newest: {next(iter(damaged.values()))}",
                f"copy a whole checkpoint into {out}, or start a new run: --out OTHER",
            )
        return None, BestScore(), {}
    top = best(readable)
    scored = next((bundle for bundle in readable if bundle.scores), None)
    without_improvement = int(scored.info.get("without_improvement", 0)) if scored else 0
    return newest, BestScore(top.dev_score if top else None, without_improvement), damaged


def _check_same_run(checkpoint: Bundle, recipe: Recipe, data: str) -> None:
    """Raise UserError if the run began with another model or tokenizer, or with other data than `data`."""
    for section in ("model", "tokenizer"):
        for key, before, now in _differences(section, checkpoint.recipe, recipe):
            raise UserError(
                f"{key}: is {now!r}, but the run in {checkpoint.path.parent} was started with {before!r}", ELSEWHERE
            )
    if checkpoint.info["data"] != data:
        raise UserError(
            f"data: the run in {checkpoint.path.parent} was started with other files, limits or tokenizer", ELSEWHERE
        )


def _check_origin(origin: Bundle, recipe: Recipe) -> None:
    """Raise UserError unless training.init_state can go on from a checkpoint: it is intact, and updates are left."""
    origin.check()
    RunState.of(origin)
    updates = recipe.training.updates
    if origin.step >= updates:
        raise UserError(
            f"training.updates: {updates:,} are not more than the {origin.step:,} of training.init_from {origin.path}, "
            "which count as well",
            f"--set training.updates={2 * origin.step}, or remove training.init_state",
        )


def _changes(checkpoint: Bundle, recipe: Recipe) -> list[str]:
    """Return a line for each setting that differs from that of the checkpoint and applies from now on."""
    changes = {
        key: f"changed: {key} from {before} to {now}"
        for section in ("training", "decoding")
        for key, before, now in _differences(section, checkpoint.recipe, recipe)
        if key not in ONLY_AT_START
    }
    if "training.updates" in changes and recipe.training.schedule in ("linear", "cosine"):
        changes["training.updates"] += ", at which the learning rate is zero now"
    return list(changes.values())


def _differences(section: str, before: Recipe, now: Recipe) -> Iterator[tuple[str, Any, Any]]:
    """Yield (key, value before, value now) for the keys of a section that differ between two recipes."""
    old, new = getattr(before, section), getattr(now, section)
    for key in type(new).model_fields:
        if getattr(old, key) != getattr(new, key):
            yield f"{section}.{key}", getattr(old, key), getattr(new, key)
