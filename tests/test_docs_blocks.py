"""Every block of shell and Python in the documents runs, or says why it does not."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest
from conftest import made_once
from documents import PAGES, ROOT, blocks
from page_folders import PageFolder, environment, run_page

RUNS = [
    pytest.param(
        *(page, speed == "slow"),
        id=f"{page.relative_to(ROOT)}-{speed}",
        marks=() if (page.name, speed) == ("README.md", "quick") else pytest.mark.slow,
    )
    for page in PAGES
    for speed in ("quick", "slow")
    if any(block.is_program and block.speed == speed for block in blocks(page))
]


@pytest.fixture(scope="module")
def variables(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    return environment(tmp_path_factory.mktemp("home"))


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("page", "slow"), RUNS)
def test_the_blocks_of_a_page_run_in_order(
    page: Path, slow: bool, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, variables: Mapping[str, str]
) -> None:
    make = partial(made_once, tmp_path_factory)
    assert run_page(page, PageFolder(tmp_path, variables), make, slow) > 0
