"""Which recipe `nmt train` takes or writes, what it leaves alone, and where the run is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from nmt.commands.recipes import Given, find_given, minutes_to_meet
from nmt.system.errors import UserError
from nmt.training.directory import LOCK

TABLE = "pairs.en-de.tsv"
RECIPE = Path("pairs.en-de.yaml")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(TABLE).write_text("".join(f"I see {count} trees.\tIch sehe {count} Bäume.\n" for count in range(300)))


def find(*names: str, overrides: Sequence[str] = (), plan: bool = False) -> tuple[Given, list[str]]:
    said = list[str]()
    return find_given(names, overrides, "cpu", plan, said.append), said


def refusal(*names: str) -> UserError:
    with pytest.raises(UserError) as caught:
        find(*names)
    return caught.value


def test_the_recipe_for_files_is_written_once_and_then_used_as_people_leave_it() -> None:
    given, said = find(TABLE, overrides=["training.minutes=3"])
    assert given.run == Path("pairs.en-de")
    assert len(said) == 3
    edited = RECIPE.read_text().replace("minutes: 3", "minutes: 4")
    RECIPE.write_text(edited)
    for name in (TABLE, f"./{TABLE}", str(RECIPE)):
        again, _ = find(name)
        assert (again.recipe.training.minutes, again.run) == (4, given.run)
        assert again.base is not None
        assert again.base.name == "laptop"
    by_set, _ = find(TABLE, overrides=["training.minutes=5"])
    assert by_set.recipe.training.minutes == 5
    assert RECIPE.read_text() == edited


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_a_gpu_gets_a_larger_model_than_processors(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    with pytest.raises(UserError, match="this machine has 0 CUDA devices"):
        find_given([TABLE], (), "cuda", False, print)
    assert os.listdir() == [TABLE]
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    said = list[str]()
    assert find_given([TABLE], (), device, False, said.append).recipe.model.d_model == 256
    assert said[1] == f"recipe: {RECIPE} is written, for 30 minutes of training on a GPU"
    RECIPE.unlink()
    found, said = find(TABLE)
    assert found.recipe.model.d_model == 128
    assert said[1].endswith(" of training on CPUs")


def test_a_plan_writes_nothing_and_shows_the_same_recipe() -> None:
    found, said = find(TABLE, overrides=["name=mine"], plan=True)
    assert os.listdir() == [TABLE]
    written, _ = find(TABLE, overrides=["name=mine"])
    assert found.recipe == written.recipe
    lines = [line for line in RECIPE.read_text().splitlines() if not line.startswith("#")]
    assert said[1:] == [f"recipe: {RECIPE} would be", *(f"  {line}" for line in lines)]


def test_nothing_that_a_person_wrote_is_replaced() -> None:
    RECIPE.write_text("extends: laptop\n")
    error = refusal(TABLE)
    assert error.message == f"{RECIPE}: is there already, and nmt has not written it for {TABLE}"
    assert error.hint == f"nmt train {RECIPE} trains it; to train these files, rename it or them"
    assert RECIPE.read_text() == "extends: laptop\n"
    RECIPE.unlink()
    find(TABLE)
    before = RECIPE.read_text()
    Path("other").mkdir()
    Path("other", TABLE).write_text(Path(TABLE).read_text())
    assert refusal(f"other/{TABLE}").message.startswith(f"{RECIPE}: is there already")
    assert RECIPE.read_text() == before


def test_the_same_files_may_be_called_otherwise() -> None:
    find(TABLE)
    for name in (f"../{Path.cwd().name}/{TABLE}", str(Path(TABLE).absolute())):
        assert find(name)[1] == [f"recipe: {RECIPE}, as it is"]


def test_the_folder_that_a_user_names_is_the_one_that_is_said() -> None:
    said = list[str]()
    given = find_given([TABLE], (), "cpu", False, said.append, Path("my run"))
    assert given.run == Path("my run")
    commands = f"nmt train {TABLE} --out 'my run', or nmt train {RECIPE} --out 'my run'"
    assert said[2] == f"run: my run/; to start it or go on with it: {commands}"


def test_a_recipe_among_files_is_named_even_if_the_files_would_get_its_name() -> None:
    Path("mine.yaml").write_text("extends: laptop\n")
    error = refusal("mine.yaml", TABLE)
    assert error.message == "mine.yaml: is a recipe by its name, among files of pairs"


def test_a_recipe_that_is_written_keeps_its_languages() -> None:
    find(TABLE)
    find(TABLE, overrides=["data.source=en", "data.target=de-AT"])
    for given, said in ((["data.source=de", "data.target=en"], "source is de"), (["data.target=fr"], "target is fr")):
        with pytest.raises(UserError) as caught:
            find(TABLE, overrides=given)
        assert caught.value.message == f"{RECIPE}: is written for en-de, but data.{said}"
    RECIPE.rename("before.yaml")
    found, _ = find(TABLE, overrides=["data.source=de", "data.target=en"])
    assert found.recipe.data.train[0].fields == ("2", "1")


def test_a_wrong_setting_writes_no_recipe() -> None:
    with pytest.raises(UserError, match="unknown key"):
        find(TABLE, overrides=["training.updats=5"])
    assert not RECIPE.exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_named() -> None:
    Path().chmod(0o500)
    try:
        error = refusal(TABLE)
        assert error.message == f"{RECIPE}: cannot be written to {Path.cwd()}"
        assert str(Path(TABLE).absolute()) in error.hint
    finally:
        Path().chmod(0o700)


def test_a_recipe_of_nmt_goes_before_a_folder_of_its_name() -> None:
    folder = Path("laptop")
    folder.mkdir()
    given, said = find("laptop")
    assert given.recipe.name == "laptop"
    assert given.run == Path("ckpts")
    assert said == ["laptop: the recipe that comes with nmt, not the folder, whose name is laptop/"]
    (folder / TABLE).write_text(Path(TABLE).read_text())
    given, _ = find("laptop/")
    assert given.run == Path("laptop-model")  # for the folder of the data is no run


def test_the_folder_of_a_run_keeps_the_name_and_another_file_does_too() -> None:
    find(TABLE)
    Path("pairs.en-de").mkdir()
    Path("pairs.en-de", LOCK).touch()
    assert find(TABLE)[0].run == Path("pairs.en-de")
    Path("rows.tsv").write_bytes(Path(TABLE).read_bytes())
    Path("rows").write_text("a text in no language\n")
    assert find("rows.tsv", overrides=["data.source=en", "data.target=de"])[0].run == Path("rows-model")


def test_the_folder_of_a_run_is_not_read_as_pairs() -> None:
    find(TABLE)
    Path("pairs.en-de").mkdir()
    Path("pairs.en-de", LOCK).touch()
    error = refusal("pairs.en-de/")
    assert error.message == "pairs.en-de/: is the folder of a run, not of pairs"
    assert error.hint == f"nmt train {RECIPE} goes on with it"


@pytest.mark.parametrize(
    ("name", "run"),
    [
        ("data.en-de.tsv", "data.en-de"),
        ("data.tsv", "data-model"),
        ("Sätze für x.tsv", "Satze-fur-x"),
        (f"{'x' * 240}.tsv", "x" * 200),
    ],
)
def test_runs_are_called_as_their_files_but_not_as_the_folder_of_prepared_data(name: str, run: str) -> None:
    Path(TABLE).rename(name)
    given, _ = find(name, overrides=["data.source=en", "data.target=de"])
    assert given.run == Path(run)


def test_ranks_wait_for_one_another_as_long_as_a_recipe_says_even_before_they_read_it_together() -> None:
    Path("mine.yaml").write_text(
        "extends: laptop\nname: mine\ndata: {source: en, target: de, train: [{file: x.tsv}]}\n"
    )
    given = ["training.timeout_minutes=60"]
    assert [minutes_to_meet([name], given) for name in ("mine.yaml", TABLE, "missing.yaml")] == [60, 10, 10]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("missing.en", "no such file or folder"),
        ("missing/", "no such file or folder"),
        ("parts.*", "no such file or folder"),
        ("pairs.xlsx", "is neither text of lines nor a file of pairs"),
        ("-", "is no file, but data is read several times"),
        ("/dev/null", "is no file, but data is read several times"),
        ("rows", "has columns, separated by tabs"),
        ("my", "no such recipe"),
        ("my.yaml", "no such recipe"),
    ],
)
def test_a_name_is_called_a_recipe_only_if_it_may_be_one(name: str, problem: str) -> None:
    Path("pairs.xlsx").write_bytes(b"PK\3\4" + bytes(range(256)))
    Path("rows").write_bytes(Path(TABLE).read_bytes())
    assert refusal(name).message.startswith(f"{name}: {problem}")
