"""The page of attention: weights, text that cannot break it, and what it does in a browser."""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from browser import SCHEMES, WIDTHS, opened
from random_bundle import random_bundle

import nmt
from nmt.decoding.forced import Attention
from nmt.report.attention import LEVELS, page

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

HOSTILE = "the <script>alert(1)</script> <!-- {{weights}} dog's \u2028 ."


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[Attention]:
    model = nmt.load(random_bundle(tmp_path_factory.mktemp("model") / "m", decoder_layers=3, heads=4).path, "cpu")
    return [model.attention("the teacher sees the river .", "THE TEACHER"), model.attention(HOSTILE, HOSTILE)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory, found: list[Attention]) -> Path:
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(page(found, "<Attention>", "of a & b"), encoding="utf-8")
    return path


def test_it_holds_all_weights_rounded_to_eight_bits(path: Path, found: list[Attention]) -> None:
    packed = re.findall(r'<script type="text/plain" id="weights-\d+">(.*?)</script>', path.read_text("utf-8"))
    for text, attention in zip(packed, found, strict=True):
        weights = np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8) / LEVELS
        exact = np.concatenate([a.ravel() for a in (attention.encoder, attention.decoder, attention.cross)])
        np.testing.assert_allclose(weights, exact, atol=0.5001 / LEVELS)


def test_text_cannot_break_out_of_the_page(path: Path) -> None:
    html = path.read_text("utf-8")
    assert len(re.findall("<script", html)) == 7  # the data, four programs, and the weights of two sentences
    assert "<title>&lt;Attention&gt;</title>" in html
    content = re.search(r'id="content">(.*?)</script>', html)
    assert content is not None
    assert json.loads(content[1])["sentences"][1]["source"]["text"] == HOSTILE


VIEWS = {"Lines": ".lines path", "Heat map": ".map canvas", "All layers": ".all canvas"}
"""Names of the views, and what each has."""


def test_every_view_opens_without_errors_requests_or_findings(browser: Browser, path: Path) -> None:
    for width, scheme, examined in zip(WIDTHS, (*SCHEMES, "light"), VIEWS, strict=True):
        with opened(browser, path, width, scheme) as it:  # type: ignore[arg-type]
            for view, shown in VIEWS.items():
                it.page.get_by_role("radio", name=view).check()
                it.page.wait_for_selector(shown)
                assert it.overflow() <= 0
                assert view != examined or it.findings() == []  # which takes long
            assert it.page.locator(".all canvas").count() == 3 * 4
            assert (it.errors, it.requests) == ([], [])


def test_a_reader_chooses_what_is_shown(browser: Browser, path: Path, found: list[Attention]) -> None:
    tokens = (by_pointer, by_keyboard, subwords_of_a_layer, another_sentence, confidence)
    for choose in (*tokens, heads, head_of_the_grid, link):
        with opened(browser, path) as it:
            it.page.wait_for_selector(".lines path")
            choose(it.page, *found)
            assert (it.errors, it.requests) == ([], [])


def best(row: np.ndarray, names: list[str]) -> str:
    """The token that is attended to most, and its weight, as the page says it."""
    return f"“{names[row.argmax()]}” {row.max():.2f}"


def by_pointer(view: Page, first: Attention, second: Attention) -> None:
    """One word is chosen at first; a token shows only its lines, until the pointer leaves it or while it is kept."""

    def lines() -> int:
        return sum(
            path.count("M") for path in view.locator(".lines path").evaluate_all("all => all.map(p => p.outerHTML)")
        )

    words = first.by_words()
    assert view.inner_text("#caption") == "Encoder-decoder attention, layer 3, all heads"
    assert view.locator('.tokens [aria-pressed="true"]').count() == 1
    one = lines()
    view.keyboard.press("Escape")
    everything, token = lines(), view.locator(".tokens.from button").nth(1)
    assert 0 < one < everything
    token.hover()
    assert 0 < lines() < everything
    assert f"most attended: {best(words.cross[2].mean(0)[1], words.source.words)}" in view.inner_text("#readout")
    view.mouse.move(0, 0)
    assert lines() == everything
    token.click()
    view.mouse.move(0, 0)
    assert lines() < everything
    assert token.get_attribute("aria-pressed") == "true"
    view.keyboard.press("Escape")
    view.locator("h1").click()
    assert lines() == everything


