"""A complete recipe: loading, inheritance (`extends`), validation across sections, and error messages.

Validation precedes all work. An error names the file and line, the key, its value, the allowed values and the most
similar valid key.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from copy import deepcopy
from itertools import chain
from pathlib import Path
from typing import Any, Self

from pydantic import Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from nmt.recipe.data import NAME, Augment, Data, Dataset
from nmt.recipe.settings import Decoding, Model, Refusal, Settings, TokenizerSettings, Training
from nmt.recipe.tasks import TASKS, Task, task_of
from nmt.recipe.yaml_files import Origins, Tree, dump, find_recipe, override, read_file
from nmt.system.errors import UserError
from nmt.system.files import remedy

MINUTES = "checkpoint_minutes"
UPDATES = "checkpoint_updates"  # of the two, the one given last counts
MOVED = ("all", "average_last")
"""Keys of `decoding` in the recipes of older models, which are no settings of a search"""


class Recipe(Settings):
    """All settings of a run."""

    name: str = Field(pattern=NAME)
    """Name of the run."""
    data: Data
    tokenizer: TokenizerSettings = TokenizerSettings()
    model: Model = Model()
    training: Training = Training()
    decoding: Decoding = Decoding()

    @model_validator(mode="before")
    @classmethod
    def _with_defaults(cls, given: Any) -> Any:
        """Fill in task-dependent defaults and `data.name`."""
        if not isinstance(given, dict) or not isinstance(given.get("data"), dict):
            return given
        data = given["data"]
        given = given | {"data": {"name": given.get("name"), **data}}
        training = given.get("training")
        if isinstance(training, dict):
            minutes = training.get("minutes")
            if isinstance(minutes, int | float) and minutes > 0:
                given["training"] = {MINUTES: min(10.0, minutes / 15), **training}
        for section, defaults in TASKS[task_of(data.get("target"))].defaults.items():
            own = given.get(section, {})
            if isinstance(own, dict):
                given[section] = {**defaults, **own}
        return given

    @property
    def task(self) -> Task:
        """The model's task."""
        return self.data.task

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        for key, (value, reason) in self.task.fixed.items():
            section, name = key.split(".")
            given = getattr(getattr(self, section), name)
            if given != value:
                needed = json.dumps(value)
                problem = f"must be {needed} {self.task.condition}, since {reason} (got {json.dumps(given)})"
                raise Refusal(f"{key}: {problem}", f"--set {key}={needed}")
        if self.model.tie_embeddings == "all" and not self.tokenizer.shared:
            problem = "model.tie_embeddings: all needs one vocabulary; with tokenizer.shared: false use target or none"
            raise Refusal(problem, "--set model.tie_embeddings=target")
        self._check_new_languages()
        self._check_replacing()
        self._check_lengths()
        if self.training.patience is not None and not self.data.valid:
            raise Refusal("training.patience: needs data.valid", "add data.valid, or remove training.patience")
        return self

    def _check_lengths(self) -> None:
        """Refuse batches and tables of positions that are too small for the longest sequences."""
        longest = self.data.max_length + 1
        tokens = self.training.batch_tokens
        if tokens < longest:
            problem = f"must be at least {longest}, data.max_length and one end symbol (got {tokens})"
            hint = f"--set training.batch_tokens={longest}, or lower data.max_length"
            raise Refusal(f"training.batch_tokens: {problem}", hint)
        limits = {"data.max_length": self.data.max_length, "decoding.max_source": self.decoding.max_source}
        longest = max(limits.values()) + 1
        if self.model.positions == "learned" and longest > self.model.max_positions:
            those = " and ".join(f"{key} {limit}" for key, limit in limits.items())
            problem = f"must be at least {longest} for {those} with one end symbol (got {self.model.max_positions})"
            hint = f"--set model.max_positions={longest}, or lower {' and '.join(limits)}"
            raise Refusal(f"model.max_positions: {problem}", hint)

    def _check_new_languages(self) -> None:
        """Refuse new languages without texts, or that cannot be learnt."""
        training = self.training
        known = set(chain.from_iterable(self.data.directions))
        for language in self.tokenizer.new_languages:
            if language not in known:
                problem = f"tokenizer.new_languages: no training set has {language}, only {', '.join(sorted(known))}"
                raise Refusal(problem, f"add one, such as {{file: train.tsv, target: {language}}}")
            if training.init_from is None or "embeddings" in training.freeze:
                problem = f"tokenizer.new_languages: need a model whose embeddings learn anew (got {language})"
                raise Refusal(problem, "name it by training.init_from, and freeze no embeddings")

    def _check_replacing(self) -> None:
        """Refuse to replace a model by one that nothing compares with it."""
        if self.training.replace_init and (self.data.task.has_trees or not self.data.valid):
            problem = "training.replace_init: needs a translator with a development set, data.valid"
            raise Refusal(problem, "name one, or remove training.replace_init")

    def to_yaml(self) -> str:
        """Return the resolved recipe, with every key, as YAML that `load` reads back."""
        return dump(self.model_dump(mode="json"))


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of recipe files; no key is required, since `extends` may supply it."""
    schema = Recipe.model_json_schema()
    for section in (schema, *schema["$defs"].values()):
        section.pop("required", None)
    description = "Recipe to inherit from: a file, relative to this one, or a name, such as laptop."
    base = {"type": "string", "description": description}
    schema["properties"] = {"extends": base, **schema["properties"]}
    return schema


def load(path: str | os.PathLike[str], overrides: Sequence[str] = (), alone: bool = False) -> Recipe:
    """Load and validate a recipe, merged with those it extends.

    `path` may be the name of a recipe that comes with nmt, such as laptop. `overrides` are `section.key=value` strings
    with YAML values. Raise UserError if anything is invalid, or if the recipe extends another although it must stand
    `alone`, as a model's must.
    """
    return load_with_base(path, overrides, alone)[0]


def load_with_base(
    path: str | os.PathLike[str], overrides: Sequence[str] = (), alone: bool = False
) -> tuple[Recipe, Recipe | None]:
    """Load a recipe as `load` does; return it and the recipe it extends, or None if there is none or it is invalid."""
    tree, origins, base = _read(find_recipe(Path(path), str(path)), alone=alone)
    for setting in overrides:
        override(tree, origins, setting)
    _prefer_minutes_of_set(tree, origins)
    recipe = validated(tree, str(path), origins)
    if base is None:
        return recipe, None
    with suppress(UserError):  # a base need not be valid, nor have name and data
        own = {"name": recipe.name, "data": recipe.data.model_dump()}
        return recipe, validated(_merged(own, base), str(path))
    return recipe, None


def _prefer_minutes_of_set(tree: Tree, origins: Origins) -> None:
    """Remove training.checkpoint_updates, which overrides checkpoint_minutes, if a later --set gives the latter."""
    minutes = ("training", MINUTES)
    given = [key for key in origins if key in (minutes, ("training", UPDATES))]  # in order, --set last
    is_by_set = bool(given) and given[-1] == minutes and origins[minutes].startswith("--set ")
    if is_by_set and tree["training"][MINUTES] is not None:
        tree["training"].pop(UPDATES, None)


def _read(
    path: Path, extended_by: tuple[Path, ...] = (), named_by: str = "", alone: bool = False
) -> tuple[Tree, Origins, Tree | None]:
    """Return a recipe's merged values, their origins, and the values of the recipe that it extends, if any.

    `named_by` is what asks for it in the last of those that it is `extended_by`. Raise UserError if a file is missing
    or is not a recipe, if recipes extend each other, or if a recipe extends another although it must stand `alone`.
    """
    real = Path(os.path.realpath(path))  # Path.resolve fails for a symlink to itself
    if real in extended_by:
        names = ", ".join(p.name for p in extended_by)
        raise UserError(f"{path}: extends itself through {names}", "remove `extends` from one of them")
    tree, origins = read_file(path, named_by)
    base_name = tree.pop("extends", None)
    if alone:
        _remove_moved(tree)
    if base_name is None:
        return tree, origins, None
    where = f"{origins[('extends',)]}: extends"
    if alone:
        raise UserError(f"{where}: the recipe of a model has all its keys in this file", remedy(path))
    if not isinstance(base_name, str):
        hint = "name one recipe, relative to this file, as in extends: base.yaml"
        raise UserError(f"{where}: must be a file name (got {base_name!r})", hint)
    base_path = find_recipe(path.parent / base_name, base_name)
    base, base_origins, _ = _read(base_path, (*extended_by, real), where)
    _name_data(base, tree)
    return _merged(base, tree), base_origins | origins, base


def _remove_moved(tree: Tree) -> None:
    """Remove from an older model's recipe what `decoding` had that is no setting of a search."""
    decoding = tree.get("decoding")
    if isinstance(decoding, dict):
        for key in MOVED:
            decoding.pop(key, None)


