"""Every block of shell and Python in the documents runs, or says why it does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import made_once
from documents import PAGES, PROGRAMS, ROOT, TEXTS, begins_with, blocks
from page_folders import INGREDIENTS, Make, PageFolder, hub_settings, run_page
from warm_nmt import warm


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


QUICK = [page for page in PAGES if any(block.is_program and block.speed == "quick" for block in blocks(page))]
SLOW = [page for page in PAGES if any(block.is_program and block.speed == "slow" for block in blocks(page))]


@pytest.fixture(scope="module")
def warm_commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("warm") / "bin"
    with warm(path, **hub_settings(path)) as folder:
        yield folder


@pytest.fixture
def folder(tmp_path: Path, warm_commands: Path) -> PageFolder:
    return PageFolder(tmp_path, warm_commands)


@pytest.fixture
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    return lambda name, fill: made_once(tmp_path_factory, name, fill)


@pytest.mark.parametrize("page", QUICK, ids=name)
def test_the_blocks_of_a_page_run_in_order(page: Path, folder: PageFolder, make: Make) -> None:
    assert run_page(page, folder, make, slow=False) > 0


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", SLOW, ids=name)
def test_the_slow_blocks_of_a_page_run_too(page: Path, folder: PageFolder, make: Make) -> None:
    assert run_page(page, folder, make, slow=True) > 0


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_has_a_language_and_markers_that_are_known(page: Path) -> None:
    found = blocks(page)
    assert [f"{block.where}: {block.language}" for block in found if block.language not in PROGRAMS + TEXTS] == []
    assert [block.where for block in found if block.marker("run") not in (None, "slow")] == []
    assert [block.where for block in found if block.marker("not run") == "" and block.is_program] == []
    assert set(begins_with(page)) <= set(INGREDIENTS)


# --- the machinery itself ----------------------------------------------------------------------------------------


def page_of(folder: Path, text: str) -> Path:
    path = folder / "page.md"
    path.write_text(text, encoding="utf-8")
    return path
