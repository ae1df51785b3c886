"""`nmt score --runs A B --html FILE`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any


def test_a_page_shows_a_run_beside_a_bundle_without_its_run(nmt: Callable[..., Any], runs: Path) -> None:
    (runs / "a" / "averaged").rename("alone")
    done = nmt("score", "--runs", "a", "alone", "--html", "page.html")
    assert done.code == 0, done.err
    assert done.out.decode().startswith("model")
    assert "alone: is a bundle and no run: the page has its dev score and cost, but no curves" in done.err
    assert "page: page.html" in done.err
    page = Path("page.html").read_text(encoding="utf-8")
    assert "2 runs compared" in page
    assert "Of alone there are no figures of training here" in page
    assert "Loss as a table" in page
