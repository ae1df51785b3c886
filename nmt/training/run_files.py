"""A run's directory: its state, the records that its report reads, and the checkpoint to resume from.

The report's process starts often, so importing this module loads neither torch nor pyarrow.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, Self, TypeVar

import pydantic.dataclasses
from pydantic import BaseModel, ConfigDict, FiniteFloat, ValidationError

from nmt import __version__
from nmt.checkpoint.reading import CHECKPOINT, POSITION, Bundle, Figure, Natural, NewerFormat, best, checkpoint_folders
from nmt.recipe import Recipe, Task, Training
from nmt.recipe.settings import resolved
from nmt.system.console import JsonLines
from nmt.system.errors import UserError
from nmt.system.files import OutOfResources, clear_parts, make_directory, regular, remedy, whole_file
from nmt.system.processes import exclusive
from nmt.training.budget import Budget

METRICS = "metrics.jsonl"
ABOUT = "run.json"
SAMPLES = "dev.jsonl"
PAGE = "report.html"
MOST, FEW = 1000, 5  # sentences kept in dev.jsonl, and shown during training
OF_STEP = re.compile(rb'\{"step": ([0-9]+), ')
# Fields of `RunState` under `cost` in bundle.json: sums over all resumptions, and a validation's seconds
COST = ("seconds", "device_seconds", "tokens", "flops", "estimated_flops", "devices", "scoring", "spent")
BY_MACHINE = ("device_tokens", "compile")  # keys of `training` whose defaults depend on the device
ONLY_AT_START = ("training.init_from", "training.source_embeddings", "training.target_embeddings")
"""Keys that say only how a run begins"""
ELSEWHERE = "train into another directory: --out OTHER"

T = TypeVar("T")
Score = Callable[[Sequence[str], Sequence[str]], Sequence[float]]  # references and outputs to a score per output
Say = Callable[[str], None]


@pydantic.dataclasses.dataclass(config=ConfigDict(strict=True, extra="forbid", allow_inf_nan=False))
class RunState:
    """Progress and cost of a run, as stored in training.json."""

    step: Natural  # updates done, including skipped ones
    epoch: Natural
    offset: Natural  # updates done in this epoch
    skipped: Natural = 0  # updates without effect, because a gradient was not finite
    device_tokens: Natural = 0  # micro-batch size, which affects rounding; 0 until chosen
    place: str = ""  # devices for which that size was chosen, such as 8 × NVIDIA H200
    tokens: Natural = 0  # target tokens processed
    flops: Figure = 0.0  # forward and backward, over all devices
    seconds: Figure = 0.0  # of training and validation, over all resumptions
    device_seconds: Figure = 0.0  # `seconds` × number of devices
    estimated_flops: Figure = 0.0  # `device_seconds` × sustained fp32 FLOP/s, as the paper does
    devices: dict[str, Figure] = field(default_factory=dict)  # seconds by devices used, such as 8 × NVIDIA H200
    scoring: Figure = 0.0  # seconds of a validation, as last measured or estimated; 0 if unknown
    spent: Figure = 0.0  # seconds of commands that trained, from their start
    fallen: Figure = 0.0  # share by which training.minutes have brought the learning rate down; 1 once they are over

    @classmethod
    def of(cls, checkpoint: Bundle) -> Self:
        """Read the state from a checkpoint's training.json, and its cost from bundle.json.

        The cost in bundle.json also includes the last validation. Raise UserError if a value is missing or has the
        wrong type, or if the update number is wrong.
        """
        found = checkpoint.position()
        try:
            state = replace(cls(**(found if isinstance(found, dict) else {})), **checkpoint.cost)
        except ValidationError as error:
            names = error.errors()[0]["loc"] or ("a name",)  # Pydantic gives no location for a key that is not a string
            raise incomplete(checkpoint, f"{names[0]} is missing or of the wrong kind") from None
        if not state.step == checkpoint.step >= state.skipped:
            raise incomplete(checkpoint, f"its position is not that of update {checkpoint.step}")
        return state

    def is_checkpoint_due(self, training: Training, saved: RunState, budget: Budget) -> bool:
        """Return whether to save a checkpoint after the next update; `saved` is the state of the last one.

        It remains due until it is saved: an update may be skipped, after which nothing is.
        """
        if every := training.checkpoint_updates:
            return (self.step + 1) // every > saved.step // every
        minutes = training.checkpoint_minutes
        return minutes is not None and self.seconds - saved.seconds >= budget.between(minutes)

    def begin(self, epoch: int, offset: int) -> None:
        """Begin the next update, which is the one at `offset` of an epoch."""
        self.step += 1
        self.epoch, self.offset = epoch, offset + 1

    def begin_epoch(self) -> None:
        """Leave out the rest of this epoch."""
        self.epoch, self.offset = self.epoch + 1, 0

    def skip(self) -> None:
        """Count an update without effect."""
        self.skipped += 1

    def compute_on(self, place: str, device_tokens: int) -> None:
        """Go on with micro-batches of this size on devices."""
        self.place, self.device_tokens = place, device_tokens

    def count(self, tokens: int, flops: float) -> None:
        """Count an update's target tokens and FLOPs."""
        self.tokens += tokens
        self.flops += flops

    def spend(self, seconds: float, devices: str, number: int, sustained: float) -> None:
        """Count seconds of a `number` of devices, each of which sustains so many fp32 FLOP/s."""
        self.seconds += seconds
        self.device_seconds += number * seconds
        self.devices[devices] = self.devices.get(devices, 0.0) + seconds
        self.estimated_flops += number * seconds * sustained

    def keep(self, budget: Budget) -> None:
        """Keep what a run that goes on must know of its minutes."""
        self.spent, self.fallen, self.scoring = budget.spent, budget.fallen, budget.scoring or 0.0

    @property
    def cost(self) -> dict[str, Any]:
        """The run's cost so far as plain values, excluding work lost when a process was killed."""
        values = asdict(self)
        return {name: values[name] for name in COST}