def _name_data(base: Tree, tree: Tree) -> None:
    """Set the default `data.name` of both recipes: the same name, unless `tree` changes data or tokenizer.

    A recipe that changes them must not overwrite the data prepared for its base. `data.augment` changes neither.
    """
    if not isinstance(base.get("data"), dict):
        return
    data = tree.get("data")
    changes_data = "tokenizer" in tree or (isinstance(data, dict) and {*data} != {"augment"})
    base["data"].setdefault("name", base.get("name"))
    if changes_data and isinstance(tree.setdefault("data", {}), dict):
        tree["data"].setdefault("name", tree.get("name", base.get("name")))


def _merged(base: Any, changes: Any) -> Any:
    """Return a copy of `base` with `changes` merged key by key; lists and scalars are replaced, not merged."""
    if not (isinstance(base, dict) and isinstance(changes, dict)):
        return deepcopy(changes)
    if changes.get(MINUTES) is not None:  # in the section training: `UPDATES` would override it
        base = {key: value for key, value in base.items() if key != UPDATES}
    merged = deepcopy(base)
    for key, value in changes.items():
        merged[key] = _merged(base.get(key), value)
    return merged


def without_settings(recipe: Recipe) -> Recipe:
    """Return a recipe for the same task and training data, with defaults for everything else."""
    data = recipe.data.model_dump(include={"name", "source", "target", "train"})
    return validated({"name": recipe.name, "data": data}, recipe.name)


