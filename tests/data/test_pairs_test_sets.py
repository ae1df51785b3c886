"""Test sets by sacreBLEU's names, without a network: its folder, what it would download, and what it cannot."""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
import sacrebleu.dataset

from nmt.data.pairs import check_inputs, find_test_set, read_pairs
from nmt.recipe import Data, Dataset
from nmt.system.errors import UserError

FULL = Dataset(sacrebleu="wmt14/full")
DATA = Data(name="x", source="en", target="de", train=(FULL,))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """sacreBLEU's, of which each test has one of its own; nothing is downloaded."""

    def no_network(url: str) -> NoReturn:
        raise OSError(f"no route to {url}")

    monkeypatch.setattr(urllib.request, "urlopen", no_network)
    monkeypatch.setattr("sacrebleu.utils.SACREBLEU_DIR", str(tmp_path))
    for name in ("wmt13", "wmt14/full"):
        test_set = sacrebleu.dataset.DATASETS[name]
        monkeypatch.setattr(test_set, "_outdir", str(tmp_path / name))
        monkeypatch.setattr(test_set, "_rawdir", str(tmp_path / name / "raw"))
    return tmp_path


def write(
    folder: Path, source: str, reference: str, name: str = "wmt14/full", pair: str = "en-de"
) -> tuple[Path, Path]:
    """The two files that sacreBLEU makes of a test set."""
    stem = f"{folder}/{name}/{name.replace('/', '_')}.{pair}"
    os.makedirs(f"{folder}/{name}", exist_ok=True)
    for side, text in ((f"{stem}.src", source), (f"{stem}.ref", reference)):
        Path(side).write_text(text, encoding="utf-8")
    return Path(f"{stem}.src"), Path(f"{stem}.ref")


def refusal(call: Callable[[], Any]) -> UserError:
    with pytest.raises(UserError) as error:
        call()
    return error.value


def test_a_test_set_that_is_there_is_read_without_a_network(folder: Path) -> None:
    files = write(folder, "I like trees.\nYou\n", "Ich mag Bäume.\nDu\n")
    assert find_test_set("wmt14/full", "en", "de") == files
    assert check_inputs([FULL], DATA) == 2
    assert list(read_pairs(FULL, DATA)) == [("I like trees.", "Ich mag Bäume."), ("You", "Du")]


def test_sacrebleu_makes_what_is_not_there(folder: Path) -> None:
    raw = folder / "wmt13" / "raw"
    (raw / "dev").mkdir(parents=True)
    (raw / "wmt13.test.tgz").write_bytes(b"downloaded before")
    source, reference = sacrebleu.dataset.DATASETS["wmt13"].langpairs["en-de"]
    for file, word in ((source, "tree"), (reference, "Baum")):
        (raw / file).parent.mkdir(parents=True, exist_ok=True)
        (raw / file).write_text(f'<doc docid="a" genre="b" origlang="en">\n<seg id="1"> {word} </seg>\n</doc>\n')
    assert list(read_pairs(Dataset(sacrebleu="wmt13"), DATA)) == [("tree", "Baum")]


def test_without_a_network_the_error_names_the_files_to_bring(folder: Path) -> None:
    error = refusal(lambda: check_inputs([FULL], DATA))
    assert error.message.startswith("wmt14/full: sacreBLEU cannot provide this test set: no route to https://")
    stem = folder / "wmt14/full/wmt14_full.en-de"
    assert f"put its sentences, one a line, into {stem}.src and {stem}.ref, or " in error.hint
    write(folder, "a\n", "b\n")
    assert check_inputs([FULL], DATA) == 1


@pytest.mark.parametrize(
    ("name", "target", "message", "hint"),
    [
        ("wmt14full", "de", "wmt14full: sacreBLEU knows no such test set", "did you mean wmt14/full or "),
        ("?", "de", "?: sacreBLEU knows no such test set", "name one that sacrebleu --list shows"),
        ("wmt13", "sv", "wmt13: sacreBLEU does not have this test set for en-sv", "take one of cs-en, de-en, en-cs, "),
    ],
)
def test_an_unknown_set_or_direction_is_refused_with_what_there_is(
    name: str, target: str, message: str, hint: str
) -> None:
    error = refusal(lambda: find_test_set(name, "en", target))
    assert error.message == message
    assert error.hint.startswith(hint)
