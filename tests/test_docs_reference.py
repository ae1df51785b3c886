"""The generated pages of the reference are those that `docs/generate.py` would write now."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from documents import GENERATED, ROOT


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