def by_keyboard(view: Page, first: Attention, second: Attention) -> None:
    """Arrow keys move from token to token, and Enter keeps one."""
    view.locator(".tokens.to button").first.focus()
    view.keyboard.press("ArrowDown")
    words = first.by_words()
    row = words.cross[2].mean(0)[:, 1]
    assert f"is attended to most by: {best(row, words.target_out.words)}" in view.inner_text("#readout")
    view.keyboard.press("Enter")
    assert view.locator('.tokens.to button[aria-pressed="true"]').inner_text() == words.source.words[1]


def heads(view: Page, first: Attention, second: Attention) -> None:
    """Heads are switched on and off, and shown alone."""
    from playwright.sync_api import expect

    def colours() -> int:
        shown = view.locator(".lines path").evaluate_all("all => all.map(p => p.style.getPropertyValue('--colour'))")
        return len(set(shown))

    assert colours() == 4
    view.get_by_role("button", name="Head 2", exact=True).click()
    assert (colours(), view.inner_text("#caption")) == (3, "Encoder-decoder attention, layer 3, heads 1, 3, 4")
    view.get_by_role("button", name="Head 2 alone").focus()
    for count in (1, 4):  # a second press shows all
        view.keyboard.press("Enter")
        expect(view.locator("#heads [aria-pressed=true]")).to_have_count(count)
        assert (colours(), view.evaluate("document.activeElement.title")) == (count, "Head 2 alone")
    view.get_by_role("button", name="None").click()
    assert (colours(), view.inner_text("#readout")) == (0, "All heads are switched off.")


def subwords_of_a_layer(view: Page, first: Attention, second: Attention) -> None:
    """Subwords, another kind and another layer show the model's own weights."""
    view.get_by_label("Encoder", exact=True).check()
    view.get_by_label("Subwords", exact=True).check()
    view.locator("#layer label").nth(1).click()
    assert view.locator(".tokens.from button").all_inner_texts() == first.source.tokens
    view.locator(".tokens.from button").first.focus()
    assert best(first.encoder[1].mean(0)[0], first.source.tokens) in view.inner_text("#readout")


def head_of_the_grid(view: Page, first: Attention, second: Attention) -> None:
    """A head of the grid opens as a large map."""
    view.get_by_role("radio", name="All layers").check()
    view.get_by_role("button", name="Layer 2, head 3:").click()
    assert view.inner_text("#caption") == "Encoder-decoder attention, layer 2, head 3"
    view.locator(".tokens button").first.focus()
    words = first.by_words()
    assert best(words.cross[1, 2, 0], words.source.words) in view.inner_text("#readout")


def another_sentence(view: Page, first: Attention, second: Attention) -> None:
    """The buttons and the list lead to other sentences."""
    view.get_by_role("button", name="Next sentence").click()
    view.locator("#source", has_text="alert").wait_for()
    assert view.locator(".tokens.from button").all_inner_texts() == second.target_out.words
    assert view.text_content("#output") == second.target_out.text
    view.locator("#sentence").select_option("0")
    view.locator("#source", has_not_text="alert").wait_for()


def confidence(view: Page, first: Attention, second: Attention) -> None:
    """A word of the output tells its probability, and a click on it shows what it attends to."""
    word = view.locator("#output button").nth(1)
    word.focus()
    probability = np.exp(first.by_words().log_probabilities[1])
    assert f"“{first.by_words().target_out.words[1]}” {probability:.2f}" in view.inner_text("#confidence")
    word.click()
    assert view.locator('.tokens.from [aria-pressed="true"]').inner_text() == word.inner_text()


def link(view: Page, first: Attention, second: Attention) -> None:
    """The address holds what is shown; a wrong one shows the rest."""
    view.get_by_role("button", name="Next sentence").click()
    view.get_by_label("Decoder", exact=True).check()
    view.get_by_label("Subwords", exact=True).check()
    view.locator("#layer label").nth(1).click()
    view.get_by_role("button", name="Head 2", exact=True).click()
    view.locator(".tokens.to button").nth(2).click()
    parts = ("#source", "#caption", "#readout", ".lines svg")
    address, shown = view.url, [view.inner_html(part) for part in parts]
    view.reload()
    view.wait_for_selector(".lines path")
    assert (view.url, [view.inner_html(part) for part in parts]) == (address, shown)
    view.evaluate("location.hash = '#sentence=99&attention=both&layer=0&heads=1,9&token=-1&view=map'")
    view.wait_for_selector(".map")
    assert view.inner_text("#caption") == "Encoder-decoder attention, layer 3, head 1"
