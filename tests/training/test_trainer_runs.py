"""A run in its directory: what it resumes from, what it leaves there, and settings that change on the way."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, call

import pytest
import safetensors.torch
import torch
from reverse_task import (
    AUGMENTED,
    BARE,
    REVERSE_RECIPE,
    assert_equal_to_the_bit,
    metrics,
    names,
    parameters,
    position,
    reseal,
    sets,
    small,
)

from nmt import cli
from nmt.checkpoint.reading import checkpoints
from nmt.checkpoint.writing import Checkpoints, add_info
from nmt.data.epochs import EpochPlan, EpochPlans
from nmt.recipe import Training, load
from nmt.system.console import Console, JsonLines
from nmt.system.errors import Interrupted
from nmt.training.changes import changes
from nmt.training.distributed import Requests
from nmt.training.progress import Progress, show_progress
from nmt.training.run import Run
from nmt.training.run_state import RunState

SMALL = small("updates: 12, log_updates: 4, valid_beam: 1")


# --- killed -------------------------------------------------------------------------------------------------


def killed(*settings: str, out: str = "ckpts") -> None:
    """Trains in a process of its own that ends as by SIGKILL where `os._exit` was put."""
    child = os.fork()
    if child == 0:
        # One thread: OpenMP hangs in a fork of a process that has had several.
        machine = "--device", "cpu", "--threads", "1"
        sys.argv = ["nmt", "train", "recipe.yaml", *SMALL, *sets(*settings), "--out", out, *machine, "--quiet"]
        try:
            cli.main()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


SCORED = "training.checkpoint_updates=3", "training.patience=2", "training.learning_rate_scale=1e-6", AUGMENTED


def scores(folder: Path) -> dict[float, tuple[float, float]]:
    return {row["step"]: (row["valid_bleu"], row["valid_perplexity"]) for row in metrics(folder) if "valid_bleu" in row}


PLACES: dict[str, tuple[Any, str]] = {
    "before scoring": (Run, "_score"),
    "before the scores are added": (Checkpoints, "add"),
    "before they are told": (Progress, "checkpoint"),
}


@pytest.mark.parametrize(
    ("where", "number"),
    [
        pytest.param(place, number, marks=[pytest.mark.slow][: (place, number) != ("before scoring", 3)])
        for place in PLACES
        for number in (1, 3)
    ],
)
def test_a_checkpoint_that_lost_its_scores_is_scored_and_counted(
    train, task: Path, monkeypatch: pytest.MonkeyPatch, where: str, number: int
) -> None:
    """Whenever a run is killed: patience ends it after the same checkpoint, with the same scores."""
    train("training.updates=60", *SCORED, out="whole")
    assert [bundle.step for bundle in checkpoints(task / "whole")] == [3, 6, 9]
    left, whole, run = number, task / "whole", task / "killed"

    def dies(original: Callable[..., Any]) -> Callable[..., Any]:
        def method(self: Any, *arguments: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                if not isinstance(self, Progress):  # the checkpoint itself is there
                    (self.checkpoints if isinstance(self, Run) else self).wait()
                os._exit(9)
            return original(self, *arguments)

        return method

    with monkeypatch.context() as patch:
        owner, name = PLACES[where]
        patch.setattr(owner, name, dies(getattr(owner, name)))
        killed("training.updates=60", *SCORED, out="killed")
    assert (checkpoints(run)[-1].scores == {}) == (owner is not Progress)
    said = train("training.updates=60", *SCORED, out="killed")
    assert scores(run) == scores(whole)
    assert (run / "dev.jsonl").read_bytes() == (whole / "dev.jsonl").read_bytes()
    found = [[(bundle.step, bundle.scores) for bundle in checkpoints(of)] for of in (whole, run)]
    assert found[0] == found[1]
    assert "finished: no better dev chrF2 for 2 checkpoints" in said
    # the sample is of a checkpoint that this process has scored
    sample = r"source .*\n  ours .*\n  reference .*\n  " if "  saved " in said else ""
    assert re.search(rf"\n  dev chrF2 +[▁-█]{{2,}}  .*\n  {sample}checkpoint ", said)
    again = train("training.updates=60", *SCORED, out="killed")
    assert "resuming" not in again  # nothing is left to do


def test_a_checkpoint_due_when_a_run_was_stopped_is_scored_on_resuming(
    train, task: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = "training.updates=6", *SCORED
    train(*settings, out="whole")

    def stopped(self: Run, *given: Any) -> Requests:
        return original(self, *given)._replace(stop=signal.SIGTERM if self.state.step == 2 else 0)

    with monkeypatch.context() as patch:
        original = Run._requests
        patch.setattr(Run, "_requests", stopped)
        train(*settings, out="parts", code=143)
    assert [bundle.step for bundle in checkpoints(task / "parts")] == [3]
    train(*settings, out="parts")
    assert scores(task / "parts") == scores(task / "whole")
    assert [bundle.scores for bundle in checkpoints(task / "parts")] == [
        bundle.scores for bundle in checkpoints(task / "whole")
    ]


def test_lines_that_cannot_be_written_do_not_end_a_run(train, task: Path) -> None:
    for name in ("metrics.jsonl", "dev.jsonl"):
        (task / "ckpts" / name).mkdir(parents=True)
    said = train("training.updates=6", *SCORED)
    for name in ("metrics.jsonl", "dev.jsonl"):
        assert said.count(f"ckpts/{name}: lines cannot be written, but the run continues: Is a directory\n") == 1
    assert [bundle.step for bundle in checkpoints(task / "ckpts")] == [3, 6]


def test_the_recipe_of_a_run_is_replaced_as_a_whole(train, task: Path) -> None:
    train("training.updates=1", *BARE)
    before = (task / "ckpts/recipe.yaml").read_bytes()
    (task / "before").hardlink_to(task / "ckpts/recipe.yaml")
    train("training.updates=2", *BARE)
    assert (task / "before").read_bytes() == before != (task / "ckpts/recipe.yaml").read_bytes()


def test_what_a_killed_run_had_left_to_remove_is_removed(train, task: Path) -> None:
    settings = "training.updates=6", "training.checkpoint_updates=2", "training.keep_last=2", *SCORED[1:]
    train(*settings)
    kept = names(task / "ckpts")
    copied = task / "ckpts/step-00000001"
    shutil.copytree(task / "ckpts/step-00000004", copied)
    add_info(copied, {"step": 1, "scores": {}})
    add_info(task / "ckpts/step-00000006", {"unscored": True, "scores": {}})
    train(*settings)
    assert names(task / "ckpts") == kept


def test_plans_that_slower_ranks_may_still_need_are_kept(train, task: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Epochs of one update each: a rank is up to two updates, and so two epochs, behind rank 0's preparations."""
    there: list[list[int]] = []

    def noted(self: EpochPlans, epoch: int) -> EpochPlan:
        plan = original(self, epoch)
        there.append(sorted(int(path.name.split("-")[1]) for path in self.out.glob(".epoch-*")))
        return plan

    original = EpochPlans.plan
    monkeypatch.setattr(EpochPlans, "plan", noted)
    few = "data.train=[{source: train.a, target: train.b, weight: 0.02}]"
    train(few, "training.batch_tokens=100000", "training.updates=14", *BARE)
    assert [epochs[-1] for epochs in there[:14]] == list(range(14))
    assert all({last - 2, last - 1} & set(range(last)) <= set(rest) for *rest, last in there)
    assert max(map(len, there)) == 3
    assert [path.name for path in (task / "ckpts").glob(".*")] == [".lock"]


