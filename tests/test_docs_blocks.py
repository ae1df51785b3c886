"""Every block of shell and Python in the documents runs, or says why it does not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from conftest import made_once
from documents import PAGES, ROOT, blocks
from page_folders import Make, PageFolder, environment, run_page


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


QUICK = [page for page in PAGES if any(block.is_program and block.speed == "quick" for block in blocks(page))]
SLOW = [page for page in PAGES if any(block.is_program and block.speed == "slow" for block in blocks(page))]


@pytest.fixture(scope="module")
def variables(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    return environment(tmp_path_factory.mktemp("home"))


@pytest.fixture
def folder(tmp_path: Path, variables: Mapping[str, str]) -> PageFolder:
    return PageFolder(tmp_path, variables)


@pytest.fixture
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    return lambda name, fill: made_once(tmp_path_factory, name, fill)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.slow] if page.name != "README.md" else []) for page in QUICK],
    ids=name,
)
def test_the_blocks_of_a_page_run_in_order(page: Path, folder: PageFolder, make: Make) -> None:
    assert run_page(page, folder, make, slow=False) > 0


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", SLOW, ids=name)
def test_the_slow_blocks_of_a_page_run_too(page: Path, folder: PageFolder, make: Make) -> None:
    assert run_page(page, folder, make, slow=True) > 0
