"""Pages about runs as people open them: narrow and wide, light and dark, with a pointer and with a keyboard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from browser import SCHEMES, WIDTHS, Opened, opened
from synthetic_run import synthetic_run

from nmt.report.page import write_page

READY = "html[data-charts=ready]"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, one of which is called what a script would be."""
    path = tmp_path_factory.mktemp("pages") / "report.html"
    other = replace(synthetic_run("wide", logged=300), signature="<script>alert(1)</script>")
    write_page([synthetic_run("multi30k"), other], path)
    return path


@pytest.fixture(scope="module")
def window(browser: Any, page: Path) -> Iterator[Opened]:
    """The page in a window that the tests of what it does share."""
    with opened(browser, page) as found:
        found.page.wait_for_selector(READY)
        yield found


def plot(window: Opened, name: str, what: str) -> Any:
    """A value of a chart."""
    return window.page.evaluate(f"Bokeh.documents[0].get_model_by_name({name!r}).{what}")


def test_a_finger_scrolls_the_page_over_a_chart(window: Opened) -> None:
    events = "document.querySelector('#plot-loss > *').shadowRoot.querySelector('.bk-Canvas').shadowRoot"
    style = window.page.evaluate(f"getComputedStyle({events}.querySelector('.bk-events')).touchAction")
    assert style == "pan-y pinch-zoom"


def until(window: Opened, holds: Callable[[], bool]) -> bool:
    """Whether something holds within three minutes."""
    return any(holds() or window.page.wait_for_timeout(30) for _ in range(6000))


def over(window: Opened, name: str) -> tuple[float, float]:
    """Puts the pointer on the middle of a chart."""
    place = window.page.locator(f"#plot-{name}")
    place.scroll_into_view_if_needed()
    box = place.bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    window.page.mouse.move(x - 1, y)
    window.page.mouse.move(x, y)
    return x, y


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_is_in_order(browser: Any, page: Path, width: int, scheme: Literal["light", "dark"]) -> None:
    with opened(browser, page, width, scheme) as window:
        window.page.wait_for_selector(READY)
        assert window.page.locator(".plot canvas").count() >= 7
        assert window.overflow() <= 0
        assert window.findings() == []
        assert (window.errors, window.requests) == ([], [])


def test_curves_have_the_colours_of_the_scheme_and_follow_it(window: Opened) -> None:
    def colour() -> Any:
        return plot(window, "loss", "renderers[0].glyph.line_color.value")

    light = colour()
    window.page.emulate_media(color_scheme="dark")
    assert until(window, lambda: colour() != light)
    window.page.emulate_media(color_scheme="light")
    assert until(window, lambda: colour() == light)


def test_the_pointer_shows_the_values_of_all_runs(window: Opened) -> None:
    over(window, "loss")
    reading = window.page.locator("#chart-loss .reading")
    reading.wait_for(state="visible")
    told = reading.inner_text()
    assert told.startswith("update ")
    assert "multi30k" in told
    assert "wide" in told
    window.page.mouse.move(5, 5)
    reading.wait_for(state="hidden")


def test_dragging_zooms_all_charts_and_a_double_click_goes_back(window: Opened) -> None:
    whole = plot(window, "score", "x_range.end")
    low = plot(window, "loss", "y_range.end")
    x, y = over(window, "loss")
    window.page.mouse.down()
    window.page.mouse.move(x + 60, y, steps=4)
    window.page.mouse.up()
    assert until(window, lambda: plot(window, "score", "x_range.end") < whole)
    assert until(window, lambda: plot(window, "loss", "y_range.end") < low)  # what is seen fills the chart
    window.page.mouse.dblclick(x, y)
    assert until(window, lambda: plot(window, "score", "x_range.end") == whole)


def test_the_wheel_zooms_with_ctrl_and_scrolls_without(window: Opened) -> None:
    def width() -> float:
        return plot(window, "loss", "x_range.end") - plot(window, "loss", "x_range.start")

    over(window, "loss")
    before = width()
    window.page.mouse.wheel(0, 40)
    window.page.wait_for_timeout(100)
    assert width() == before
    over(window, "loss")
    window.page.keyboard.down("Control")
    window.page.mouse.wheel(0, -200)
    assert until(window, lambda: width() < before)
    window.page.keyboard.up("Control")
    window.page.get_by_role("button", name="whole run").click()
    assert until(window, lambda: width() == before)


def test_the_keyboard_reaches_switches_and_zoom(window: Opened) -> None:
    keyboard = window.page.keyboard
    window.page.locator("input[value=updates]").focus()
    keyboard.press("ArrowRight")
    assert plot(window, "loss", "below[0].axis_label") == "target tokens, millions"
    assert plot(window, "loss", "renderers[0].glyph.x.field") == "tokens"
    keyboard.press("Tab")
    keyboard.press("ArrowRight")
    assert plot(window, "loss", "y_scale.type") == "LogScale"
    assert plot(window, "score", "y_scale.type") == "LinearScale"
    whole = plot(window, "loss", "x_range.end")
    keyboard.press("Tab")
    assert window.page.evaluate("document.activeElement.ariaLabel") == "Zoom in"
    assert window.page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    keyboard.press("Enter")
    assert plot(window, "loss", "x_range.end") < whole


def test_a_run_is_muted_in_all_charts(window: Opened) -> None:
    window.page.get_by_role("checkbox", name="wide").uncheck()
    for name in ("score", "loss"):
        muted = plot(window, name, "renderers.map(line => [line.tags[0], line.muted])")
        assert {tuple(entry) for entry in muted} == {(0, False), (1, True)}


def test_the_table_of_runs_is_sorted_by_its_heads(window: Opened) -> None:
    def runs() -> list[str]:
        return [name.split()[0] for name in window.page.locator(".sortable tbody th").all_inner_texts()]

    button = window.page.locator(".sortable button", has_text="Updates")
    button.click()
    assert runs() == ["wide", "multi30k"]
    assert window.page.locator("th[aria-sort=descending]").inner_text().startswith("Updates")
    button.click()
    assert runs() == ["multi30k", "wide"]


def test_the_page_on_paper_has_still_pictures_in_light_colours(window: Opened) -> None:
    window.page.emulate_media(media="print", color_scheme="dark")
    window.page.locator("#chart-loss .still").wait_for(state="visible")
    window.page.locator("#plot-loss").wait_for(state="hidden")
    colour = "getComputedStyle(document.body).color"
    assert until(window, lambda: window.page.evaluate(colour) == "rgb(28, 30, 34)")
    window.page.emulate_media(media="screen", color_scheme="light")
