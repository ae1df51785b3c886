"""Write the pictures of the README: the pages of `make demo` in a browser, in light and in dark.

    python docs/pictures/screens.py [--demo runs/demo]

The report is of a demo with training.checkpoint_updates=100, so that its course is seen. It needs Chromium and the
packages playwright, which `make install` brings, and pillow.
"""

from __future__ import annotations

import argparse
import io
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from PIL import Image
from playwright.sync_api import Page, ViewportSize, sync_playwright

HERE = Path(__file__).parent
WINDOW = ViewportSize(width=1000, height=640)
PHONE = ViewportSize(width=390, height=844)
COLOURS = 192  # of a picture: with fewer, faint lines of different heads look alike

Scheme = Literal["light", "dark"]
TEXT = "The boy knows that an old doctor never follows a dog.\nThe boy follows an old dog."


def show_report(page: Page) -> None:
    """Scrolls to the curves."""
    page.locator("#curves").evaluate("section => section.scrollIntoView()")


def show_attention(page: Page) -> None:
    """Chooses an output whose verb is at the end, far from that of its source."""
    page.locator("select").select_option(index=8)
    page.mouse.wheel(0, 310)  # past the choices


def show_translator(page: Page) -> None:
    """Translates two sentences, and shows the other translations of one of them."""
    page.locator("#status", has_text="Ready.").wait_for()
    page.keyboard.insert_text(TEXT)  # the box has the focus
    page.locator("#status", has_text="2 sentences translated.").wait_for()
    page.locator("#result button").nth(11).click()  # folgt
    page.locator("#status", has_text="are listed.").wait_for()


PICTURES: list[tuple[str, str, Callable[[Page], None], Scheme, ViewportSize]] = [
    ("report", "ckpts/report.html", show_report, "light", WINDOW),
    ("report-dark", "ckpts/report.html", show_report, "dark", WINDOW),
    ("attention", "attention.html", show_attention, "light", WINDOW),
    ("attention-dark", "attention.html", show_attention, "dark", WINDOW),
    ("translator", "translator.html", show_translator, "light", WINDOW),
    ("translator-phone", "translator.html", show_translator, "dark", PHONE),
]
"""The stem of each picture, its page, what shows something there, the colours and the window"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--demo", type=Path, default=Path("runs/demo"), help="what `make demo` made")
    parser.add_argument("--only", help="the beginning of the stems of the pictures to write")
    given = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for stem, path, show, scheme, window in PICTURES:
            if not stem.startswith(given.only or ""):
                continue
            page = browser.new_page(viewport=window, color_scheme=scheme)
            page.goto((given.demo / path).resolve().as_uri())
            show(page)
            page.wait_for_timeout(1000)  # milliseconds, until what the scripts draw is there
            picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
            target = HERE / f"{stem}.png"
            picture.quantize(COLOURS).save(target, optimize=True)
            print(f"{target}: {target.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
