"""The generated pages of the reference are those that `docs/generate.py` would write now, and they are whole."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import click
import pytest
from documents import GENERATED, ROOT

import nmt
from nmt.cli import cli
from nmt.recipe import Recipe
from nmt.recipe.data import Dataset


def load_generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generate = load_generator()
PAGES: dict[Path, str] = generate.pages()


def test_the_generator_writes_the_pages_that_are_marked_as_generated() -> None:
    marked = [page for page in sorted((ROOT / "docs").rglob("*.md")) if generate.NOTE in page.read_text()]
    assert marked == sorted(GENERATED) == sorted(PAGES)


@pytest.mark.parametrize("page", GENERATED, ids=lambda page: page.name)
def test_a_generated_page_is_fresh(page: Path) -> None:
    assert page.read_text(encoding="utf-8") == PAGES[page], "run: python docs/generate.py"


def test_every_option_of_every_command_is_on_the_page_of_commands() -> None:
    page = PAGES[generate.REFERENCE / "commands.md"]
    for name, command in cli.commands.items():
        _, _, section = page.partition(f"## nmt {name}\n")
        section = section.partition("\n## ")[0]
        options = [option for option in command.params if isinstance(option, click.Option) and not option.hidden]
        assert [option.opts for option in options if f"`{option.opts[0]}" not in section] == []


def test_every_recipe_key_has_a_heading() -> None:
    headings = {line.removeprefix("### ") for line in PAGES[generate.REFERENCE / "recipes.md"].splitlines()}
    keys = {f"{name}.{key}" for name in ("data", "tokenizer", "model", "training", "decoding")
            for key in Recipe.model_fields[name].annotation.model_fields}  # type: ignore[union-attr]  # fmt: skip
    assert keys | set(Dataset.model_fields) | {"name", "extends"} <= headings


def test_every_public_name_is_on_the_page_of_python() -> None:
    page = PAGES[generate.REFERENCE / "python.md"]
    assert [name for name in nmt.__all__ if f"## nmt.{name}\n" not in page] == []


def test_help_texts_become_plain_markdown() -> None:
    recorder = generate.HelpRecorder()
    recorder.write_text("Take --best 3 of *all* with d_model, or _one.\n\n\b\nnmt train x --plan")
    assert recorder.parts == [
        "Take `--best` 3 of \\*all\\* with d_model, or \\_one.",
        "```text\nnmt train x --plan\n```",
    ]


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "integer", "minimum": 1, "maximum": 100_000}, "a whole number, at least 1, at most 100,000"),
        ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, "a number, above 0, below 1"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "text or `null`"),
        ({"anyOf": [{"const": "auto", "type": "string"}, {"type": "boolean"}]}, "`auto` or `true` or `false`"),
        ({"enum": ["bpe", "unigram"], "type": "string"}, "one of `bpe`, `unigram`"),
    ],
)
def test_the_values_of_a_key_are_said_in_words(schema: dict[str, object], words: str) -> None:
    assert generate.allowed(schema) == words
