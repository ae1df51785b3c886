"""The page of a translator: what is in the file, and in a browser."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import node
import pytest
from browser import SCHEMES, chromium, opened
from random_bundle import random_bundle, sentence
from tiny_parser import train_tokenizer, write_parser

from nmt.checkpoint.reading import Bundle
from nmt.exchange import javascript
from nmt.report import page as pages
from nmt.report.translating import export_page

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    bundle = random_bundle(folder / "bundle", info={"scores": {"chrf": 12.345}})
    export_page(bundle, folder / "page.html", HOSTILE)
    return folder / "page.html"


def test_page_allows_no_network_and_no_other_script(page: Path) -> None:
    html = page.read_text("utf-8")
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', html)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.replace("&#39;", "'").split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["worker-src"] == "blob:"
    assert re.fullmatch(r"('sha256-[^']*' )+'wasm-unsafe-eval'", rules["script-src"])
    assert "connect-src" not in rules


def test_page_says_what_it_is_and_shows_text_as_text(page: Path) -> None:
    html = page.read_text("utf-8")
    assert "<dd>random</dd>" in html
    assert "<dd>12.3" in html
    assert HOSTILE not in html
    assert "&lt;/script&gt;&lt;script&gt;alert(1)" in html
    assert html.count("<script") == html.count("</script>")


def test_no_script_would_end_its_element() -> None:
    for scripts in javascript.SCRIPTS.values():
        assert not re.search("</script|<!--", javascript.script(*scripts), re.IGNORECASE)


PAGE_WITHOUT_BROWSER = """
const listeners = {}, elements = {content: {textContent: "{}"}, text: {value: ""}};
const made = (id) => ({addEventListener: (name, call) => { listeners[`${id} ${name}`] = call; }, focus() {}});
globalThis.document = {
  ...made("page"),
  getElementById: (id) => elements[id] = Object.assign(made(id), elements[id]),
  querySelectorAll: () => [],
};
globalThis.Worker = class { postMessage({kind}) { told.push(kind); } };
const told = [];  // in order, what the worker is told, and texts that are worked on
"""
TYPE_BEFORE_LOADING = """async () => {
  const type = (value) => { byId("text").value = value; listeners["text input"](); };
  const wait = () => new Promise((resolve) => setTimeout(resolve, 2 * WAIT));
  start(() => told.push(byId("text").value));
  type("before the model is sent");
  listeners["page DOMContentLoaded"]();
  type("while it loads");
  await wait();
  worker.onmessage({data: {kind: "load", number: 1}});
  type("later");
  await wait();
  return told;
}"""


def test_what_is_typed_before_the_model_is_there_waits_for_it() -> None:
    """Its worker would answer with an error."""
    scripts = "".join((pages.TEMPLATES / f"{name}.js").read_text("utf-8") for name in ("elements", "asking"))
    told = node.run(worker=PAGE_WITHOUT_BROWSER + scripts, expression=TYPE_BEFORE_LOADING)
    assert told == ["load", "while it loads", "later"]


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1024])
def test_page_translates_in_a_browser(page: Path, width: int) -> None:
    texts = [sentence(1), f"{sentence(2)} {HOSTILE}"]
    with chromium() as browser, opened(browser, page, width, SCHEMES[width > 400]) as shown:
        tab: Any = shown.page
        tab.locator("#status", has_text="Ready.").wait_for()
        assert tab.title() == "Translator, English to German"
        tab.keyboard.insert_text("\n".join(texts))  # the box has the focus
        tab.locator("#result .part").nth(1).wait_for()
        tab.locator("#status", has_text="translated.").wait_for()
        tab.evaluate("window.drawn = document.querySelector('#result button')")
        tab.keyboard.insert_text(f"\n\n{sentence(3)}")
        tab.locator("#status", has_text="translated.").wait_for()
        tab.locator("#result .line").nth(3).locator("button").first.wait_for()
        assert tab.evaluate("document.querySelector('#result .line:nth-child(3) br') !== null")
        assert tab.evaluate("drawn.isConnected")  # a line that has not changed is not drawn anew
        assert tab.locator("#result .line").nth(2).bounding_box()["height"] > 10  # the empty one
        assert tab.evaluate("translation()").count("\n") == 3
        tab.locator("#result button").first.focus()
        count = tab.locator("#result button").count()
        for _ in range(count):
            tab.keyboard.press("ArrowDown")
        assert tab.evaluate("document.activeElement === [...document.querySelectorAll('#result button')].at(-1)")
        assert tab.locator("#result button[tabindex='0']").count() == 1
        tab.locator("#result button").first.focus()
        tab.keyboard.press("Enter")
        tab.locator("#status", has_text="are listed.").wait_for()
        tab.locator("#stage .tokens").first.wait_for()
        assert tab.locator("#source").inner_text() == texts[0]
        assert tab.evaluate("termsOf('a\\tb=c\\n d = e=f\\nno term\\n=g')") == [["a", "b=c"], ["d", "e=f"]]
        assert tab.locator("script").count() == tab.locator("body > script, head > script").count()
        assert shown.overflow() <= 0
        assert shown.findings() == []
        assert shown.errors == []
        assert shown.requests == []


@pytest.mark.slow
def test_page_parses_in_a_browser(tmp_path: Path) -> None:
    write_parser(tmp_path / "parser", train_tokenizer())
    export_page(Bundle.read(tmp_path / "parser"), tmp_path / "page.html", HOSTILE)
    with chromium() as browser, opened(browser, tmp_path / "page.html", 390, "dark") as shown:
        tab: Any = shown.page
        tab.locator("#status", has_text="Ready.").wait_for()
        tab.keyboard.insert_text(f"the dog sees a house .\n{HOSTILE}")  # the box has the focus
        tab.locator("#status", has_text="2 sentences parsed.").wait_for()
        assert tab.locator("#trees svg").count() == 2
        assert tab.locator("#trees figcaption").first.inner_text().count("(") > 6
        assert "img" in tab.locator("#trees").inner_text()
        assert tab.locator("#trees img, #trees script").count() == 0
        assert shown.overflow() <= 0
        assert shown.findings() == []
        assert shown.errors == []
        assert shown.requests == []


def test_average_writes_pages_and_bundles_of_their_weights(nmt: Any, page: Path, tmp_path: Path) -> None:
    bundle = page.parent / "bundle"
    done = nmt("average", bundle, "--format", "html", "--out", tmp_path / "en_de.html", "--license", "CC-BY-4.0")
    assert done.code == 0, done.err
    assert f"exported for browsers, in int8: {tmp_path / 'en_de.html'}" in done.err
    assert "<dd>cc-by-4.0</dd>" in (tmp_path / "en_de.html").read_text("utf-8")
    assert "--license NAME" in nmt("average", bundle, "--format", "html", "--out", tmp_path / "en_de.html").err
    assert nmt("average", bundle, "--quantization", "int8", "--out", tmp_path / "rounded").code == 0
    assert (tmp_path / "rounded/model.safetensors").stat().st_size == (bundle / "model.safetensors").stat().st_size
    refused = {
        ("--format", "html", "--out", tmp_path / "page"): "--format html needs --out FILE.html",
        ("--format", "html", "--out", tmp_path / "a.html", "--quantization", "int8"): "--quantization needs",
        ("--quantization", "float32", "--out", tmp_path / "b"): "--quantization needs",
        ("--quantization", "int8"): "--quantization int8 needs --out",
    }
    for options, message in refused.items():
        done = nmt("average", bundle, *options)
        assert done.code == 2
        assert message in done.err
