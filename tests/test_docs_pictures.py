"""The pictures of the documents are those that `docs/pictures/draw.py` would draw now, and everyone can read them."""

from __future__ import annotations

import re
import runpy
from xml.etree import ElementTree

import pytest
from documents import ROOT

FOLDER = ROOT / "docs" / "pictures"
SVG = "{http://www.w3.org/2000/svg}"
PICTURES = runpy.run_path(str(FOLDER / "draw.py"))["PICTURES"]


def test_every_picture_is_drawn_and_shown() -> None:
    page = (ROOT / "docs" / "how_it_works.md").read_text(encoding="utf-8")
    shown = re.findall(r"!\[[^\]]{40,}\]\(pictures/(\w+)\.svg\)", page)  # with words for those who do not see it
    assert sorted(shown) == sorted(PICTURES) == sorted(path.stem for path in FOLDER.glob("*.svg"))


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_fresh(name: str) -> None:
    text = PICTURES[name]().svg()
    assert (FOLDER / f"{name}.svg").read_text(encoding="utf-8") == text, "run: python docs/pictures/draw.py"


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_has_a_title_and_stays_within_its_frame(name: str) -> None:
    root = ElementTree.fromstring((FOLDER / f"{name}.svg").read_text(encoding="utf-8"))
    assert all(len(root.findtext(f"{SVG}{kind}", "")) > 10 for kind in ("title", "desc"))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for box in root.iter(f"{SVG}rect"):
        x, y, wide, high = (float(box.attrib[key]) for key in ("x", "y", "width", "height"))
        assert x >= 0
        assert y >= 0
        assert x + wide <= width
        assert y + high <= height