HEAD = 128  # bytes of a NumPy file before its numbers


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("order.npy", lambda content: content[:HEAD] + content[HEAD:][::-1]),
        ("bounds.npy", lambda content: content[:HEAD]),
        ("bounds.npy", None),
    ],
)
def test_a_plan_that_was_damaged_is_made_again(
    train, task: Path, monkeypatch: pytest.MonkeyPatch, name: str, damage: Callable[[bytes], bytes] | None
) -> None:
    train("training.updates=4", *BARE, out="whole")
    with monkeypatch.context() as patch:
        patch.setattr("nmt.training.run.remove_plans", lambda *given: None)  # as if it were killed
        train("training.updates=2", *BARE)
    (path,) = (task / "ckpts").glob(f".epoch-0-*/{name}")
    content = path.read_bytes()
    path.unlink()
    if damage is not None:
        path.write_bytes(damage(content))
    train("training.updates=4", *BARE)
    assert_equal_to_the_bit(task / "whole", task / "ckpts")


def test_a_mixture_of_changed_texts_is_continued_to_the_bit(train, task: Path) -> None:
    mixed = "data.train=[{source: train.a, target: train.b, weight: 0.02}]", AUGMENTED, *BARE
    assert "prepared now" not in train(*mixed, out="whole")
    folders = names(task / "data")
    train(*mixed, "training.updates=5", out="parts")
    assert position(task / "parts")["epoch"] >= 1
    assert "batches differ" not in train(*mixed, out="parts")
    assert_equal_to_the_bit(task / "whole", task / "parts")
    assert position(task / "whole") | TIMES == position(task / "parts") | TIMES
    train(*mixed[:1], *BARE, out="plain")
    assert position(task / "plain")["tokens"] < position(task / "whole")["tokens"]
    assert names(task / "data") == folders


TIMES = dict.fromkeys(("seconds", "device_seconds", "estimated_flops", "devices", "spent"))


