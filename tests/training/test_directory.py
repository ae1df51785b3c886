"""A run's directory: what it may hold, and which checkpoint a run goes on from."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
from reverse_task import BARE, assert_equal_to_the_bit, metrics, names, position, reseal, small

from nmt.checkpoint.reading import checkpoints, read_tensors
from nmt.checkpoint.writing import add_info
from nmt.compute import choice
from nmt.recipe import CPU_DEVICE_TOKENS
from nmt.training.directory import about_run

SMALL = small("updates: 6, log_updates: 1, checkpoint_updates: 2", *BARE)


# --- damaged checkpoints ------------------------------------------------------------------------------------


def empty(checkpoint: Path) -> None:
    shutil.rmtree(checkpoint)
    checkpoint.mkdir()


def cut(name: str) -> Callable[[Path], None]:
    def damage(checkpoint: Path) -> None:
        content = (checkpoint / name).read_bytes()
        (checkpoint / name).write_bytes(content[: len(content) // 2])

    return damage


def lose(name: str) -> Callable[[Path], None]:
    return lambda checkpoint: (checkpoint / name).unlink()


def test_a_run_resumes_from_the_newest_intact_checkpoint_keeping_damaged(train, task: Path) -> None:
    train(out="whole")
    train()
    damages = [empty, cut("model.safetensors"), lose("training.safetensors")]
    for number, damage in enumerate(damages, 1):
        damage(task / "ckpts/step-00000006")
        left = names(task / "ckpts/step-00000006")
        said = train()
        aside = "damaged-step-00000006" + (f"-{number}" if number > 1 else "")
        assert "damaged checkpoint: ckpts/step-00000006" in said
        assert f"; kept as ckpts/{aside}\n" in said
        assert "resuming at update 4:" in said
        assert names(task / "ckpts" / aside) == left
        assert_equal_to_the_bit(task / "whole", task / "ckpts")
        logged = [[row["step"] for row in metrics(task / of) if "loss" in row] for of in ("whole", "ckpts")]
        assert logged[0] == logged[1]  # each update stands there once
    assert [bundle.step for bundle in checkpoints(task / "ckpts")] == [2, 4, 6]


def test_a_run_without_a_whole_checkpoint_says_so_and_changes_nothing(train, task: Path) -> None:
    train("training.updates=4")
    for step in (2, 4):
        cut("model.safetensors")(task / f"ckpts/step-{step:08d}")
    before = sorted((task / "ckpts").rglob("*"))
    said = train(code=1)
    assert "ckpts: all checkpoints are damaged; the newest: ckpts/step-00000004/model.safetensors: damaged" in said
    assert "hint: copy a whole checkpoint into ckpts, or start a new run: --out OTHER" in said
    assert sorted((task / "ckpts").rglob("*")) == before


def test_a_checkpoint_of_a_later_version_is_not_taken_for_damaged(train, task: Path) -> None:
    train("training.updates=4")
    path = task / "ckpts/step-00000004"
    add_info(path, {"format": 99})
    said = train(code=1)
    assert "step-00000004: has bundle format 99" in said
    assert "hint: install a newer version of nmt" in said
    assert path.exists()


def test_moments_that_do_not_fit_their_weights_are_named(train, task: Path) -> None:
    train("training.updates=2")
    path = task / "ckpts/step-00000002/training.safetensors"
    flat = {name: tensor.flatten() for name, tensor in read_tensors(path).items()}
    safetensors.torch.save_file(flat, path)
    reseal(path.parent)
    said = train(code=1)
    assert re.search(
        "^error: ckpts/step-00000002: its training state is not complete: .* has another shape", said, re.M
    )


def test_a_checkpoint_that_cannot_be_read_now_is_not_taken_for_damaged(
    train, task: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train("training.updates=4")
    path, read = task / "ckpts/step-00000004/bundle.json", Path.read_bytes

    def fail(self: Path) -> bytes:
        if self.absolute() == path:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        return read(self)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", fail)
        said = train(code=1)
    assert f"step-00000004/bundle.json: cannot be read: {os.strerror(errno.ENOMEM)}\nhint: run this again" in said
    assert "resuming at update 4:" in train()


# --- what else a directory holds ----------------------------------------------------------------------------


def test_a_file_where_a_checkpoint_goes_is_refused_before_any_update(train, task: Path) -> None:
    train("training.updates=2")
    (task / "ckpts/step-00000004").write_text("precious")
    said = train(code=1)
    assert "error: ckpts/step-00000004: has the name of a checkpoint and is not a directory\nhint: " in said
    assert "update 3" not in said
    assert (task / "ckpts/step-00000004").read_text() == "precious"


def test_a_directory_of_other_things_is_refused_before_anything_is_written(train, task: Path) -> None:
    shutil.rmtree(task / "data")
    for content in ("thesis.tex", "averaged/bundle.json", "bundle.json"):
        (task / "mine" / content).parent.mkdir(parents=True)
        (task / "mine" / content).write_text("precious")
        said = train(out="mine", code=1)
        assert (
            said == "error: --out mine: holds other files and no run\nhint: name another directory, or an empty one\n"
        )
        assert [path.name for path in (task / "mine").rglob("*") if path.is_file()] == [Path(content).name]
        assert not (task / "data").exists()
        shutil.rmtree(task / "mine")


def test_a_directory_that_is_empty_or_held_a_run_is_trained_into(train, task: Path) -> None:
    (task / "empty").mkdir()
    train(out="empty")
    for path in (task / "empty").glob("step-*"):
        shutil.rmtree(path)
    assert "starting" in train(out="empty")
    (task / "disk/lost+found").mkdir(parents=True)
    assert "starting" in train(out="disk")


def test_what_killed_processes_left_is_cleared_when_a_run_is_opened(train, task: Path) -> None:
    train("training.updates=2")
    before = names(task / "ckpts")
    for left in (".step-00000004@0123456789ab-7.tmp", "..epoch-0-abc@0123456789ab-7.tmp", ".step-00000002@gone.tmp"):
        (task / "ckpts" / left).mkdir()
    (task / "ckpts/step-00000002/.bundle.json@0123456789ab-7.tmp").touch()
    train("training.updates=2")
    assert names(task / "ckpts") == before
    assert not list((task / "ckpts/step-00000002").glob(".*"))


@pytest.mark.parametrize(
    ("place", "size"), [("1 × CPU", 77), ("2 × CPU", CPU_DEVICE_TOKENS), ("1 × NVIDIA H200", CPU_DEVICE_TOKENS)]
)
def test_the_size_of_micro_batches_is_kept_on_the_same_devices_alone(
    train, task: Path, place: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "fp32_multiplier", lambda: "mkl")
    train("training.updates=2")
    assert position(task / "ckpts")["place"] == "1 × CPU"
    path = task / "ckpts/step-00000002/training.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"place": place, "device_tokens": 77}))
    reseal(path.parent)
    train("training.updates=3")
    assert (position(task / "ckpts")["place"], position(task / "ckpts")["device_tokens"]) == ("1 × CPU", size)


def test_either_library_resumes_to_the_bit_and_a_change_is_said(
    train, task: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "kernels", lambda: None)
    monkeypatch.setattr(choice, "fp32_multiplier", lambda: "mkl")
    train(out="whole")
    train("training.updates=4")
    assert "changed: devices" not in train()
    assert_equal_to_the_bit(task / "whole", task / "ckpts")
    monkeypatch.setattr(choice, "fp32_multiplier", lambda: choice.NMT)
    said = train("training.updates=8")
    assert "changed: devices from 1 × CPU to 1 × CPU, C kernels; sums are rounded differently" in said


def test_a_command_that_is_not_utf_8_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["nmt", "train", "--out", "caf\udce9"])
    about = about_run(1, None, {}, "../caf\udce9")
    assert "caf" in json.dumps(about, ensure_ascii=False).encode().decode()
