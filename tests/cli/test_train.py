"""`nmt preprocess`, `nmt train` and `nmt average` as users meet them: a run, resumed, refused, stopped."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from recipe_files import RECIPES
from reverse_task import BARE, assert_equal_to_the_bit, metrics, position, reseal, sets, shell, write_reverse_task

from nmt.checkpoint.reading import Bundle, checkpoints
from nmt.commands.recipes import find_given
from nmt.recipe import TokenizerSettings
from nmt.system import processes
from nmt.system.errors import UserError
from nmt.text.tokenizer import Tokenizer
from nmt.training.run_state import RunState


@pytest.mark.usefixtures("new_processes")
def test_the_users_lines_work_verbatim_in_an_empty_directory(tmp_path: Path) -> None:
    """In new processes: a forked one would not miss a module that nobody imported."""
    write_reverse_task(tmp_path)
    shutil.copytree(RECIPES, tmp_path / "recipes")
    for side, name in (("a", "en"), ("b", "de")):
        for split in ("train", "valid", "test"):
            (tmp_path / f"{split}.{side}").rename(tmp_path / f"{split}.{name}")
    settings = [f"data.{split}=[{{source: {split}.en, target: {split}.de}}]" for split in ("train", "valid", "test")]
    settings += [f"data.root={tmp_path}", "tokenizer.vocab_size=280"]
    settings += ["model={layers: 1, d_model: 16, d_ff: 16, heads: 2}"]
    settings += ["training={updates: 6, batch_tokens: 1000, checkpoint_updates: 2, report: false}"]
    redirected = shlex.join(sets(*settings))
    for line in (
        f"nmt train recipes/wmt14_en_de.yaml {redirected}",
        "nmt average ckpts/ --last 5",
        "cat test.en | nmt translate --beam 4 | tee output.txt | nmt score test.de",
    ):
        done = shell(line, tmp_path)
        assert done.returncode == 0, (line, done.stderr.decode())
    assert b"BLEU" in done.stdout
    assert (tmp_path / "output.txt").read_bytes().count(b"\n") == 100
    assert json.loads((tmp_path / "ckpts/averaged/bundle.json").read_text())["steps"] == [2, 4, 6]


def test_a_small_model_learns_to_reverse_through_the_command_line(reverse_run: Path) -> None:
    done = shell("nmt translate < test.a | nmt score test.b --json", reverse_run)
    assert done.returncode == 0, done.stderr.decode()
    result = json.loads(done.stdout)
    assert result["bleu"]["score"] > 90
    assert "tok:13a" in result["bleu"]["signature"]
    assert "averaged (average of 2 checkpoints)" in done.stderr.decode()


def test_workers_of_a_host_share_its_threads(nmt, monkeypatch) -> None:
    before, seen = torch.get_num_threads(), []
    monkeypatch.setattr("nmt.training.start.train", lambda *_: seen.append(torch.get_num_threads()))
    monkeypatch.setattr("nmt.system.parallelism.cores", lambda: 6)
    monkeypatch.setattr(
        "nmt.commands.train.find_together", lambda names, *_: find_given(names, [], "cpu", False, print)
    )
    for method in ("__enter__", "use"):  # without the others
        monkeypatch.setattr(f"nmt.training.distributed.Group.{method}", lambda group, *_: group)
    for name, value in (("RANK", 1), ("WORLD_SIZE", 4), ("LOCAL_RANK", 1), ("LOCAL_WORLD_SIZE", 2)):
        monkeypatch.setenv(name, str(value))
    try:
        for given in (["--threads", "4"], ["--threads", "1"], []):
            assert nmt("train", str(RECIPES / "demo.yaml"), "--device", "cpu", *given).code == 0
    finally:
        torch.set_num_threads(before)
    assert seen == [2, 1, 3]


def test_one_directory_has_one_training_at_a_time(nmt, task: Path) -> None:
    with processes.exclusive(task / "ckpts/.lock", "ckpts", print):
        done = nmt("train", "recipe.yaml", "--set", "training.updates=1")
    assert done.code == 1
    assert "error: ckpts: another nmt is writing there" in done.err
    assert nmt("train", "recipe.yaml", "--set", "training.updates=1").code == 0


def test_a_run_needs_the_tokenizer_it_began_with(nmt, task: Path) -> None:
    assert nmt("train", "recipe.yaml", "--set", "training.updates=1").code == 0
    other = Tokenizer.train([("zz yy xx", "zz yy xx ww")] * 50, TokenizerSettings(vocab_size=266))
    for name, content in other.files().items():
        (task / "data/reverse" / name).write_bytes(content)
    reseal(task / "data/reverse")
    done = nmt("train", "recipe.yaml", "--set", "training.updates=2")
    assert done.code == 1
    assert "has another tokenizer than the run's checkpoint ckpts/step-00000001" in done.err


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.d_ff=64", "error: model.d_ff: is 64, but the run in ckpts was started with 128"),
        ("tokenizer.algorithm=unigram", "error: tokenizer.algorithm: is unigram, but the run in ckpts was started"),
        (
            "data.max_length=40",
            "error: data: the run in ckpts was started with other training files, limits or languages\n"
            "hint: go on from its model in another folder: --out OTHER --set training.init_from=ckpts\n",
        ),
    ],
)
def test_a_run_refuses_another_model_tokenizer_or_data(nmt, reverse_run: Path, monkeypatch, override, message) -> None:
    monkeypatch.chdir(reverse_run)
    before = sorted(reverse_run.rglob("*"))
    done = nmt("train", "recipe.yaml", "--set", override)
    assert done.code == 1
    assert message in done.err
    assert ": --out OTHER" in done.err
    assert sorted(reverse_run.rglob("*")) == before


# about 11 updates an epoch, so that a stop at 13 is in the second
SHORT = "--threads 1 " + " ".join(
    sets(
        "training.updates=20",
        "training.checkpoint_updates=8",
        "training.batch_tokens=5000",
        *(f"model.{key}" for key in ("dropout=0.2", "d_model=16", "d_ff=16", "heads=2")),
    )
)


def test_a_resumed_run_is_bit_equal_to_one_that_was_not_stopped(task: Path) -> None:
    whole = shell(f"nmt train recipe.yaml {SHORT} --out whole", task)
    assert whole.returncode == 0, whole.stderr.decode()
    stopped = shell(f"nmt train recipe.yaml {SHORT} --set training.updates=13 --out parts", task)
    assert stopped.returncode == 0
    resumed = shell(f"PYTHONHASHSEED=1 nmt train recipe.yaml {SHORT} --out parts", task)  # in a process of its own
    assert "changed: training.updates from 13 to 20" in resumed.stderr.decode()
    assert "resuming at update 13" in resumed.stderr.decode()
    assert json.loads((task / "parts/step-00000013/training.json").read_text())["epoch"] >= 1
    assert_equal_to_the_bit(task / "whole", task / "parts")
    rows = [metrics(task / name) for name in ("whole", "parts")]
    scores = [{row["step"]: row["valid_bleu"] for row in of if "valid_bleu" in row} for of in rows]
    assert list(scores[0]) == [8, 16, 20]
    assert list(scores[1]) == [8, 13, 16, 20]
    assert scores[0].items() <= scores[1].items()


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGTERM, 143),
        (signal.SIGKILL, -9),
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.slow),
    ],
)
def test_a_stopped_run_goes_on_where_it_was(task: Path, number: int, code: int) -> None:
    settings = sets(*BARE, "training.updates=100000", "training.checkpoint_updates=20")
    command = [sys.executable, "-m", "nmt", "train", "recipe.yaml", *settings]
    process = subprocess.Popen(command, cwd=task, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if "saved ckpts/step-00000040" in line:
            break
    process.send_signal(number)
    rest = process.stderr.read()
    assert process.wait(60) == code
    if number != signal.SIGKILL:
        assert "to resume, run the same command again" in rest
    assert "Traceback" not in rest
    newest = checkpoints(task / "ckpts")[-1].step
    assert newest >= 40
    more = " ".join(sets(*BARE, f"training.updates={newest + 5}"))
    again = shell(f"nmt train recipe.yaml {more}", task)
    assert f"resuming at update {newest:,}" in again.stderr.decode()
    assert checkpoints(task / "ckpts")[-1].step == newest + 5
    assert [path.name for path in (task / "ckpts").glob(".*")] == [".lock"]


def test_other_batches_begin_a_new_epoch_and_are_announced(nmt, task: Path) -> None:
    assert nmt("train", "recipe.yaml", *sets(*BARE, "training.updates=3")).code == 0
    done = nmt("train", "recipe.yaml", *sets(*BARE, "training.updates=5", "training.batch_tokens=250"))
    assert "changed: training.batch_tokens from 500 to 250" in done.err
    assert "batches differ from before: continuing with epoch 1" in done.err
    at = position(task / "ckpts")
    assert (at["step"], at["epoch"], at["offset"]) == (5, 1, 2)


def test_a_plan_needs_neither_data_nor_network(nmt, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = nmt("train", RECIPES / "wmt14_en_de.yaml", "--plan", "--device", "cpu")
    assert done.code == 0, done.err
    text = done.out.decode()
    for figure in ("63,045,632", "18,944,000", "25,000 source and 25,000 target", "757 MB per checkpoint", "GFLOP/s"):
        assert figure in text
    assert list(tmp_path.iterdir()) == []


DAMAGED = [
    {"step": "3"}, {"step": 5}, {"epoch": -1}, {"offset": 1.5}, {"seconds": float("nan")}, {"estimated_flops": "x"},
    {"devices": {"CPU": "x"}}, {"place": 3}, {"tokens": 10**400}, {"skipped": 801}, {"more": 1},
]  # fmt: skip


def test_a_damaged_position_is_named(nmt, reverse_run: Path, tmp_path: Path, monkeypatch) -> None:
    shutil.copytree(reverse_run, tmp_path / "run")
    monkeypatch.chdir(tmp_path / "run")
    path = Path("ckpts/step-00000800/training.json")
    whole = json.loads(path.read_text())
    for change in DAMAGED:
        path.write_text(json.dumps(whole | change))
        reseal(path.parent)
        with pytest.raises(UserError, match="step-00000800: its training state is not complete: "):
            RunState.of(Bundle.read(path.parent))
    for older in (200, 400, 600):
        shutil.rmtree(f"ckpts/step-{older:08d}")
    done = nmt("train", "recipe.yaml", "--set", "training.updates=801")
    assert done.code == 1
    assert "error: ckpts: all checkpoints are damaged; the newest: ckpts/step-00000800: its training state" in done.err
    assert "\nhint: " in done.err


def test_a_run_does_not_go_into_the_prepared_data(nmt, reverse_run: Path, monkeypatch) -> None:
    monkeypatch.chdir(reverse_run)
    assert "is inside the prepared data" in nmt("train", "recipe.yaml", "--out", "data/reverse/ckpts").err


def test_ranks_do_not_all_average(nmt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for options in ((), ("--weights", "1"), ("--format", "ctranslate2", "--out", "new")):
        done = nmt("average", "ckpts", *options)
        assert done.code == 1
        assert done.err.startswith(
            "error: this is one of 2 ranks, and each would average into the same place\nhint: start one process"
        )
