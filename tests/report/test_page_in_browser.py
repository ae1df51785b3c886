"""Pages about runs as people open them: narrow and wide, light and dark, with a pointer and with a keyboard."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from browser import SCHEMES, WIDTHS, Opened, opened
from synthetic_run import synthetic_run

from nmt.report.page import write_page
from nmt.report.record import About


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, one of which is called what a script would be."""
    path = tmp_path_factory.mktemp("pages") / "report.html"
    other = replace(synthetic_run("wide", logged=300), signatures={"bleu": "<script>alert(1)</script>"})
    write_page([synthetic_run("multi30k"), other], path)
    return path


@pytest.fixture(scope="module")
def window(browser: Any, page: Path) -> Iterator[Opened]:
    """The page in a window that the tests of what it does share."""
    with opened(browser, page) as found:
        yield found


def labels(window: Opened, name: str, axis: str) -> list[float]:
    """The numbers along an axis of a chart, `up` or `across`."""
    return [float(text.replace(",", "")) for text in window.page.locator(f"#plot-{name} .{axis}").all_inner_texts()]


def over(window: Opened, name: str, share: float = 0.5) -> tuple[float, float]:
    """Put the pointer on a chart, at a share of its width."""
    place = window.page.locator(f"#plot-{name}")
    place.scroll_into_view_if_needed()
    box = place.bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] * share, box["y"] + box["height"] / 2
    window.page.mouse.move(x, y)
    return x, y


@pytest.mark.parametrize(("width", "scheme"), list(zip(WIDTHS, (*SCHEMES, "light"), strict=True)))
def test_the_page_is_in_order(browser: Any, page: Path, width: int, scheme: Literal["light", "dark"]) -> None:
    with opened(browser, page, width, scheme) as window:
        assert window.page.locator(".plot path.line[d^=M]").count() >= 14
        assert window.overflow() <= 0
        assert window.findings() == []
        assert (window.errors, window.requests) == ([], [])


def test_the_pointer_shows_the_values_of_all_runs_at_the_nearest_update(window: Opened) -> None:
    over(window, "score", (0.015 + 1.01 / 3) / 1.03)  # next to a third of the 4,800 updates of the longer run
    reading = window.page.locator("#chart-score .reading")
    reading.wait_for(state="visible")
    told = [" ".join(text.split()) for text in reading.locator("p").all_inner_texts()]
    assert told[:2] == ["update 1,600", "3.04 M tokens, 8.3 min"]
    assert told[2:] == ["multi30k 30.82", "wide at 1,440 24.02"]  # the fifth and the third of their scores
    window.page.mouse.move(5, 5)
    reading.wait_for(state="hidden")


def test_the_keyboard_reaches_switches_and_zoom(window: Opened) -> None:
    keyboard = window.page.keyboard
    window.page.locator("input[value=updates]").focus()
    keyboard.press("ArrowRight")
    assert window.page.locator("#plot-loss .unit").inner_text() == "target tokens, millions"
    assert labels(window, "loss", "across") == [0, 2, 4, 6, 8]  # 4,800 updates of 1,900 tokens
    keyboard.press("Tab")
    keyboard.press("ArrowRight")
    assert labels(window, "perplexity", "up") == [10, 100, 1000]
    assert labels(window, "score", "up") == [10, 20, 30]  # a score has no logarithmic axis
    keyboard.press("Tab")
    assert window.page.evaluate("document.activeElement.ariaLabel") == "Zoom in"
    assert window.page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    keyboard.press("Enter")
    assert labels(window, "loss", "across") == [3, 4, 5, 6]
    window.page.get_by_role("button", name="whole run").click()
    for name in ("updates", "linear"):
        window.page.get_by_label(name, exact=True).check()


def test_the_page_of_a_run_under_way_loads_itself_anew_and_keeps_what_was_chosen(browser: Any, tmp_path: Path) -> None:
    run = synthetic_run()
    write_page([run], tmp_path / "report.html")
    with opened(browser, tmp_path / "report.html") as window:
        window.page.clock.install()
        window.page.reload()
        window.page.get_by_label("log", exact=True).check()
        window.page.get_by_role("button", name="Zoom in").click()
        window.page.locator("#recipe > details > summary").click()
        window.page.locator("#sentences-order").select_option("best")
        window.page.locator("#sentences-checkpoint").fill("3")
        sentences = window.page.locator("#sentences-list h3").all_inner_texts()
        zoomed = labels(window, "loss", "across"), labels(window, "loss", "up")
        write_page([replace(run, about=About(finished=1))], tmp_path / "report.html")
        window.page.clock.fast_forward(31_000)
        window.page.wait_for_selector("body:not([data-reload]) #sentences-list h3")
        assert (labels(window, "loss", "across"), labels(window, "loss", "up")) == zoomed
        assert window.page.locator("#recipe > details").get_attribute("open") is not None
        assert window.page.locator("body").get_attribute("data-reload") is None  # finished
        assert window.page.locator("#sentences-list h3").all_inner_texts() == sentences
        assert window.errors == []
