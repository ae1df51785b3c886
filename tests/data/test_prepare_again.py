"""Data is prepared once, and again only when something changed."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from prepared import OUT, QUIET, fingerprint, recipe, snapshot, table

from nmt.data.prepare import prepare
from nmt.system.files import sha256
from nmt.text.tokenizer import Tokenizer

pytestmark = pytest.mark.usefixtures("workplace")


# --- nothing to do ------------------------------------------------------------------------------------------


def test_a_second_run_does_nothing_whatever_the_settings_of_model_training_and_decoding() -> None:
    prepare(recipe(), QUIET, 1)
    before = snapshot()
    other = recipe(model={"layers": 2}, training={"updates": 3, "seed": 4}, decoding={"beam": 1})
    assert not any(prepare(each, QUIET, 1).is_new for each in (recipe(), other))
    assert snapshot() == before


def test_touching_a_file_changes_nothing_but_what_is_known_of_its_time() -> None:
    prepare(recipe(), QUIET, 1)
    before = snapshot()
    for name in ("a.en", "v.de"):
        os.utime(name, ns=(1, 1))
    assert not prepare(recipe(), QUIET, 1).is_new
    after = snapshot()
    known = json.loads(before.pop(str(OUT / "fingerprint.json"))[0])
    for name in ("a.en", "v.de"):
        known["files"][name][1:3] = 1, Path(name).stat().st_ctime_ns
    now = json.loads(after.pop(str(OUT / "fingerprint.json"))[0])
    assert now["hashes"].pop("fingerprint.json") != known["hashes"].pop("fingerprint.json")
    assert now == known
    assert after == before


@pytest.mark.parametrize("change", ["touched", "moved"])
def test_unchanged_content_is_read_once_more_and_not_at_every_start(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(recipe(), QUIET, 1)
    root = "."
    if change == "touched":
        os.utime("a.en", ns=(1, 1))
    else:
        root = "corpus"
        Path(root).mkdir()
        for name in ("a.en", "a.de", "v.en", "v.de", "t.en", "t.de"):
            shutil.move(name, root)
    read = []
    monkeypatch.setattr("nmt.system.files.sha256", lambda path: read.append(path) or sha256(path))
    assert not prepare(recipe(data={"root": root}), QUIET, 1).is_new
    assert len(read) == (1 if change == "touched" else 6)
    assert not prepare(recipe(data={"root": root}), QUIET, 1).is_new
    assert len(read) == (1 if change == "touched" else 6)


def test_prepared_data_that_cannot_be_written_is_good_to_train_from(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(recipe(), QUIET, 1)
    before = snapshot()
    os.utime("a.en", ns=(1, 1))

    def refuse(path: Path, target: Path) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "replace", refuse)
    assert not prepare(recipe(), QUIET, 1).is_new
    assert snapshot() == before


# --- something to do ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.en", "a.de", "v.en", "v.de", "t.en", "t.de"])
def test_changed_content_is_prepared_again(name: str) -> None:
    prepare(recipe(), QUIET, 1)
    before = fingerprint(recipe())
    assert fingerprint(recipe(data={"augment": {"upper": 0.1}})) == before
    changed = Path(name).read_text().replace("the", "eth").replace("dog", "god")
    Path(name).write_text(changed)  # of the same size
    assert fingerprint(recipe()) != before
    assert prepare(recipe(), QUIET, 1).is_new
    split, side = ({"a": "train", "v": "valid", "t": "test"}[name[0]], {"en": "source", "de": "target"}[name[2:]])
    vocabulary = Tokenizer.load(OUT).source
    assert vocabulary.decode(table(split)[side][0].as_py()) == changed.split("\n")[0]
    assert not prepare(recipe(), QUIET, 1).is_new


@pytest.mark.parametrize(
    "change",
    [
        {"tokenizer": {"vocab_size": 310}},
        {"tokenizer": {"algorithm": "unigram"}},
        {"data": {"max_length": 5}},
        {"data": {"max_ratio": 1.0}},
        {"data": {"duplicates": "drop"}},
        {"data": {"test": []}},
        {"data": {"source": "de", "target": "en"}},
        {"data": {"train": [{"source": "a.de", "target": "a.en"}]}},
        {"data": {"valid": [{"source": "t.en", "target": "t.de"}]}},
    ],
    ids=str,
)
def test_changed_settings_ask_for_preparing_again(change: dict[str, Any]) -> None:
    original = recipe()
    other = recipe(**change)
    prepare(original, QUIET, 1)
    assert fingerprint(original) == json.loads((OUT / "fingerprint.json").read_text())["fingerprint"]
    assert fingerprint(other) != fingerprint(original)


def test_preparing_again_leaves_nothing_of_before() -> None:
    prepare(recipe(tokenizer={"shared": False}, model={"tie_embeddings": "none"}), QUIET, 1)
    assert (OUT / "source.model").exists()
    assert prepare(recipe(), QUIET, 1).is_new
    assert not (OUT / "source.model").exists()
    assert sorted(p.name for p in OUT.parent.iterdir())[:2] == [".x.lock", "x"]
