"""What differs between a recipe and the checkpoint of the run that it resumes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

from nmt.checkpoint.reading import Bundle
from nmt.recipe import Recipe
from nmt.recipe.settings import resolved
from nmt.system.errors import UserError

BY_MACHINE = ("device_tokens", "compile")  # keys of `training` whose defaults depend on the device
ONLY_AT_START = (
    "training.init_from",
    "training.embeddings",
    "training.source_embeddings",
    "training.target_embeddings",
)
"""Keys that say only how a run begins"""
ELSEWHERE = "train into another directory: --out OTHER"


def changes(checkpoint: Bundle, recipe: Recipe, data: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each setting of a run that differs from its checkpoint's and applies from now on.

    `data` are the fingerprints of the recipe's data. Raise UserError, before the first line, if the run began with
    another model or tokenizer, or with other training data.
    """
    from nmt.data.pairs import check_inputs

    run = checkpoint.path.parent
    is_same = checkpoint.info.train_data == data["train_data"]  # which includes the tokenizer
    for section in ("model",) if is_same else ("model", "tokenizer"):
        for key, before, now in _differences(section, checkpoint.recipe, recipe):
            raise UserError(f"{key}: is {now}, but the run in {run} was started with {before}", ELSEWHERE)
    if not is_same:
        check_inputs(recipe.data.train, recipe.data)
        problem = f"data: the run in {run} was started with other training files, limits or languages"
        raise UserError(problem, _way_on(checkpoint.recipe, run))
    for section in ("data.augment", "training", "decoding"):
        for key, before, now in _differences(section, checkpoint.recipe, recipe):
            if key in ONLY_AT_START:
                continue
            line = f"changed: {key} from {before} to {now}"
            if key in ("training.updates", "training.minutes") and recipe.training.falls:
                line += ", at whose end the learning rate is zero now"
            yield line
    if not checkpoint.is_scored_on(data["dev_set"]):
        yield "changed: data.valid; scores of earlier checkpoints are not compared with those from now on"


def _way_on(before: Recipe, run: Path) -> str:
    """Return a hint on how to go on with other data than a run's, whose recipe it was `before`."""
    from nmt.data.from_files import first_line

    kept = Path(f"{run}-1")
    if before.training.replace_init and kept.is_dir():
        return f"it has learned corrections since; to go on with the run before them: --out {kept}"
    if first_line(Path(f"{run}.yaml")):
        return f"move {run} away to begin anew, or have it learn more: nmt train NEW --set training.init_from={run}"
    return f"go on from its model in another folder: --out OTHER --set training.init_from={run}"


def _differences(section: str, before: Recipe, now: Recipe) -> Iterator[tuple[str, str, str]]:
    """Yield (key, old value, new value) for each key of a section whose effect differs between two recipes."""
    old = _resolved(section, before)
    for key, value in _resolved(section, now).items():
        if old.get(key) != value:
            yield f"{section}.{key}", _shown(key, old.get(key)), _shown(key, value)


def _resolved(section: str, recipe: Recipe) -> dict[str, Any]:
    values = resolved(attrgetter(section)(recipe))
    if section == "training" and recipe.training.valid_beam is None:
        values["valid_beam"] = recipe.decoding.beam
    return values


def _shown(key: str, value: Any) -> str:
    """Write a setting as a message shows it."""
    if isinstance(value, float):
        return str(float(f"{value:.6g}"))
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "the default" if key in BY_MACHINE else "none"
    return str(value)
