"""The JSON Schema says of a recipe what loading says of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from recipe_files import IMPOSSIBLE, RECIPES

from nmt.recipe import (
    json_schema,
    load,
)
from nmt.recipe.files import Loader

TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


CHECKS: dict[str, Callable[[Any, Any], bool]] = {
    "enum": lambda value, allowed: value in allowed,
    "const": lambda value, only: value == only,
    "minimum": lambda value, limit: value >= limit,
    "maximum": lambda value, limit: value <= limit,
    "exclusiveMinimum": lambda value, limit: value > limit,
    "exclusiveMaximum": lambda value, limit: value < limit,
    "minItems": lambda value, limit: len(value) >= limit,
    "maxItems": lambda value, limit: len(value) <= limit,
    "pattern": lambda value, pattern: re.search(pattern, value) is not None,
}


SILENT = {"title", "description", "default", "$defs", "properties", "additionalProperties", "type", "items"}


def conforms(value: Any, schema: dict[str, Any], root: dict[str, Any]) -> bool:
    """The part of JSON Schema that ours uses; an unknown keyword fails the test instead of passing unseen."""
    if "$ref" in schema:
        return conforms(value, root["$defs"][schema["$ref"].rsplit("/", 1)[1]], root)
    if "anyOf" in schema:
        return any(conforms(value, option, root) for option in schema["anyOf"])
    assert set(schema) <= SILENT | set(CHECKS) | {"prefixItems"}, schema
    kind = schema["type"]
    if not isinstance(value, TYPES[kind]) or (isinstance(value, bool) and kind != "boolean"):
        return False
    if not all(check(value, schema[key]) for key, check in CHECKS.items() if key in schema):
        return False
    if kind == "object":
        known = schema["properties"]
        assert schema["additionalProperties"] is False
        return all(key in known and conforms(child, known[key], root) for key, child in value.items())
    if kind == "array" and "prefixItems" in schema:
        return all(conforms(v, s, root) for v, s in zip(value, schema["prefixItems"], strict=False))
    return kind != "array" or all(conforms(child, schema["items"], root) for child in value)


def test_the_schema_file_is_generated_from_the_types() -> None:
    assert json.loads((RECIPES / "schema.json").read_text(encoding="utf-8")) == json_schema()


@pytest.mark.parametrize("path", sorted(RECIPES.rglob("*.yaml")), ids=lambda path: path.name)
def test_every_recipe_of_the_project_loads_and_fits_the_schema(path: Path) -> None:
    raw = yaml.load(path.read_text(encoding="utf-8"), Loader=Loader)
    assert conforms(raw, json_schema(), json_schema())
    resolved = load(path).model_dump(mode="json")
    assert conforms(resolved, json_schema(), json_schema())


@pytest.mark.parametrize("line", [line for line, *_ in IMPOSSIBLE] + [
    "modell: {layers: 2}", "model: {d_modle: 2}", "training: {updates: '5'}", "training: {updates: true}",
    "data: {train: []}", "data: {train: [{sorce: a}]}", "data: {train: [{file: a.tsv, fields: ['1', '2', '3']}]}",
    "name: a/b", "extends: 3", "training: {adam_betas: [0.9, 0.98, 0.99]}",
])  # fmt: skip
def test_the_schema_rejects_what_loading_refuses(line: str) -> None:
    assert not conforms(yaml.safe_load(line), json_schema(), json_schema())
