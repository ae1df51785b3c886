"""`--attention` as users meet it: which files it writes, of which sentences, and what it does not go with."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from random_bundle import random_bundle
from tiny_parser import train_tokenizer, write_parser

from nmt.report import attention as attention_view

TEXT = b"the dog sees the river .\n\nthe cat likes it. the teacher sleeps.\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("views")
    random_bundle(folder / "translator", decoder_layers=3)
    write_parser(folder / "parser", train_tokenizer())
    return folder


@pytest.fixture
def translate(nmt, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("nmt.decoding.engine.PATIENCE", 60.0)  # the same batches, and so the same scores, in every run
    whole = ("--model", folder / "translator", "--set", "decoding.split=length")  # of the bundle no lengths are known
    return lambda *options, stdin=TEXT: nmt("translate", *whole, *options, stdin=stdin)


def test_a_page_is_written_beside_the_same_output(translate) -> None:
    plain, done = translate(), translate("--attention", "page.html")
    assert (done.code, done.out) == (0, plain.out)
    assert "attention: page.html shows the first 2 sentences\n" in done.err
    page = Path("page.html").read_text()
    assert page.count('id="weights-') == 2
    assert '"text":"the dog sees the river ."' in page
    assert "attention" not in plain.err
    assert list(Path().iterdir()) == [Path("page.html")]


def test_a_page_shows_the_first_sentences_that_are_not_too_long(translate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_view, "MOST_SENTENCES", 3)
    monkeypatch.setattr(attention_view, "LONGEST", 30)
    lines = ["the dog"] + ["cat " * 60] + [f"the {name}" for name in ("cat", "river", "tree")]
    done = translate("--attention", "page.html", "--set", "decoding.max_extra=1", stdin="\n".join(lines).encode())
    assert "page.html shows the first 3 sentences of 5, without 1 of more than 30 subwords" in done.err
    assert re.findall('"text":"(the [a-z]+)"', Path("page.html").read_text()) == ["the dog", "the cat", "the river"]


@pytest.mark.parametrize("options", [["--json"], ["--n-best", "2"], ["--sample", "2"], ["--precision", "int8"]])
def test_it_goes_with_other_ways_to_show_results(translate, options: list[str]) -> None:
    plain, done = translate(*options), translate(*options, "--attention", "page.html")
    assert (done.code, done.out) == (0, plain.out)
    assert Path("page.html").read_text().count('id="weights-') == 2


def test_a_parser_has_pages_too(nmt, folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = nmt("parse", "--model", folder / "parser", "--attention", page, stdin=b"the dog sees it .\n")
    assert done.code == 0
    assert "page.html shows the first sentence\n" in done.err
    assert '"text":"the dog sees it ."' in page.read_text()


def test_where_there_is_nothing_to_show_the_output_is_whole_and_an_old_page_stays(translate) -> None:
    Path("page.html").write_text("old")
    done = translate("--attention", "page.html", "--output", "out", stdin=b"\n\n")
    assert done.code == 1
    assert "error: --attention page.html: there is no sentence" in done.err
    assert "hint: " in done.err
    assert Path("page.html").read_text() == "old"
    assert Path("out").read_bytes() == b"\n\n"