def incomplete(checkpoint: Bundle, problem: object) -> UserError:
    """Return the error that a checkpoint's training state lacks something."""
    file = checkpoint.path / POSITION
    return UserError(f"{checkpoint.path}: its training state is not complete: {problem}", remedy(file))


@dataclass
class BestScore:
    """Dev scores of a run's best checkpoint, and the number of checkpoints since then."""

    scores: dict[str, float] = field(default_factory=dict)  # by name; empty until a checkpoint is scored
    without_improvement: int = 0  # checkpoints since the best

    @classmethod
    def of(cls, found: Sequence[Bundle], data: Mapping[str, str]) -> Self:
        """Return that of a run's checkpoints, newest first, by their scores on the development set of `data`."""
        scored = [each for each in found if each.scores and each.is_scored_on(data)]
        top = best(scored)
        return cls(top.scores, scored[0].info["without_improvement"]) if top else cls()

    def add(self, scores: dict[str, float], task: Task) -> bool:
        """Add the next checkpoint's dev scores; return whether it is the best so far."""
        is_best = not self.scores or task.rank(scores[task.metric]) > task.rank(self.scores[task.metric])
        self.scores = scores if is_best else self.scores
        self.without_improvement = 0 if is_best else self.without_improvement + 1
        return is_best


def lock_directory(out: Path, data: Path, held: ExitStack, say: Say) -> None:
    """Create a run's directory unless it exists, lock it until `held` closes, and clear what killed processes left.

    Raise UserError if it is inside the prepared `data`, if it holds other files but no run, or if a file in it is named
    like a checkpoint. Hidden files and a disk's lost+found do not count.
    """
    if Path(os.path.realpath(out)).is_relative_to(os.path.realpath(data)):
        raise UserError(f"--out {out}: is inside the prepared data", "name another directory")
    entries = {path.name for path in out.iterdir()} if out.is_dir() else set()
    steps = sorted(name for name in entries if CHECKPOINT.fullmatch(name))
    is_run = steps or entries & {".lock", METRICS}
    if not is_run and any(not name.startswith(".") and name != "lost+found" for name in entries):
        raise UserError(f"--out {out}: holds other files and no run", "name another directory, or an empty one")
    for path in (out / name for name in steps if not (out / name).is_dir()):
        raise UserError(f"{path}: has the name of a checkpoint and is not a directory", "move it away")
    make_directory(out)
    held.enter_context(exclusive(out / ".lock", str(out), say))
    clear_leftovers(out)


def clear_leftovers(out: Path) -> None:
    """Remove files left by killed processes from a run's directory, whose lock the caller holds."""
    for name in ("step-*", ".epoch-*"):
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
        hint = f"copy a whole checkpoint into {out}, or start a new run: --out OTHER"
        raise UserError(f"{out}: all checkpoints are damaged; the newest: {next(iter(damaged.values()))}", hint)
    return readable, damaged