def test_shorter_factors_on_a_cpu_are_refused(train) -> None:
    assert "error: training.precision: tf32 is for GPUs" in train("training.precision=tf32", code=1)


def test_figures_are_written_for_tensorboard(train, task: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = boards = [MagicMock(), MagicMock()]
    package = SimpleNamespace(SummaryWriter=MagicMock(side_effect=boards))
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", package)
    for board in boards:
        board.__enter__.return_value = board
    train("training.tensorboard=true", "training.updates=4")
    train("training.tensorboard=true", "training.updates=8")
    made = package.SummaryWriter.call_args_list
    assert made == [call("ckpts/tensorboard", purge_step=step) for step in (1, 5)]
    assert first.__exit__.called
    assert second.__exit__.called
    lines = [row for row in metrics(task / "ckpts") if "loss" in row or "valid_bleu" in row]
    rows = [(k, v, row["step"]) for row in lines for k, v in row.items() if k != "step"]
    assert [each.args for board in boards for each in board.add_scalar.call_args_list] == rows
    assert {"loss", "gradient_norm", "valid_bleu", "tokens"} <= {name for name, _, _ in rows}


# --- lengths of training pairs ------------------------------------------------------------------------------


def test_the_checkpoints_of_a_run_have_the_lengths_of_the_prepared_data(train, task: Path) -> None:
    train("training.updates=3", *BARE)
    train("training.updates=6", *BARE)
    (content,) = {path.read_text() for path in task.glob("data/*/lengths.json")}  # of all data with this training set
    assert [each.written["lengths"] for each in checkpoints(task / "ckpts")] == [json.loads(content)] * 2


def test_a_full_disk_ends_a_run_in_one_line_and_spoils_nothing(
    train, task: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = "training.checkpoint_updates=3"
    train(every, out="whole")
    train(every, "training.updates=6")
    content = {path: path.read_bytes() for path in (task / "ckpts").glob("step-*/*")}

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(safetensors.torch, "save_file", full)
        said = train(every, code=1)
    errors = [line for line in said.splitlines() if line.startswith("error")]
    assert errors == ["error: ckpts/step-00000009: the disk is full"]
    assert "saved ckpts/step-00000009" not in said
    assert "Traceback" not in said
    assert {path: path.read_bytes() for path in (task / "ckpts").glob("step-*/*")} == content
    train(every)
    assert_equal_to_the_bit(task / "whole", task / "ckpts")


def test_another_mixture_begins_a_new_epoch(train, task: Path) -> None:
    train("training.updates=3", *BARE)
    assert position(task / "ckpts")["epoch"] == 0
    weighted = "data.train=[{source: train.a, target: train.b, weight: 1.5}]"
    said = train(weighted, "training.updates=4", *BARE)
    assert "batches differ from before: continuing with epoch 1" in said
    assert "now prepared" not in said


def test_a_run_in_bf16_learns_as_one_in_fp32(train, task: Path) -> None:
    longer = "training.updates=40", "training.log_updates=10", "training.warmup=30", *BARE
    for precision in ("fp32", "bf16"):
        train(*longer, f"training.precision={precision}", out=precision)
    losses = [[row["loss"] for row in metrics(task / name) if "loss" in row] for name in ("fp32", "bf16")]
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[0], rel=0.03)
    assert losses[0][-1] < 0.9 * losses[0][0]
    assert {tensor.dtype for tensor in parameters(task / "bf16").values()} == {torch.float32}


@pytest.mark.parametrize(("before", "now"), [("fp64", "fp32"), ("fp32", "fp64")])
def test_precision_may_change_on_the_way(train, task: Path, before: str, now: str) -> None:
    train("training.updates=4", f"training.precision={before}", *BARE)
    said = train("training.updates=8", f"training.precision={now}", *BARE)
    assert f"changed: training.precision from {before} to {now}" in said
    expected = torch.float64 if now == "fp64" else torch.float32
    assert {tensor.dtype for tensor in parameters(task / "ckpts").values()} == {expected}


def test_other_parts_may_be_frozen_on_the_way(train, task: Path) -> None:
    """What was frozen begins without moments, of Muon and of its Adam, and a run with them resumes to the bit."""
    train("training.updates=1", *BARE, out="first")
    own = "training.optimizer=muon", "training.init_from=first", *BARE
    for out in ("whole", "parts"):
        train("training.freeze=[encoder]", "training.updates=2", *own, out=out)
    before = parameters(task / "parts")
    assert not any(":" in name and name.startswith("encoder.") for name in before)
    said = train("training.updates=4", *own, out="parts")
    assert "changed: training.freeze from encoder to none\n" in said
    now = parameters(task / "parts")
    assert not any(torch.equal(now[name], before[name]) for name in before if name.startswith("encoder."))
    for out in ("whole", "parts"):
        train("training.updates=6", *own, out=out)
    assert_equal_to_the_bit(task / "whole", task / "parts")
    said = train("training.freeze=[decoder, embeddings]", "training.updates=7", *own, out="parts")
    assert "changed: training.freeze from none to decoder, embeddings\n" in said


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ("training.weight_decay=0.0", "", ""),
        ("training.weight_decay=0.0 training.optimizer=muon", "training.optimizer=muon",
         "training.weight_decay from 0.0 to 0.1"),
        ("training.valid_beam=null decoding.beam=2", "training.valid_beam=2 decoding.beam=2", ""),
        ("training.valid_beam=null decoding.beam=2", "decoding.beam=2", "training.valid_beam from 2 to 1"),
        ("training.device_tokens=100", "", "training.device_tokens from 100 to the default"),
        ("", "training.compile=false", "training.compile from the default to false"),
        ("", "training.clip_norm=1", "training.clip_norm from none to 1.0"),
        ("data.augment.typos=0.1", "data.augment.upper=0.2",
         "data.augment.upper from 0.0 to 0.2; data.augment.typos from 0.1 to 0.0"),
        ("model.decoder_layers=1", "model.d_k=16 model.d_v=16", ""),
        ("training.checkpoint_updates=9 training.minutes=7", "training.checkpoint_updates=9 training.minutes=8",
         "training.minutes from 7.0 to 8.0"),
        ("training.minutes=7", "training.minutes=8",
         "training.minutes from 7.0 to 8.0; training.checkpoint_minutes from 0.466667 to 0.533333"),
    ],
)  # fmt: skip
def test_settings_that_change_are_told_as_they_apply(tmp_path: Path, before: str, now: str, said: str) -> None:
    (tmp_path / "recipe.yaml").write_text(REVERSE_RECIPE.replace("checkpoint_updates: 200", ""))
    old, new = (load(tmp_path / "recipe.yaml", settings.split()) for settings in (before, now))
    data = {"train_data": "a", "dev_set": "b"}
    info = SimpleNamespace(**data)
    checkpoint: Any = SimpleNamespace(path=tmp_path, info=info, recipe=old, is_scored_on=lambda _: True)
    assert [*changes(checkpoint, new, data)] == [f"changed: {each}" for each in said.split("; ") if each]