def validated(values: object, where: str, origins: Origins | None = None) -> Recipe:
    """Build a recipe from plain values; raise UserError citing the invalid key's entry in `origins`, else `where`."""
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        problems = error.errors(include_url=False)
    unknown = [problem for problem in problems if problem["type"] == "extra_forbidden"]
    first = (unknown or problems)[0]  # a misspelt key may be what other errors find missing
    path, text, hint = _explain(first, tuple(map(str, first["loc"])))
    key = f"{'.'.join(path)}: " if path else ""
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    place = _origin(path, origins or {}) or where
    raise UserError(f"{place}: {key}{text}{more}", hint)


def _origin(path: tuple[str, ...], origins: Origins) -> str | None:
    """Return what gave the value of a key or, if nothing did, of the nearest section around it; None if unknown."""
    for length in range(len(path), 0, -1):
        if path[:length] in origins:
            return origins[path[:length]]
    return None


def override_decoding(recipe: Recipe, overrides: Sequence[str]) -> Decoding:
    """Return a recipe's decoding settings with overrides of the form `decoding.key=value` or `key=value`.

    Raise UserError for a key of another section, or for a key or value that is invalid or that the task does not allow.
    """
    tree: dict[str, Any] = recipe.model_dump()
    origins: Origins = {}
    for setting in overrides:
        key = setting.split("=")[0].strip()
        if "." in key and not key.startswith("decoding."):
            known = ", ".join(f"decoding.{name}" for name in Decoding.model_fields)
            raise UserError(f"--set {setting}: only keys of decoding can be set here", f"use one of {known}")
        if "." not in key:
            setting = f"decoding.{setting}"
        override(tree, origins, setting)
    return validated(tree, "--set", origins).decoding


