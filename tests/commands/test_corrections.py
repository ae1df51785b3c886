"""`nmt train FILES --set training.init_from=MODEL`: a model learns corrections, and stays if it is worse then."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from reverse_task import names, reseal, shell

from nmt.checkpoint.reading import Bundle
from nmt.checkpoint.writing import KEPT, save_bundle
from nmt.commands.recipes import Given, find_given
from nmt.data.corrections import BESIDE
from nmt.exchange.resolve import resolve
from nmt.recipe import Recipe, load
from nmt.system.console import Console
from nmt.system.errors import UserError
from nmt.training import succession
from nmt.training.directory import place_of, undecided

START = "training.init_from=ckpts"
COMMAND = f"nmt train fix.tsv --set {START} --threads 1 --devices 1"


@pytest.fixture(autouse=True)
def _here(reverse_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(reverse_run, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    known = Path("valid.a").read_text().splitlines()[0]
    Path("fix.tsv").write_text(f"a b c c\tc c b a\nd d e\te d d\n{known}\twrong\n")


def find(*files: str, overrides: Sequence[str] = ()) -> Given:
    return find_given(files, [START, *overrides], "cpu", False, print)


def files_of(recipe: Recipe) -> list[tuple[str | None, float]]:
    return [(each.file or each.source, each.weight) for each in recipe.data.train]


def test_corrections_are_learned_with_as_much_from_before_and_can_be_taken_back(tmp_path: Path) -> None:
    before = names(Path("ckpts"))
    Path("other.tsv").write_text("z z\ty y\na b c c\twrong\na b c c\twrong\n")
    done = shell(f"{COMMAND} --set training.updates=30 --set 'data.memory=[{{file: other.tsv}}]'", tmp_path)
    said = done.stderr.decode()
    assert done.returncode == 0, said
    assert "1 set aside for valid and test" in said
    assert "accepted: dev chrF2" in said
    assert "; ckpts is the new model, ckpts-1 the one before" in said
    assert names(Path("ckpts-1")) == before
    header = 'msgid ""\nmsgstr "Language: b\\n"\n'
    Path("app.po").write_text(f'{header}\nmsgid "z z"\nmsgstr ""\n\nmsgid "a b c c"\nmsgstr ""\n')
    assert shell("nmt translate --model ckpts --input app.po --output done.po", tmp_path).returncode == 0
    assert 'msgstr "y y"' in Path("done.po").read_text()
    assert 'msgstr "c c b a"' in Path("done.po").read_text()  # a correction, not what other sets have more often
    new, old = (resolve(Path(name))[0].weights() for name in ("ckpts", "ckpts-1"))
    learned = {name.partition(".")[0] for name, weight in new.items() if not torch.equal(weight, old[name])}
    assert learned == {"encoder", "decoder"}  # with other embeddings, it would forget more
    back = said.partition("to take it back: ")[2].splitlines()[0]
    assert shell(back, tmp_path).returncode == 0
    assert names(Path("ckpts")) == before


def test_of_post_edited_rows_the_correction_is_learned_or_two_columns_are_asked_for() -> None:
    rows = ["a b c c\tx c b a\tc c b a", "d d e\te d\te d d", "e a b\tb a\tb a e"]
    Path("post.tsv").write_text("\n".join(["Source\tMachine translation\tCorrection", *rows]) + "\n")
    said = list[str]()
    given = find_given(["post.tsv"], [START], "cpu", True, said.append)
    assert given.recipe.data.train[0].fields == ("1", "3")
    assert said[0] == "post.tsv: 3 pairs to learn, into ckpts; post.tsv without column 2 (Machine translation)"
    Path("post.tsv").write_text("\n".join(rows) + "\n")
    with pytest.raises(UserError, match=r"post\.tsv: has 3 columns of text") as caught:
        find("post.tsv")
    assert caught.value.hint == "keep two columns: sources, and translations to learn"


def test_what_spoils_a_model_is_not_accepted(tmp_path: Path) -> None:
    Path("fix.tsv").write_text("".join(f"{letters}\tz z z z\n" for letters in ("a b c", "d e f", "g h i", "b e h")))
    before = names(Path("ckpts"))
    spoiling = "--set training.learning_rate_scale=2 --set 'data.train=[{file: fix.tsv}]' --set training.updates=60"
    done = shell(f"{COMMAND} {spoiling}", tmp_path)
    said = done.stderr.decode()
    assert done.returncode == 0, said
    assert "not accepted: dev chrF2" in said
    assert "ckpts stays as it is, and ckpts-2 has what was learned" in said
    assert names(Path("ckpts")) == before
    assert not Path("ckpts-1").exists()


def corrected(scale: float, run: Path = Path("ckpts-2")) -> Bundle:
    """Write a run that has learned from ckpts, up to its average; its weights are random, of so much `scale`."""
    before, _ = resolve(Path("ckpts"))
    spoilt = {name: scale * torch.randn(weight.shape) for name, weight in before.weights().items()}
    training = before.recipe.training.model_copy(update={"init_from": "ckpts", "replace_init": True, "minutes": 1.0})
    recipe = before.recipe.model_copy(update={"training": training})
    info = {key: before.written[key] for key in KEPT if key in before.written}
    others = len(list(Path().iterdir()))
    for name in ("step-00000900", "averaged"):
        info |= {"run": f"corrections {others}", "step": 900}
        save_bundle(run / name, spoilt, recipe, before.tokenizer(), info)
    return Bundle.read(run / "averaged")


def succeed(result: Bundle) -> tuple[Path, list[str]]:
    """Return where the run is at the end, and what was said."""
    said: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Console, "say", lambda self, line: said.append(line))
        place = succession.succeed(result.path.parent, result, torch.device("cpu"), Console(quiet=True))
    return place, said


def test_a_share_of_what_was_learned_is_taken_where_all_of_it_is_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = resolve(Path("ckpts"))[0].weights()
    result = corrected(1.0)
    spoilt = result.weights()
    monkeypatch.setattr(succession, "SHARES", (1.0, 1e-4))
    place, said = succeed(result)
    assert place == Path("ckpts")
    assert said[0].startswith("not accepted: dev chrF2")
    assert said[1].startswith("accepted: 0% of what was learned: dev chrF2")
    model, _ = resolve(Path("ckpts"))
    assert model.path == Path("ckpts/averaged")
    assert model.dev_score is not None
    for name, weight in model.weights().items():
        torch.testing.assert_close(weight, weights[name].lerp(spoilt[name], 1e-4))


def test_what_was_learned_little_by_little_is_compared_with_the_model_before_all_corrections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[Path] = []

    def accept(before: Bundle, *others: object) -> str:
        compared.append(before.path)
        return "dev chrF2 1"

    monkeypatch.setattr(succession, "_accepted", accept)
    for _ in range(3):
        assert succeed(corrected(1.0, Path("new")))[0] == Path("ckpts")
    shutil.rmtree("ckpts-1")
    shutil.copytree("ckpts-3", "ckpts-1")  # is called as the first was, and is another
    succeed(corrected(1.0, Path("new")))
    assert list(map(str, compared)) == ["ckpts/averaged", "ckpts-1/averaged", "ckpts-1/averaged", "ckpts/averaged"]


def test_a_decision_that_was_interrupted_is_made_by_the_same_command(
    nmt: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["train", "fix.tsv", "--set", START, "--set", "training.updates=30", "--threads", "1", "--devices", "1"]
    with monkeypatch.context() as patch:
        patch.setattr(succession, "_accepted", lambda *given: 1 / 0)
        assert "ZeroDivisionError" in nmt(*command).err
    again = nmt(*command)
    assert "recipe: ckpts-2.yaml, as it is" in again.err
    assert "; ckpts is the new model, ckpts-1 the one before" in again.err


def test_the_second_of_two_renames_is_made_by_the_same_command(monkeypatch: pytest.MonkeyPatch) -> None:
    given = find("fix.tsv")
    result = corrected(1.0, given.run)
    monkeypatch.setattr(succession, "_accepted", lambda *given: "dev chrF2 1")
    rename = os.rename

    def killed(path: Path, to: Path) -> None:
        if path == given.run:
            raise KeyboardInterrupt  # as a kill, after which nothing is put back
        rename(path, to)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            succeed(result)
    assert not Path("ckpts").exists()
    assert find("fix.tsv").run == given.run
    waiting = undecided(given.run)
    assert waiting is not None
    place, said = succeed(waiting)
    assert place == Path("ckpts")
    assert said[0] == "accepted; ckpts is the new model, ckpts-1 the one before"
    assert undecided(place) is None


def test_a_run_that_was_not_accepted_is_not_gone_on_with(monkeypatch: pytest.MonkeyPatch) -> None:
    given = find("fix.tsv")
    result = corrected(1.0, given.run)
    assert find("fix.tsv").run == given.run
    monkeypatch.setattr(succession, "_accepted", lambda *given: None)
    assert succeed(result)[0] == given.run
    assert find("fix.tsv").run == Path("ckpts-3")


def test_a_model_that_cannot_be_renamed_stays_and_the_new_one_is_where_it_was_trained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = corrected(1.0)
    before = names(Path("ckpts"))
    monkeypatch.setattr(succession, "_accepted", lambda *given: "dev chrF2 1")

    rename = os.rename

    def refuse(path: Path, to: Path) -> None:
        if path == Path("ckpts-2"):
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        rename(path, to)

    monkeypatch.setattr(os, "rename", refuse)
    place, said = succeed(result)
    assert place == Path("ckpts-2")
    assert said == [
        "accepted: dev chrF2 1; ckpts cannot be renamed (Invalid cross-device link), so the new model is ckpts-2",
        "to put it there: mv ckpts ckpts-1 && mv ckpts-2 ckpts",
    ]
    assert names(Path("ckpts")) == before


def test_of_a_run_that_is_named_by_a_bundle_inside_of_it_the_average_alone_is_replaced() -> None:
    assert place_of(Path("ckpts/averaged")) == Path("ckpts")
    assert place_of(Path("ckpts/step-00000800")) is None
    shutil.copytree("ckpts/averaged", "alone/averaged")
    assert place_of(Path("alone/averaged")) == Path("alone/averaged")
    os.chdir("ckpts")
    with pytest.raises(UserError, match="is where you are, and a new model is to take its place"):
        find_given(["../fix.tsv"], ["training.init_from=averaged"], "cpu", False, print)


def test_an_epoch_has_three_times_as_many_pairs_that_the_model_was_trained_on() -> None:
    given = find("fix.tsv")
    assert given.run == Path("ckpts-2")
    assert files_of(given.recipe) == [
        ("fix.tsv", 1.0),
        ("ckpts-2.a-b.jsonl", pytest.approx(BESIDE * 3 / 5000, rel=0.01)),
    ]
    trained = list(zip(Path("train.a").read_text().splitlines(), Path("train.b").read_text().splitlines(), strict=True))
    before = [json.loads(line) for line in Path("ckpts-2.a-b.jsonl").read_text().splitlines()]
    assert [(pair["source"], pair["target"]) for pair in before] == trained
    assert given.recipe.decoding.beam == 4
    assert [(each.source, each.target) for each in given.recipe.data.memory] == [("train.a", "train.b")]
    assert find("fix.tsv").run == given.run  # as other processes of the same training ask


def test_a_minute_that_was_interrupted_goes_on() -> None:
    given = find("fix.tsv")
    assert find("fix.tsv").run == given.run
    given.run.rename("ckpts-1")  # as at its end, once its name is that of the model
    assert find("fix.tsv").run == Path("ckpts-3")
    shutil.rmtree("ckpts-3")
    Path("ckpts-3.yaml").unlink()  # as of a command that was killed when it had written the pairs
    assert find("fix.tsv").run == Path("ckpts-4")
    assert find("fix.tsv", overrides=["training.minutes=2"]).recipe.training.minutes == 2


def test_a_model_whose_data_is_gone_needs_a_development_set() -> None:
    shutil.rmtree("data")
    with pytest.raises(UserError, match=r"the development set of its training, .* is not here"):
        find("fix.tsv")
    named = find("fix.tsv", overrides=["data.valid=[{source: valid.a, target: valid.b}]"])
    assert files_of(named.recipe) == [("fix.tsv", 1.0)]


def test_a_model_that_was_trained_elsewhere_has_its_development_set_there(tmp_path: Path) -> None:
    Path("here").mkdir()
    os.chdir("here")
    Path("fix.tsv").write_text("a b c c\tc c b a\n")
    given = find_given(["fix.tsv"], ["training.init_from=../ckpts"], "cpu", False, print)
    assert given.recipe.data.valid[0].source == str(tmp_path / "valid.a")
    assert given.recipe.data.memory[0].source == str(tmp_path / "train.a")
    Path("../valid.b").unlink()
    with pytest.raises(UserError, match=r"the development set of its training, .* is not here: .*valid\.b") as caught:
        find_given(["../fix.tsv"], ["training.init_from=../ckpts"], "cpu", False, print)
    assert "--set 'data.valid=[{file: pairs.tsv}]'" in caught.value.hint


def test_corrections_none_of_which_would_be_learned_are_refused() -> None:
    known = Path("valid.a").read_text().splitlines()[0]
    Path("dev.tsv").write_text(f"{known}\twrong\n{known}\twrong\n")
    with pytest.raises(UserError, match=r"dev\.tsv: none of 2 pairs can be learned: 2 set aside for valid and test"):
        find("dev.tsv")
    Path("long.tsv").write_text("a b c " * 50 + "\t" + "c b a " * 50 + "\n")
    with pytest.raises(UserError, match=r"long\.tsv: none of 1 pair can be learned: 1 dropped as too long"):
        find("long.tsv")
    assert find("dev.tsv", "fix.tsv").run == Path("ckpts-2")


def test_corrections_of_other_languages_and_empty_ones_are_refused() -> None:
    Path("fix.fr-it.tsv").write_text("oui\tsi\nnon\tno\n")
    with pytest.raises(UserError, match="is fr-it by the file's name, and ckpts translates a-b"):
        find("fix.fr-it.tsv")
    assert not Path("ckpts-2.yaml").exists()


def test_a_corrected_run_says_where_the_one_before_goes_on(nmt: Callable[..., Any]) -> None:
    recipe = load(Path("ckpts/averaged/recipe.yaml"))
    corrected = {"replace_init": True, "init_from": "ckpts-1", "minutes": 1.0, "schedule": "linear"}
    recipe = recipe.model_copy(update={"training": recipe.training.model_copy(update=corrected)})
    for path in Path("ckpts").glob("step-*"):
        (path / "recipe.yaml").write_text(recipe.to_yaml())
        reseal(path)
    Path("ckpts-1").mkdir()
    done = nmt("train", "recipe.yaml", "--set", "data.max_length=40")
    assert "hint: it has learned corrections since; to go on with the run before them: --out ckpts-1" in done.err
