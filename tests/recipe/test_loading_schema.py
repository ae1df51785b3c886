"""The JSON Schema is that of the types, and every recipe of the project loads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from recipe_files import RECIPES

from nmt.recipe import json_schema, load


def test_the_schema_file_is_generated_from_the_types() -> None:
    assert json.loads((RECIPES / "schema.json").read_text(encoding="utf-8")) == json_schema()


@pytest.mark.parametrize("path", sorted(RECIPES.rglob("*.yaml")), ids=lambda path: path.name)
def test_every_recipe_of_the_project_loads(path: Path) -> None:
    assert load(path).name
