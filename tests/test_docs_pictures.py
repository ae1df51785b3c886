"""The pictures of the documents are those that `docs/pictures/draw.py` would draw now."""

from __future__ import annotations

import re
import runpy

import pytest
from documents import ROOT

FOLDER = ROOT / "docs" / "pictures"
PICTURES = runpy.run_path(str(FOLDER / "draw.py"))["PICTURES"]


def test_every_picture_is_drawn_and_shown() -> None:
    page = (ROOT / "docs" / "how_it_works.md").read_text(encoding="utf-8")
    shown = re.findall(r"!\[[^\]]{40,}\]\(pictures/(\w+)\.svg\)", page)  # with words for those who do not see it
    assert sorted(shown) == sorted(PICTURES) == sorted(path.stem for path in FOLDER.glob("*.svg"))


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_fresh(name: str) -> None:
    text = PICTURES[name]().svg()
    assert (FOLDER / f"{name}.svg").read_text(encoding="utf-8") == text, "run: python docs/pictures/draw.py"
