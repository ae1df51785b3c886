"""A whole recipe: what its sections must agree on, how it is read, and what is said of one that is wrong.

Validation happens before any work starts. An error names the file and line, the key, the value, what is allowed and
the nearest valid key.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from nmt.errors import UserError
from nmt.recipe.data import NAME, Data, Dataset
from nmt.recipe.files import Origins, dump, override, read
from nmt.recipe.settings import Decoding, Model, Refusal, Settings, TokenizerSettings, Training
from nmt.recipe.tasks import KINDS, Kind, TaskName, task_of

S = TypeVar("S", bound=Settings)


class Recipe(Settings):
    """A whole run."""

    name: str = Field(pattern=NAME)
    """Name of the run."""
    data: Data
    tokenizer: TokenizerSettings = TokenizerSettings()
    model: Model = Model()
    training: Training = Training()
    decoding: Decoding = Decoding()

    @model_validator(mode="before")
    @classmethod
    def _with_defaults_of_the_task(cls, given: Any) -> Any:
        """Fill in the defaults that depend on the task."""
        if not isinstance(given, dict) or not isinstance(data := given.get("data"), dict):
            return given
        defaults = KINDS[task_of(data.get("source"), data.get("target"))].defaults
        sections = {name: given.get(name, {}) for name in defaults}
        return given | {name: {**defaults[name], **own} for name, own in sections.items() if isinstance(own, dict)}

    @property
    def task(self) -> TaskName:
        """What the model is for."""
        return task_of(self.data.source, self.data.target)

    @property
    def kind(self) -> Kind:
        """What is special about the task."""
        return self.data.kind

    @model_validator(mode="after")
    def _fits_the_task(self) -> Self:
        _check_fixed(self.kind, dict(self))
        return self

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        if self.model.tie_embeddings == "all" and not self.tokenizer.shared:
            raise Refusal(
                "model.tie_embeddings: all needs one vocabulary; with tokenizer.shared: false use target or none",
                "--set model.tie_embeddings=target",
            )
        longest = self.data.max_length + 1
        if self.training.batch_tokens < longest:
            raise Refusal(
                f"training.batch_tokens: must be at least {longest}, data.max_length and one end symbol "
                f"(got {self.training.batch_tokens})",
                f"--set training.batch_tokens={longest}, or lower data.max_length",
            )
        if self.training.patience is not None and not self.data.valid:
            raise Refusal("training.patience: needs data.valid", "add data.valid, or remove training.patience")
        limits = {"data.max_length": self.data.max_length}
        if self.kind.has_source:
            limits["decoding.max_source"] = self.decoding.max_source
        longest = max(limits.values()) + 1
        if self.model.positions == "learned" and longest > self.model.max_positions:
            raise Refusal(
                f"model.max_positions: must be at least {longest} for "
                f"{' and '.join(f'{key} {limit}' for key, limit in limits.items())} with one end symbol "
                f"(got {self.model.max_positions})",
                f"--set model.max_positions={longest}, or lower {' and '.join(limits)}",
            )
        return self

    def to_yaml(self) -> str:
        """Write the resolved recipe with every key; `load` reads an equal recipe from it."""
        return dump(self.model_dump(mode="json"))


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of recipe files; no key is required, since `extends` may supply it."""
    schema = Recipe.model_json_schema()
    for section in (schema, *schema["$defs"].values()):
        section.pop("required", None)
    base = {"type": "string", "description": "Recipe to inherit from, relative to this file."}
    schema["properties"] = {"extends": base, **schema["properties"]}
    return schema