def test_tensorboard_that_is_not_installed_is_told_in_one_line(train, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    said = train("training.tensorboard=true", code=1)
    assert "error: training.tensorboard: the package tensorboard is not installed\nhint: pip install" in said
    assert "Traceback" not in said
    train("training.updates=1")


def test_a_changed_default_of_the_tokenizer_does_not_end_a_run_on_the_same_data(train, task: Path) -> None:
    train("training.updates=4")
    newest = checkpoints(task / "ckpts")[-1].path
    text = (newest / "recipe.yaml").read_text()
    assert "character_coverage: auto" in text
    (newest / "recipe.yaml").write_text(text.replace("character_coverage: auto", "character_coverage: 0.9995"))
    reseal(newest)
    train("training.updates=6")
    assert checkpoints(task / "ckpts")[-1].step == 6


def scored(folder: Path) -> list[float]:
    return [bundle.dev_score for bundle in checkpoints(folder) if bundle.dev_score is not None]


@pytest.mark.parametrize(("minutes", "total"), [(None, 100_000), (2.0, None)])
def test_updates_are_no_measure_of_a_run_that_minutes_may_end(
    minutes: float | None, total: int | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    totals = []
    monkeypatch.setattr(Console, "progress", lambda self, task, total, *a, **b: totals.append(total) or nullcontext())
    lines = JsonLines(tmp_path / "metrics.jsonl", print)
    with show_progress(Console(), lines, True, 40, Training(minutes=minutes)):
        assert totals == [total]


def test_a_signal_ends_a_rank_that_waits_for_updates_that_nobody_plans(tmp_path: Path) -> None:
    corpus: Any = SimpleNamespace()
    plans = EpochPlans(tmp_path, "data", corpus, [(200, 1.0)], Training(timeout_minutes=10), leads=False)
    run: Any = SimpleNamespace(
        state=RunState(step=3, epoch=1, offset=0),
        learner=SimpleNamespace(corpus=corpus, augmenter=None),
        group=SimpleNamespace(check=lambda: None),
        epochs=plans,
        recipe=SimpleNamespace(training=Training()),
    )
    with pytest.raises(
        Interrupted, match="stopped after update 3 while waiting for rank 0; to resume from the newest "
    ) as error:
        next(Run._updates(run, [signal.SIGTERM]))
    assert error.value.signal_number == signal.SIGTERM
