"""A headless Chromium that opens pages from disk and notes what a person would not forgive."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

WIDTHS = (390, 1024, 1920)
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@dataclass
class Opened:
    """A page in a browser, and what has gone wrong on it so far."""

    page: Page
    errors: list[str] = field(default_factory=list)
    """Messages of errors in the console and of exceptions"""
    requests: list[str] = field(default_factory=list)
    """Addresses off the page that it asked for, and did not get"""

    def findings(self) -> list[str]:
        """What axe-core finds serious or critical, each with the elements concerned."""
        from axe_playwright_python.sync_playwright import Axe

        violations = Axe().run(self.page).response["violations"]
        return [
            f"{found['id']}: {found['help']}: {[node['html'][:200] for node in found['nodes'][:3]]}"
            for found in violations
            if found["impact"] in ("serious", "critical")
        ]

    def overflow(self) -> int:
        """Pixels by which the page is wider than the window."""
        return int(self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth"))


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser; skips the test where there is none."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright, which `make install` brings")
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        except sync_api.Error as error:  # a snap's launcher without snap, or libraries that are missing
            pytest.skip(f"{found} does not start: {str(error).splitlines()[0]}")
        yield browser
        browser.close()


@contextmanager
def opened(
    browser: Browser, path: Path, width: int = 1024, scheme: Literal["light", "dark"] = "light"
) -> Iterator[Opened]:
    """A file in a window `width` pixels wide; nothing off the page can be fetched."""
    height = 844 if width < 600 else 900
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    context.set_default_timeout(180_000)  # milliseconds
    page = context.new_page()
    result = Opened(page)

    def handle(route: Route) -> None:
        if route.request.url.startswith(("file:", "data:", "blob:")):
            route.continue_()
        else:
            result.requests.append(route.request.url)
            route.abort()

    page.route("**/*", handle)
    page.on("console", lambda message: result.errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: result.errors.append(str(error)))
    page.goto(path.resolve().as_uri())
    try:
        yield result
    finally:
        context.close()
