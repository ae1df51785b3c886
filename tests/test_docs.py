"""The documents name only files, functions, modules and headings that exist; generated pages and figures are fresh."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import generate
import pytest
from documents import PAGES, anchors, broken_links
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


SCORE = re.compile(r"(?<![\w.,+-])\d\d\.\d\d?(?![\w%]|[.,]\d)")
FIGURES = [(entry, name) for entry, said in generate.figures().items() for name in said["values"]]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_figures_of_a_page_are_those_of_the_file(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text == generate.filled(text), "run: python docs/generate.py"
    assert re.findall(r"^ *<!--figure.*", text, re.MULTILINE) == [], "such a line would be HTML"


@pytest.mark.parametrize(("entry", "name"), FIGURES)
def test_a_figure_stands_in_the_section_of_results_that_has_its_conditions(entry: str, name: str) -> None:
    said = generate.figures()[entry]
    file, _, anchor = said["results"].partition("#")
    page = (generate.FIGURES.parent / file).resolve()
    sections = re.split(r"^(?=#+ )", page.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    text = dict(zip(anchors(page), sections, strict=True))[anchor]
    assert re.search(rf"(?<![\d.,]){re.escape(said['values'][name])}(?!\d|[.,]\d)", text)


def test_a_score_on_several_pages_stands_between_markers() -> None:
    texts = {page: page.read_text(encoding="utf-8") for page in PAGES}
    for recipe in (ROOT / "recipes").rglob("*.yaml"):
        texts[recipe] = "\n".join(re.findall(r"#.*", recipe.read_text(encoding="utf-8")))
    unmarked = {page: set(SCORE.findall(generate.FIGURE.sub("", text))) for page, text in texts.items()}
    of_the_paper = set(re.findall(r"[ (](\d\d\.\d)(?!\d)", texts[ROOT / "docs" / "reproduce.md"]))
    pages = Counter(score for text in texts.values() for score in set(SCORE.findall(text)))
    repeated = {score for score, count in pages.items() if count > 1} - of_the_paper
    assert {page.name: scores & repeated for page, scores in unmarked.items() if scores & repeated} == {}