def changes(checkpoint: Bundle, recipe: Recipe, data: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each setting of a run that differs from its checkpoint's and applies from now on.

    `data` are the fingerprints of the recipe's data. Raise UserError, before the first line, if the run began with
    another model or tokenizer, or with other training data.
    """
    from nmt.data.pairs import check_inputs

    run, is_same = checkpoint.path.parent, checkpoint.info["train_data"] == data["train_data"]
    for section in ("model",) if is_same else ("model", "tokenizer"):
        for key, before, now in _differences(section, checkpoint.recipe, recipe):
            raise UserError(f"{key}: is {now}, but the run in {run} was started with {before}", ELSEWHERE)
    if not is_same:
        check_inputs(recipe.data.train, recipe.data)
        problem = f"data: the run in {run} was started with other training files, limits or languages"
        raise UserError(problem, f"go on from its model in another folder: --out OTHER --set training.init_from={run}")
    for section in ("training", "decoding"):
        for key, before, now in _differences(section, checkpoint.recipe, recipe):
            if key not in ONLY_AT_START:
                falls = key in ("training.updates", "training.minutes") and recipe.training.falls
                end = ", at whose end the learning rate is zero now" if falls else ""
                yield f"changed: {key} from {before} to {now}{end}"
    if not checkpoint.is_scored_on(data):
        yield "changed: data.valid; scores of earlier checkpoints are not compared with those from now on"


def _differences(section: str, before: Recipe, now: Recipe) -> Iterator[tuple[str, str, str]]:
    """Yield (key, old value, new value) for each key of a section whose effect differs between two recipes."""
    old, new = (_resolved(section, recipe) for recipe in (before, now))
    for key in new:
        if old.get(key) != new[key]:
            yield f"{section}.{key}", _shown(key, old.get(key)), _shown(key, new[key])


def _resolved(section: str, recipe: Recipe) -> dict[str, Any]:
    values = resolved(getattr(recipe, section))
    if section == "training" and recipe.training.valid_beam is None:
        values["valid_beam"] = recipe.decoding.beam
    return values


def _shown(key: str, value: Any) -> str:
    """Write a setting as a message shows it."""
    if isinstance(value, float):
        return str(float(f"{value:.6g}"))
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    if value is None:
        return "the default" if key in BY_MACHINE else "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


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


def forget_after(path: Path, step: int, scored: bool = True) -> None:
    """Remove the lines after `step` from a metrics file; the resumed run will write them again.

    Of `step` itself, keep only the training metrics, unless its checkpoint is `scored`.
    """
    if not path.is_file():
        return
    kept = []
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        with suppress(ValueError, KeyError, TypeError):  # a killed process may leave a truncated line
            figures = json.loads(line)
            if figures["step"] < step or (figures["step"] == step and (scored or "loss" in figures)):
                kept.append(line + "\n")
    with whole_file(path) as file:
        file.write("".join(kept).encode())


@dataclass(frozen=True)
class DevExample:
    """A checkpoint's output for one sentence of the development set."""

    source: str
    reference: str
    output: str

    def rows(self) -> list[tuple[str, str]]:
        """Return the labelled texts that a terminal shows."""
        return [("source", self.source), ("ours", self.output or "(empty)"), ("reference", self.reference)]


class DevOutputs(BaseModel, strict=True):
    """A checkpoint's outputs for the development set."""

    step: int
    outputs: list[str]  # a translation or tree per kept sentence; blank if the parser found no tree
    scores: list[FiniteFloat]  # chrF or F1 per output, 0 to 100


class _Sentences(BaseModel, strict=True):
    """First line of dev.jsonl."""

    sources: list[str]
    references: list[str]


class Samples:
    """A run's dev.jsonl: outputs for up to `MOST` sentences of the development set.

    The first line holds sources and references, each further line the outputs of one checkpoint.
    """

    def __init__(self, out: Path, sources: Sequence[str], references: Sequence[str], score: Score, say: Say) -> None:
        self._score = score
        # A blank reference is a tree without words; skip it, since it is not scored.
        self._rows = spread([row for row, reference in enumerate(references) if reference], MOST)
        self.sources = [sources[row] for row in self._rows]
        self.references = [references[row] for row in self._rows]
        self._lines = JsonLines(out / SAMPLES, say, {"step": 0, "sources": self.sources, "references": self.references})

    def begin(self, step: int) -> None:
        """Remove the lines after `step`, or the whole file if it holds other sentences."""
        path = self._lines.path
        if path.is_file() and not path.read_bytes().startswith(self._lines.head):
            path.unlink()
        forget_after(path, step)

    def add(self, step: int, hypotheses: Sequence[str]) -> DevExample:
        """Append a checkpoint's outputs, given its hypotheses for the whole development set.

        Return one of `FEW` evenly spaced ones.
        """
        outputs = [hypotheses[row] for row in self._rows]
        scores = [round(score, 2) for score in self._score(self.references, outputs)]
        self._lines.append(DevOutputs(step=step, outputs=outputs, scores=scores).model_dump())
        return Random(step).choice(spread(list(map(DevExample, self.sources, self.references, outputs)), FEW))


def spread(items: Sequence[T], most: int) -> list[T]:
    """Return at most `most` of the items, evenly spaced."""
    return list(items) if len(items) <= most else [items[number * len(items) // most] for number in range(most)]


def read_samples(
    path: Path, choose: Callable[[Mapping[int, int]], Iterable[int]]
) -> tuple[list[str], list[str], list[DevOutputs]]:
    """Read sources, references, and the chosen steps' outputs from dev.jsonl.

    `choose` maps {step: size of its line in bytes} to the steps to read. Damaged lines are skipped. All lists are empty
    if the file is missing or its first line is damaged.
    """
    try:
        lines = regular(path).read_bytes().split(b"\n")
        head = _Sentences.model_validate_json(lines[0])
    except (OSError, UserError, ValidationError):
        return [], [], []
    count = len(head.sources)
    by_step = {int(found[1]): line for line in lines[1:] if (found := OF_STEP.match(line)) and line.endswith(b"}")}
    outputs = []
    for step in sorted(choose({step: len(line) for step, line in by_step.items()})):
        with suppress(ValidationError):
            read = DevOutputs.model_validate_json(by_step[step])
            if len(read.outputs) == len(read.scores) == count:
                outputs.append(read)
    return (head.sources, head.references, outputs) if len(head.references) == count else ([], [], [])
