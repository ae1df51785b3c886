"""Which folder has which prepared data, and what becomes of it when other data of the same name is prepared."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from prepared import OUT, QUIET, fingerprint, recipe, snapshot

from nmt.data.folders import beside, find, fingerprints, look_up
from nmt.data.prepare import prepare
from nmt.recipe import Recipe
from nmt.system.errors import UserError

pytestmark = pytest.mark.usefixtures("workplace")


def of_size(vocab_size: int) -> Recipe:
    return recipe(tokenizer={"vocab_size": vocab_size})


def names() -> list[str]:
    return sorted(path.name for path in OUT.parent.iterdir() if not path.name.startswith("."))


# --- one name, several settings -----------------------------------------------------------------------------


def test_data_in_use_stays_where_it_is() -> None:
    ours, other = of_size(300), of_size(301)
    with ExitStack() as held:
        assert prepare(ours, QUIET, 1, held=held).path == OUT
        before = snapshot()
        there = prepare(other, QUIET, 1)
        assert there.path == beside(OUT, fingerprint(other))
        assert snapshot() == before
        assert prepare(other, QUIET, 1).path == there.path
    assert prepare(other, QUIET, 1).path == OUT  # once nobody uses what was there
    assert snapshot(beside(OUT, fingerprint(ours))).keys() == {
        path.replace(str(OUT), str(beside(OUT, fingerprint(ours)))) for path in before
    }
    again = prepare(ours, QUIET, 1)
    assert (again.path, again.is_new) == (OUT, False)


def test_unused_data_is_removed_except_the_newest_two_and_data_in_use_never() -> None:
    with ExitStack() as held:
        prepare(of_size(300), QUIET, 1, held=held)
        for size in (301, 302, 303):
            prepare(of_size(size), QUIET, 1)
        assert names() == sorted(["x", *(beside(OUT, fingerprint(of_size(size))).name for size in (302, 303))])
    prepare(of_size(304), QUIET, 1)
    assert names() == sorted(["x", beside(OUT, fingerprint(of_size(303))).name])


def test_a_recipe_with_the_name_of_such_a_folder_keeps_its_data() -> None:
    name = "x-0123456789ab"
    prepare(recipe(data={"name": name}), QUIET, 1)
    for size in (300, 301, 302):
        prepare(of_size(size), QUIET, 1)
    assert not prepare(recipe(data={"name": name}), QUIET, 1).is_new


def test_data_behind_a_symbolic_link_stays_on_its_disk(tmp_path: Path) -> None:
    OUT.parent.mkdir()
    OUT.symlink_to(tmp_path / "disk/x")
    for size in (300, 301):
        prepare(of_size(size), QUIET, 1)
    assert os.readlink(OUT) == str(tmp_path / "disk/x")
    assert len(list((tmp_path / "disk").glob("x*"))) == 2
    assert names() == ["x"]


def test_data_that_cannot_be_locked_is_used_and_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: object, how: int) -> None:
        raise OSError(37, "No locks available")

    prepare(of_size(300), QUIET, 1)
    before = snapshot()
    monkeypatch.setattr("fcntl.flock", refuse)
    with ExitStack() as held:
        assert prepare(of_size(300), QUIET, 1, held=held).path == OUT
        assert prepare(of_size(301), QUIET, 1, held=held).path != OUT
    assert snapshot() == before


def test_several_at_once_wait_for_one_and_use_its_data() -> None:
    Path("r.yaml").write_text(recipe().to_yaml())
    command = [sys.executable, "-m", "nmt", "preprocess", "r.yaml"]
    started = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    said = [process.communicate()[1] for process in started]
    assert [process.returncode for process in started] == [0, 0, 0], said
    assert sorted("prepared data/x: " in text for text in said) == [False, False, True]
    assert sum("nothing to do: data/x is up to date" in text for text in said) == 2
    assert names() == ["x"]


# --- what data is made from ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "differ"),
    [
        ({"data": {"test": []}}, ["data"]),
        ({"data": {"valid": []}}, ["data", "dev_set"]),
        ({"data": {"test": [{"take": 5}]}}, ["data", "train_data"]),
        ({"data": {"train": [{"source": "a.de", "target": "a.en"}]}}, ["data", "train_data"]),
        ({"data": {"max_length": 50}}, ["data", "train_data"]),
        ({"tokenizer": {"vocab_size": 301}}, ["data", "train_data"]),
        ({"data": {"train": [{"source": "a.en", "target": "a.de", "weight": 2.0}]}}, []),
    ],
    ids=str,
)
def test_a_run_is_tied_to_its_training_data_and_scores_to_their_dev_set(
    change: dict[str, Any], differ: list[str]
) -> None:
    before, after = (fingerprints(look_up(each, None)[1]) for each in (recipe(), recipe(**change)))
    assert [key for key in before if before[key] != after[key]] == differ


def test_data_with_another_test_set_serves_a_bundle_and_with_another_dev_set_does_not() -> None:
    hashes = fingerprints(look_up(recipe(), None)[1])
    wanted = (hashes["train_data"], hashes["dev_set"])
    prepare(recipe(data={"test": []}), QUIET, 1)
    assert find(OUT, *wanted) == OUT
    shutil.rmtree(OUT)
    prepare(recipe(data={"valid": []}), QUIET, 1)
    assert find(OUT, *wanted) is None


@pytest.mark.parametrize("root", ["/elsewhere", "~/elsewhere"])
def test_text_that_is_gone_counts_as_unchanged_wherever_it_would_be(root: str) -> None:
    prepare(recipe(), QUIET, 1)
    for path in Path().glob("?.*"):
        path.unlink()
    assert not prepare(recipe(data={"root": root}), QUIET, 1).is_new
    absolute = [{"source": f"{root}/a.en", "target": f"{root}/a.de"}]
    assert not prepare(recipe(data={"train": absolute}), QUIET, 1).is_new
    with pytest.raises(UserError, match=r"b\.en: no such file"):
        prepare(recipe(data={"train": [{"source": "b.en", "target": "a.de"}]}), QUIET, 1)


def test_files_of_translators_that_are_read_in_another_way_are_other_data(monkeypatch: pytest.MonkeyPatch) -> None:
    header = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\n'
    Path("a.po").write_text(header + 'msgid "one"\nmsgstr "eins"\n')
    ours = [recipe(data={"train": [{"file": "a.po"}]}), recipe()]
    before = [look_up(each, None)[1]["fingerprint"] for each in ours]
    monkeypatch.setattr("nmt.data.folders.READING", 0)
    after = [look_up(each, None)[1]["fingerprint"] for each in ours]
    assert before[0] != after[0]
    assert before[1] == after[1]
