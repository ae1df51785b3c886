"""`nmt preprocess FILES`: what it says of the pairs, and the page about them."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from pathlib import Path

import pytest


@pytest.fixture
def _pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [f"I see {count} trees here.\tIch sehe hier {count} Bäume." for count in range(400)]
    rows += ["\tNur hier.", "This line was not translated.\tThis line was not translated."]
    rows += ["We met in 1999.\tWir trafen uns <b>2005</b>."]
    rows += ["The same again.\tDasselbe noch einmal."] * 3
    Path("pairs.en-de.tsv").write_text("".join(f"{row}\n" for row in rows))


@pytest.mark.usefixtures("_pairs")
def test_files_of_pairs_are_looked_at_without_a_training(nmt: Callable) -> None:
    done = nmt("preprocess", "pairs.en-de.tsv", "--set", "tokenizer.vocab_size=300")
    assert done.code == 0, done.err
    for line in (
        "pairs.en-de.tsv: 405 pairs, en-de by the file's name",
        "recipe: pairs.en-de.yaml is written, for 30 minutes of training",
        "1 seemingly untranslated: pairs.en-de.tsv:402: "
        "This line was not translated. ||| This line was not translated.",
        "1 with other numbers on each side: pairs.en-de.tsv:403: We met in 1999. ||| Wir trafen uns <b>2005</b>.",
        "page: data/pairs.en-de/data.html",
    ):
        assert line in done.err
    page = Path("data/pairs.en-de/data.html").read_text()
    assert "<b>2005" not in page
    shown = re.sub(r"\s+", " ", unescape(re.sub("<[^>]*>", " ", page)))
    assert "pairs.en-de.tsv:401 Nur hier." in shown
    assert "2 pairs that repeat an earlier one" in shown
    assert "valid 10 0 " in shown  # sources that training has, of those set aside
    assert not Path("pairs.en-de").exists()
    again = nmt("preprocess", "pairs.en-de.tsv").err
    assert "nothing to do: data/pairs.en-de is up to date" in again
    assert "1 seemingly untranslated: pairs.en-de.tsv:402" in again


@pytest.mark.usefixtures("_pairs")
def test_what_training_knows_of_a_test_set_is_counted(nmt: Callable) -> None:
    Path("test.tsv").write_text(
        "I see 5 trees here.\tIch sehe hier 5 Bäume.\nWhere?\tWo?\nI see 7 trees here.\tAnders.\n"
    )
    settings = "data.test=[{file: test.tsv}]", "tokenizer.vocab_size=300"
    done = nmt("preprocess", "pairs.en-de.tsv", *(part for each in settings for part in ("--set", each)))
    assert done.code == 0, done.err
    assert "test: 3 of 3 pairs" in done.err
    assert "2 pairs whose source training has" in done.err


def test_what_is_dropped_or_is_a_header_counts_as_no_text_and_is_not_suspicious(
    nmt: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = ["en,de", *(f"I see {count} trees here.,Ich sehe hier {count} Bäume." for count in range(400))]
    rows.append(f"{'word ' * 300}1999,{'Wort ' * 300}2005")
    Path("pairs.csv").write_text("".join(f"{row}\n" for row in rows))
    settings = "tokenizer.vocab_size=300", "data.valid={take: 10}", "data.test={take: 20}"
    done = nmt("preprocess", "pairs.csv", *(part for each in settings for part in ("--set", each)))
    assert "train: 370 of 401 pairs, 1,850 and 1,850 words, " in done.err
    assert "dropped as too long: pairs.csv:402: word" in done.err
    assert "dropped as empty" not in done.err
    assert "other numbers" not in done.err
    assert "<b>30</b> set aside for valid and test" in Path("data/pairs/data.html").read_text()