def _explain(problem: ErrorDetails, path: tuple[str, ...]) -> tuple[tuple[str, ...], str, str]:
    """Return a problem's key path, message and hint."""
    given = repr(problem["input"])
    refusal = problem.get("ctx", {}).get("error")
    if isinstance(refusal, Refusal):  # its message may start with a key relative to `path`
        key, colon, text = str(refusal).partition(": ")
        if colon and " " not in key:
            return (*path, *key.split(".")), text, refusal.hint
        return path, str(refusal), refusal.hint
    match problem["type"]:
        case "missing":
            return path, "must be given", f"add {'.'.join(path)} to the recipe; recipes/schema.json describes all keys"
        case "extra_forbidden":
            return path, f"unknown key (value {given})", _nearest_key(path)
        case "string_pattern_mismatch":  # only names have a pattern
            return path, f"must be a name of letters, digits and . _ - (got {given})", "begin with a letter or digit"
        case "invalid_key":
            hint = "begin a key with a letter, and write a number without commas: 1000, not 1,000"
            return path[:-1], f"a key must be a name (got {given})", hint
        case "tuple_type":
            hint = "write it between [ and ], even if it has one item"
            if path[:-1] == ("data",) and isinstance(problem["input"], str):
                hint = f"write it like [{{file: {problem['input']}}}]"
            return path, f"must be a list (got {given})", hint
        case "model_type":
            example = "{key: value}"
            if len(path) > 1:  # of a list of data sets
                example = "{source: train.en, target: train.de}"
            if len(path) > 1 and path[-1].isdigit() and isinstance(problem["input"], str):
                example = f"{{file: {problem['input']}}}"
            return path, f"must be keys with their values (got {given})", f"write them like {example}"
    whole = _whole_number(problem["input"])
    if problem["type"] == "int_type" and whole is not None:
        return path, f"must be a valid integer (got {given})", f"write it as {whole}, in digits alone"
    expected = problem.get("ctx", {}).get("expected", "")
    allowed = re.findall(r"'([^']+)'", expected)
    near = difflib.get_close_matches(str(problem["input"]), allowed, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else "correct the value, or remove the key where it has a default"
    message = problem["msg"].replace("Input should be", "must be")
    return path, f"{message} (got {given})", hint


def _whole_number(given: Any) -> int | None:
    """Return the whole number that was written otherwise, such as 1e5 or "10"; None if it is none."""
    if isinstance(given, bool):
        return None
    with suppress(ValueError, TypeError, OverflowError):
        number = float(given)
        if number.is_integer():
            return int(number)
    return None


def _nearest_key(path: tuple[str, ...]) -> str:
    """Return a hint for an unknown key: a similar key of its section, else the same key elsewhere, else all keys."""
    *outer, key = path
    if (*outer, key) == ("decoding", "all"):
        return "nmt translate --all translates what has a translation; a recipe has no key for it"
    sections = dict[str, type[Settings]]()
    for name, field in Recipe.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Settings):
            sections[name] = field.annotation
    owner: type[Settings] = Recipe
    if len(outer) == 1:
        owner = sections.get(outer[0], Settings)
    elif outer:
        owner = Augment if outer == ["data", "augment"] else Dataset
    near = difflib.get_close_matches(key, owner.model_fields, n=1, cutoff=0.6)
    if near:
        return f"did you mean {'.'.join((*outer, near[0]))}?"
    elsewhere = [f"{name}.{key}" for name, section in sections.items() if key in section.model_fields]
    if elsewhere:
        return f"did you mean {' or '.join(elsewhere)}?"
    return f"use one of {', '.join(owner.model_fields)}"