def load(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Recipe:
    """Read, merge and validate a recipe.

    `overrides` are strings `section.key=value` whose values are YAML. Raises UserError if anything is wrong.
    """
    return load_with_base(path, overrides)[0]


def load_resolved(path: str | os.PathLike[str]) -> Recipe:
    """Read and validate the recipe of a model, which extends no other; raises UserError if anything is wrong."""
    return load_with_base(path, alone=True)[0]


def load_with_base(
    path: str | os.PathLike[str], overrides: Sequence[str] = (), alone: bool = False
) -> tuple[Recipe, Recipe | None]:
    """Load a recipe and the one that it extends; None if it extends none, or one that is not valid by itself.

    A recipe that extends another though it must stand `alone` is a UserError, too.
    """
    tree, origins, base = read(Path(path), alone=alone)
    for setting in overrides:
        override(tree, origins, setting)
    if isinstance(tree.get("data"), dict):
        tree["data"].setdefault("name", tree.get("name"))
    recipe = _validate(Recipe, tree, origins, str(path))
    if base is None:
        return recipe, None
    with suppress(UserError):  # it may leave name and data to those that extend it
        data = recipe.data.model_dump() | base.get("data", {})
        return recipe, validated({"name": recipe.name, **base, "data": data}, str(path))
    return recipe, None


def without_settings(recipe: Recipe) -> Recipe:
    """Return the recipe of the same task and training data in which everything else has its default."""
    data = recipe.data.model_dump(include={"name", "source", "target", "train"})
    return validated({"name": recipe.name, "data": data}, recipe.name)


def validated(values: object, where: str) -> Recipe:
    """Make a recipe of plain values; raises UserError as `load` does, naming `where` they are from."""
    return _validate(Recipe, values, {}, where)


def override_decoding(recipe: Recipe, overrides: Sequence[str]) -> Decoding:
    """Apply `--set decoding.key=value` (or `key=value`) to the decoding settings of a recipe; returns them.

    Raises UserError if another section is named, or if a key or value is wrong, or not allowed for the recipe's task.
    """
    tree: dict[str, Any] = {"decoding": recipe.decoding.model_dump()}
    origins: Origins = {}
    for setting in overrides:
        key = setting.split("=")[0].strip()
        if "." in key and not key.startswith("decoding."):
            raise UserError(
                f"--set {setting}: only keys of decoding can be set here",
                f"use one of {', '.join(f'decoding.{name}' for name in Decoding.model_fields)}",
            )
        override(tree, origins, setting if "." in key else f"decoding.{setting}")
    decoding = _validate(Decoding, tree["decoding"], origins, "--set", ("decoding",))
    try:
        _check_fixed(recipe.kind, {"decoding": decoding})
    except Refusal as refusal:
        path, text = _about(refusal, ())
        raise UserError(_located(path, text, origins, "--set"), refusal.hint) from None
    return decoding


def _check_fixed(kind: Kind, sections: Mapping[str, Any]) -> None:
    """Raise Refusal if a key of these sections, given by name, has a value that it may not have for this task."""
    for key, (value, reason) in kind.fixed.items():
        section, name = key.split(".")
        if section in sections and (given := getattr(sections[section], name)) != value:
            raise Refusal(
                f"{key}: must be {json.dumps(value)} {kind.condition}, since {reason} (got {json.dumps(given)})",
                f"--set {key}={json.dumps(value)}",
            )


def _validate(kind: type[S], tree: object, origins: Origins, file: str, prefix: tuple[str, ...] = ()) -> S:
    """Turn plain values into settings; `prefix` is the key path of `tree` in the recipe."""
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        problems = error.errors(include_url=False)
    problem = next((p for p in problems if p["type"] == "extra_forbidden"), problems[0])
    path, text, hint = _explain(problem, (*prefix, *map(str, problem["loc"])))
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    raise UserError(f"{_located(path, text, origins, file)}{more}", hint)


def _located(path: tuple[str, ...], text: str, origins: Origins, file: str) -> str:
    """Put before a text the key that it is about, and where that key or its section is set; in `file` by default."""
    where = next((origins[path[:n]] for n in range(len(path), 0, -1) if path[:n] in origins), file)
    key = f"{'.'.join(path)}: " if path else ""
    return f"{where}: {key}{text}"


def _explain(problem: ErrorDetails, path: tuple[str, ...]) -> tuple[tuple[str, ...], str, str]:
    """Return the path of the key that a problem is about, what is wrong, and what to do."""
    refusal, given = problem.get("ctx", {}).get("error"), repr(problem["input"])
    if isinstance(refusal, Refusal):
        return *_about(refusal, path), refusal.hint
    if problem["type"] == "missing":
        return path, "must be given", f"add {'.'.join(path)} to the recipe; recipes/schema.json describes all keys"
    if problem["type"] == "extra_forbidden":
        return path, f"unknown key (value {given})", _nearest_key(path)
    if problem["type"] == "string_pattern_mismatch":  # only names have a pattern
        text = f"must be a name of letters, digits and . _ - (got {given})"
        return path, text, "begin with a letter or digit, and leave out spaces and slashes"
    if problem["type"] == "tuple_type":
        return path, f"must be a list (got {given})", "write it between [ and ], even if it has one item"
    if problem["type"] == "model_type":
        example = "{source: train.en, target: train.de}" if len(path) > 1 else "{key: value}"
        return path, f"must be keys with their values (got {given})", f"write them like {example}"
    hint = _nearest_value(problem) or "correct the value, or remove the key where it has a default"
    return path, f"{problem['msg'].replace('Input should be', 'must be')} (got {given})", hint


def _about(refusal: Refusal, path: tuple[str, ...]) -> tuple[tuple[str, ...], str]:
    """Return the path of the key that a refusal is about, raised for the settings at `path`, and what is wrong."""
    key, colon, text = str(refusal).partition(": ")
    return ((*path, *key.split(".")), text) if colon and " " not in key else (path, str(refusal))


def _nearest_value(problem: ErrorDetails) -> str | None:
    """Suggest the allowed word that is most like the given one, if one is."""
    allowed = re.findall(r"'([^']+)'", problem.get("ctx", {}).get("expected", ""))
    near = difflib.get_close_matches(str(problem["input"]), allowed, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else None


def _nearest_key(path: tuple[str, ...]) -> str:
    """Suggest the key of this section that is most like an unknown one, or the same key of another section."""
    sections = {name: field.annotation for name, field in Recipe.model_fields.items()}
    keys = {
        name: list(kind.model_fields) if isinstance(kind, type) and issubclass(kind, Settings) else []
        for name, kind in sections.items()
    }
    if len(path) > 2:  # a key of one data set
        allowed, prefix = list(Dataset.model_fields), ".".join(path[:-1]) + "."
    elif len(path) == 2:
        allowed, prefix = keys.get(path[0], []), f"{path[0]}."
    else:
        allowed, prefix = list(sections), ""
    near = difflib.get_close_matches(path[-1], allowed, n=1, cutoff=0.6)
    if near:
        return f"did you mean {prefix}{near[0]}?"
    elsewhere = [f"{name}.{path[-1]}" for name, names in keys.items() if path[-1] in names]
    return f"did you mean {' or '.join(elsewhere)}?" if elsewhere else f"use one of {', '.join(allowed)}"
