"""The recipe for corrections: a minute of them and of what a model was trained on, beginning with that model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nmt.data.data_report import read_report
from nmt.data.from_files import Choice, Made, count_pairs, given_by, loaded, mark_of, section, written
from nmt.data.shown import Shown, are_like, look_at
from nmt.recipe import Data, Dataset, Recipe
from nmt.recipe.addresses import is_address
from nmt.system.errors import UserError

BASE = "finetune"
COUNTED = 20_000  # different sources to count at most
WARMUP = 20
STEP = 0.2  # of the greatest learning rate that the model was trained with
MINUTES = 1.0
REPLACED = ("source", "target", "train", "valid", "test", "root", "name", "overlap", "augment")
"""Keys of a model's `data` that its corrections have otherwise"""


class Start(NamedTuple):
    """The model to be corrected."""

    name: str
    """As training.init_from names it"""
    recipe: Recipe
    prepared: Path | None
    """Folder of the data that it was trained on, if that is here"""


def make_corrections(files: Sequence[str], start: Start, path: Path, overrides: Sequence[str]) -> Made:
    """Return the recipe for corrections in files and folders of pairs, to be written to `path`.

    Raise UserError if the files are of other languages, hold no
    pairs, or do not show which texts they hold, or if nothing tells the development set of the start.
    """
    given = given_by(overrides)
    data = start.recipe.data
    languages = (data.source, data.target)
    shown = look_at(files, languages)
    _check_languages(shown, start)
    corrections = [each.dataset(languages) for each in shown]
    made = [
        Choice("name", path.stem),
        Choice("data.source", data.source, f"as {start.name}"),
        Choice("data.target", data.target),
        Choice("data.train", corrections),
        Choice("training.init_from", start.name, "the model to begin with"),
    ]
    size = count_pairs(loaded(BASE, made, given, overrides), COUNTED, 0)
    if not size.pairs:
        raise UserError(f"{files[0]}: has no pair to learn", "name files with finished translations")
    if start.prepared is not None:
        made[3] = Choice("data.train", corrections + _before(start, corrections, size.pairs), "and as many from before")
        for split in ("valid", "test"):
            made.append(Choice(f"data.{split}", _split(start, split), f"as {start.name}"))
    elif "valid" not in section(given, "data"):
        problem = f"{start.name}: the development set of its training, which guards what it has learned, is not here"
        raise UserError(problem, "run this where it was trained, or name one: --set 'data.valid=[{file: dev.tsv}]'")
    made += [
        Choice("data.overlap", "drop", "what is scored is not learned"),
        *_others(data),
        *_steps(start.recipe),
        *_searching(start.recipe),
    ]
    made.insert(0, Choice("extends", BASE))
    recipe = loaded(BASE, made[1:], given, overrides)
    said = f"{' '.join(files)}: {size.described} to learn, into {start.name}"
    return Made(written(mark_of(files, start.name), path, made, overrides), recipe, said)


def _check_languages(shown: Sequence[Shown], start: Start) -> None:
    """Raise UserError if files show other languages than the start translates, in either direction."""
    directions = start.recipe.data.directions
    known = [*directions, *((target, source) for source, target in directions)]
    for each in shown:
        if each.languages and not any(are_like(each.languages, languages) for languages in known):
            problem = f"{each.name}: is {'-'.join(each.languages)} {each.by}, and {start.name} translates"
            listed = ", ".join(map("-".join, directions))
            raise UserError(f"{problem} {listed}", "name corrections of its languages")


def _before(start: Start, corrections: Sequence[dict[str, Any]], pairs: int) -> list[dict[str, Any]]:
    """Return the data sets of the start as a recipe has them, weighted such that an epoch has as many of their pairs as
    of corrections.
    """
    assert start.prepared is not None
    data = start.recipe.data
    sets = [dict(_elsewhere(each, data)) for each in data.train]
    kept = read_report(start.prepared)["train"]["kept by set"]
    others = []
    total = 0.0
    for dataset, weight, count in zip(sets, [each.weight for each in data.train], kept, strict=True):
        if {key: value for key, value in dataset.items() if key != "weight"} not in corrections:
            others.append((dataset, weight))
            total += weight * count
    share = min(1.0, pairs / max(1.0, total))
    return [dataset | {"weight": float(f"{weight * share:.3g}")} for dataset, weight in others]


def _split(start: Start, split: str) -> list[dict[str, Any]]:
    """Return the data sets of valid or test; what the start took from its training pairs is a file in its data."""
    assert start.prepared is not None
    data = start.recipe.data
    found = []
    for each in data.splits[split]:
        if each.take is None:
            found.append(dict(_elsewhere(each, data)))
            continue
        languages = data.of(each).languages
        source, target = (str(start.prepared / name) for name in data.taken_files(split, languages))
        taken: dict[str, Any] = {"source": source, "target": target}
        if len(data.directions) > 1:
            taken["languages"] = list(languages)
        found.append(taken)
    return found


def _elsewhere(dataset: Dataset, data: Data) -> Iterator[tuple[str, Any]]:
    """Yield the keys of a data set with its files as seen from here, whatever data.root is."""
    for key, value in dataset.model_dump(mode="json", exclude_defaults=True).items():
        is_file = key in ("source", "target", "file") and not is_address(value)
        yield key, str(data.path(value)) if is_file else value


def _others(data: Data) -> Iterator[Choice]:
    """Yield the other keys of the start's data that are not the defaults."""
    for key, value in data.model_dump(mode="json", exclude_defaults=True).items():
        if key not in REPLACED:
            yield Choice(f"data.{key}", value)


def _steps(recipe: Recipe) -> Iterator[Choice]:
    """Yield how long and by which steps to learn."""
    training = recipe.training
    scale = training.learning_rate_scale
    if not training.replace_init:  # else the start itself has learned corrections, by such steps
        scale *= STEP * (WARMUP / training.warmup) ** 0.5
    yield Choice("training.minutes", MINUTES)
    yield Choice("training.replace_init", True, "accepted unless its dev score is lower by more than chance")
    yield Choice("training.optimizer", training.optimizer)
    yield Choice("training.schedule", "linear")
    yield Choice("training.warmup", WARMUP)
    yield Choice("training.learning_rate_scale", float(f"{scale:.3g}"), f"{STEP:.0%} of the greatest rate before")
    yield Choice("training.label_smoothing", training.label_smoothing)
    yield Choice("training.checkpoint_updates", 1000, "only the end is scored")
    yield Choice("training.average_last", 1)


def _searching(recipe: Recipe) -> Iterator[Choice]:
    """Yield the start's settings of search."""
    values = recipe.decoding.model_dump(mode="json", exclude_defaults=True)
    for key in ("beam", "alpha"):  # which the base sets
        values.setdefault(key, getattr(recipe.decoding, key))
    for key, value in values.items():
        yield Choice(f"decoding.{key}", value)
