"""The documents name only files, functions, modules and headings that exist; generated pages are fresh."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import generate
import pytest
from documents import broken_links
from test_layout import FILES, MAY_IMPORT, PACKAGE, layer, name_of

ROOT = PACKAGE.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")])
ARCHITECTURE = ROOT / "docs" / "architecture.md"

REFERENCE = re.compile(r"`([\w./-]+\.py)(?:::?([\w.]+))?`")  # `path.py`, `path.py:name` or, of a test, `path.py::name`
COMMAND = re.compile(r"python ((?:benchmarks|recipes)/\w+\.py)")


def section(title: str) -> str:
    """The part of the architecture below a heading, down to the next heading."""
    text = ARCHITECTURE.read_text(encoding="utf-8")
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#{{1,3}} |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"no section {title!r}"
    return found[1]


def defined(path: Path) -> set[str]:
    """Functions, classes and constants of a module, and `Class.method`."""
    names: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
            if isinstance(node, ast.ClassDef):
                names |= {f"{node.name}.{item.name}" for item in node.body if isinstance(item, ast.FunctionDef)}
    return names


def problems(text: str) -> list[str]:
    """Files and names that a text refers to, and scripts that its commands run, that do not exist."""
    named = REFERENCE.findall(text) + [(path, "") for path in COMMAND.findall(text)]
    return [
        f"{path}:{name}" if name else path
        for path, name in named
        if not (ROOT / path).is_file() or (name and name not in defined(ROOT / path))
    ]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_file_and_name_in_a_document_exists(document: Path) -> None:
    assert problems(document.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_leads_to_a_file_and_heading_that_exist(document: Path) -> None:
    assert broken_links(document) == []


def test_the_import_table_of_the_document_is_the_one_that_is_enforced() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", section("What may import what"), re.MULTILINE)
    documented = {module: set() if needs == "nothing" else set(needs.split(", ")) for module, needs in rows}
    existing = {layer(name_of(path)) for path in FILES}
    assert documented == {module: MAY_IMPORT[module] & existing for module in existing}


def test_the_tree_of_the_repository_lists_every_module() -> None:
    listed, folder = [], PACKAGE
    for indent, names in re.findall(
        r"^    ( {2,4})(\w+(?:/|(?:, \w+)*))(?: |$)", section("The repository"), re.MULTILINE
    ):
        folder = PACKAGE if len(indent) == 2 else folder
        if names.endswith("/"):
            folder = PACKAGE / names
        else:
            listed += [folder / f"{name}.py" for name in names.split(", ")]
    # The package files of folders hold a docstring, and at most import what others take from the package.
    assert sorted(listed) == sorted(path for path in FILES if path.name != "__init__.py" or path.parent == PACKAGE)


GENERATED: dict[Path, str] = generate.pages()


def test_the_pages_that_are_marked_as_generated_are_those_of_the_generator() -> None:
    marked = [page for page in DOCUMENTS if generate.NOTE in page.read_text(encoding="utf-8")]
    assert marked == sorted(GENERATED)


@pytest.mark.parametrize("page", GENERATED, ids=lambda page: page.name)
def test_a_generated_page_is_fresh(page: Path) -> None:
    assert page.read_text(encoding="utf-8") == GENERATED[page], "run: python docs/generate.py"
