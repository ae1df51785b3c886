"""Dev sentences as people look through them: with a pointer, with a keyboard, with a screen reader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from browser import Opened, opened
from synthetic_run import with_outputs

from nmt.report import page as pages
from nmt.report.record import RunRecord

if TYPE_CHECKING:
    from playwright.sync_api import Browser

MARKUP = "</script><script>alert(1)</script> <img src=x onerror=alert(2)>"
ARABIC = "بيت كبير قرب النهر"
REFERENCES = ["a big house near the river", MARKUP, ARABIC, "", *(f"line {row} of many" for row in range(5, 46))]


def translators() -> list[RunRecord]:
    first = ["a house", "", "بيت", "x", *["no, line."] * 41]
    second = ["a small house near the river", MARKUP, "بيت صغير قرب النهر", "", *REFERENCES[4:]]
    scores = [[20.0, 0.0, 30.0, 50.0, *[10.0] * 41], [60.0, 100.0, 75.0, 0.0, *[99.0] * 41]]
    other = [["a house near a river", *second[1:]]]
    return [
        with_outputs([first, second], REFERENCES, scores, "one"),
        with_outputs(other, REFERENCES, scores[1:], "two"),
    ]


def write_sections(records: list[RunRecord], path: Path) -> Path:
    """Write a page without curves, which take a browser longer than all the rest."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(pages.SECTIONS, "curves")
        pages.write_page(records, path)
    return path


@pytest.fixture(scope="module")
def page(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    with opened(browser, write_sections(translators(), tmp_path_factory.mktemp("report") / "two.html")) as found:
        yield found


@pytest.fixture
def shown(page: Opened) -> Iterator[Opened]:
    """The page of two runs, with the controls as they are at first."""
    page.page.locator("#sentences-missing").check()
    page.page.fill("#sentences-search", "")
    page.page.select_option("#sentences-order", "file")
    page.page.select_option("#sentences-run", "0")
    yield page
    assert page.errors == page.requests == []


def numbers(shown: Opened) -> list[int]:
    return shown.page.eval_on_selector_all("#sentences-list > li", "items => items.map(item => item.value)")


def texts(shown: Opened, number: int) -> list[str]:
    """Source, reference and outputs of a sentence, as they are read out."""
    cells = shown.page.locator(f"#sentences-list > li[value='{number}'] > dl > dd").all_text_contents()
    return [" ".join(cell.split()) for cell in cells]


def test_words_that_differ_are_marked_and_told(shown: Opened) -> None:
    output = shown.page.locator("#sentences-list > li[value='1'] > dl > dd").nth(2)
    assert output.locator("del").all_text_contents() == ["missing: big"]
    assert output.locator("ins").all_text_contents() == ["not in the reference: small"]
    shown.page.locator("#sentences-missing").uncheck()
    assert not output.locator("del").is_visible()


def test_punctuation_is_no_part_of_a_word(shown: Opened) -> None:
    shown.page.locator("#sentences-checkpoint").press("ArrowLeft")
    output = shown.page.locator("#sentences-list > li[value='5'] > dl > dd").nth(2)
    assert output.locator("ins").all_text_contents() == ["not in the reference: no,", "not in the reference: ."]
    assert output.locator("del").all_text_contents() == ["missing: 5 of many"]
    output.locator("del, .hidden").evaluate_all("elements => elements.forEach(element => element.remove())")
    assert " ".join(output.text_content().split()) == "no, line ."


def test_a_cell_of_the_map_opens_its_sentence(shown: Opened) -> None:
    cells, told = shown.page.locator("#sentences-cells"), shown.page.locator("#sentences-cell")
    box = cells.bounding_box()
    assert box is not None
    cells.click(position={"x": 0.75 * box["width"], "y": box["height"] - 1})  # last: what became worse
    assert (numbers(shown)[:3], texts(shown, 4)[2]) == ([4, 1, 2], "empty")
    cells.focus()
    for key in ("PageUp", "PageUp", "PageUp", "ArrowLeft", "ArrowDown"):
        cells.press(key)
    assert told.inner_text().startswith("Sentence 5, update 100: chrF 10.0, learnt at update 200.")
    cells.press("Enter")
    assert numbers(shown)[0] == shown.page.evaluate("document.activeElement.value") == 5
    assert "no, line" in texts(shown, 5)[2]
    shown.page.select_option("#sentences-run", "1")
    assert not cells.is_visible()  # one checkpoint


def test_text_of_corpora_is_text_and_keeps_its_direction(shown: Opened) -> None:
    assert texts(shown, 2)[1:] == [MARKUP, MARKUP]
    assert shown.page.locator("#sentences-list :is(img, script)").count() == 0
    right_to_left = "cells => cells.map(cell => getComputedStyle(cell).direction)"
    assert shown.page.eval_on_selector_all("li[value='3'] dd", right_to_left) == ["ltr", "rtl", "rtl"]
    assert texts(shown, 4)[2] == "empty"


def test_a_search_counts_and_shows_what_matches(shown: Opened) -> None:
    for query, matches in (("STRASSE 1", 6), (ARABIC[:3], 1), ("small", 1), ("nowhere", 0), ("", 45)):
        shown.page.fill("#sentences-search", query)
        assert len(numbers(shown)) == min(matches, 20)
        told = f"{matches} of 45 sentences match" if query else "45 sentences"
        assert shown.page.locator("#sentences-count").inner_text() == told


def test_constituents_are_compared_and_drawn(browser: Browser, tmp_path: Path) -> None:
    gold = "(TOP (S (NP (DT the) (NN dog)) (VP (VBZ barks))))"
    flat = "(TOP (S (DT the) (NN dog) (VP (VBZ barks))))"
    stop, inside = (
        "(TOP (S (NP (NN dogs)) (VP (VBP bark))) (. .))",
        "(TOP (S (NP-SBJ (NN dogs)) (VP (VBP bark) (. .))))",
    )
    references = [gold, gold, stop]
    scores = [[80.0, 0.0, 100.0], [100.0] * 3]
    record = with_outputs([[flat, "(", inside], references], references, scores, "parser", "parse")
    with opened(browser, write_sections([record], tmp_path / "parser.html"), 390, "dark") as shown:
        shown.page.locator("#sentences-list > li").first.wait_for()
        shown.page.locator("#sentences-checkpoint").press("ArrowLeft")
        assert numbers(shown) == [2, 1, 3]  # worst first
        for summary in shown.page.locator("summary", has_text="Brackets").all():
            summary.click()
        brackets = shown.page.locator("details dd")
        brackets.nth(5).wait_for()
        made = [" ".join(text.split()) for text in brackets.all_text_contents()]
        assert made[1:4] == ["no tree", gold, f"{flat} missing: (NP the dog)"]
        assert made[5] == inside  # what F1 does not count is not marked
        drawn = shown.page.locator("li[value='1'] figure")
        labels = [figure.locator("text.differs").all_text_contents() for figure in drawn.all()]
        assert labels == [["NP ≠"], []]
        assert shown.overflow() == 0
        assert shown.findings() == shown.errors == shown.requests == []
