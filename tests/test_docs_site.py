"""The site of the documents as a reader's browser shows it, from disk: whole, quiet, and without other hosts."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import unquote, urlsplit

import pytest
from browser import SCHEMES, WIDTHS, opened
from documents import PAGES, ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not importlib.util.find_spec("sphinx"), reason="needs sphinx, which `make docs` brings"),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site, which is built without a warning."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", "docs", "-d", folder / "doctrees"]
    done = subprocess.run([*command, ".", folder / "html"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "html"


class Page(HTMLParser):
    """What a page of the site leads to, what it loads, and the places that links can lead to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.places: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.places |= {name for name in (given.get("id"), given.get("name")) if name}
        if tag == "a" and given.get("href"):
            self.links.append(str(given["href"]))
        elif tag != "a":
            self.loaded += [str(given[key]) for key in ("href", "src") if given.get(key)]


def built(site: Path) -> list[Path]:
    return [site / path.relative_to(ROOT).with_suffix(".html") for path in PAGES]


def test_every_link_of_the_site_leads_somewhere_and_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = {path.resolve(): Page(path) for path in site.rglob("*.html")}
    assert set(built(site)) <= set(pages)
    broken = []
    for path, page in pages.items():
        for link in page.links + page.loaded:
            parts = urlsplit(link)
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            missing = target in pages and parts.fragment and unquote(parts.fragment) not in pages[target].places
            if not parts.scheme and (not target.exists() or missing):
                broken.append(f"{path.relative_to(site)}: {link}")
        broken += [f"{path.relative_to(site)}: {link}" for link in page.loaded if urlsplit(link).netloc]
    assert broken == []


@pytest.mark.timeout(900)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", [min(WIDTHS), max(WIDTHS)])
def test_pages_open_without_errors_requests_or_overflow(
    site: Path, browser: Browser, width: int, scheme: Literal["light", "dark"]
) -> None:
    for path in built(site):
        with opened(browser, path, width, scheme) as shown:
            assert (path.name, shown.errors, shown.requests, shown.overflow()) == (path.name, [], [], 0)
