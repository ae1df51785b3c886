"""Write the pictures of the README: the pages that `make demo` ends with in a browser, in light and in dark.

    python docs/pictures/screens.py [--demo runs/demo]

It needs Chromium and the packages playwright, which `make install` brings, and pillow.
"""

from __future__ import annotations

import argparse
import io
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from PIL import Image
from playwright.sync_api import Page, sync_playwright

HERE = Path(__file__).parent
WIDTH, HEIGHT = 1000, 640  # of the window
COLOURS = 192  # of a picture: with fewer, faint lines of different heads look alike

SCHEMES: dict[Literal["light", "dark"], str] = {"light": "", "dark": "-dark"}
"""Suffixes of the pictures' names"""


def show_report(page: Page) -> None:
    """Scrolls to the curves."""
    page.locator("#curves").evaluate("section => section.scrollIntoView()")


def show_attention(page: Page) -> None:
    """Chooses an output whose verb is at the end, far from that of its source."""
    page.locator("select").select_option(index=8)
    page.mouse.wheel(0, 310)  # past the choices


PICTURES: dict[str, tuple[str, Callable[[Page], None]]] = {
    "report": ("ckpts/report.html", show_report),
    "attention": ("attention.html", show_attention),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--demo", type=Path, default=Path("runs/demo"), help="what `make demo` made")
    given = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for scheme, suffix in SCHEMES.items():
            page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=scheme)
            for name, (path, show) in PICTURES.items():
                page.goto((given.demo / path).resolve().as_uri())
                show(page)
                page.wait_for_timeout(1000)  # milliseconds, until what the scripts draw is there
                picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
                target = HERE / f"{name}{suffix}.png"
                picture.quantize(COLOURS).save(target, optimize=True)
                print(f"{target}: {target.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
