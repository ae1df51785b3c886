"""A run's directory: what it may hold, which checkpoint a run goes on from, and its dev.jsonl."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
from reverse_task import BARE, assert_equal_to_the_bit, metrics, names, position, reseal, small
from sacrebleu.metrics import CHRF

from nmt.checkpoint.reading import checkpoints, read_tensors
from nmt.checkpoint.writing import add_info
from nmt.compute import choice
from nmt.recipe import CPU_DEVICE_TOKENS, TASKS
from nmt.training.run_files import DevOutputs, Samples, about_run, read_samples
from nmt.training.validation import Validation, f1

SMALL = small("updates: 6, log_updates: 1, checkpoint_updates: 2", *BARE)
SCORED = "data.name=reverse", "data.valid=[{source: valid.a, target: valid.b}]", "training.valid_beam=1"


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


def test_another_test_set_does_not_concern_a_run_and_another_dev_set_begins_its_scores_anew(train, task: Path) -> None:
    """The dev score so far is out of reach, so a run that compares with it ends by training.patience."""
    data = ("data.train=[{source: test.a, target: test.b}]", "data.valid=[{source: valid.a, target: valid.b}]")
    train("training.updates=2", *data)
    first = checkpoints(task / "ckpts")[-1]
    add_info(first.path, {"scores": {"chrf": 100.0, "bleu": 100.0, "perplexity": 1.0}, "without_improvement": 1})
    more = (*data, "training.patience=1", "training.updates=4")
    assert "no better dev chrF2 for 1 checkpoints" in train(*more, "data.test=[{source: valid.a, target: valid.b}]")
    (task / "valid.a").write_text((task / "valid.a").read_text().replace("a", "b", 1))
    assert "changed: data.valid; scores of earlier checkpoints are not compared with those from now on" in train(*more)
    dev = [row for row in metrics(task / "ckpts") if "valid_bleu" in row]
    assert [(row["step"], row.get("new_dev_set")) for row in dev] == [(2, True), (4, None)]
    scores, *_ = (bundle.scores["bleu"] for bundle in checkpoints(task / "ckpts"))
    assert scores < 100.0
    for name in ("test.a", "test.b"):
        with (task / name).open("a") as file:
            file.write("a\n")
    assert "error: data: the run in ckpts was started with other training files" in train(*more, code=1)


def test_a_run_from_a_bundle_goes_on_without_naming_it_again(train, task: Path) -> None:
    train("training.updates=2", out="first")
    train("training.updates=2", "training.init_from=first")
    assert "resuming at update 2:" in train("training.updates=4")


# --- dev.jsonl and run.json -------------------------------------------------------------------------------

SOURCES, REFERENCES = ["a b", "c", "d e f"], ["b a", "", "<script>ü\u2028"]


def lengths(references: Any, outputs: Any) -> list[float]:
    return [len(output) + 0.123 for output in outputs]


def begun(path: Path, step: int = 0, sources: list[str] = SOURCES) -> Samples:
    samples = Samples(path.parent, sources, REFERENCES, lengths, print)
    samples.begin(step)
    return samples


def test_sentences_and_outputs_come_back_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "dev.jsonl"
    samples = begun(path)
    example = samples.add(3, ["x", "left out: its reference is blank", "<i>\u2028ß"])
    samples.add(6, ["", "", "y"])
    assert path.read_bytes().count(b"\n") == 3
    found = read_samples(path, list)
    outputs = [
        DevOutputs(step=3, outputs=["x", "<i>\u2028ß"], scores=[1.12, 5.12]),
        DevOutputs(step=6, outputs=["", "y"], scores=[0.12, 1.12]),
    ]
    assert found == (["a b", "d e f"], ["b a", REFERENCES[2]], outputs)
    assert (example.source, example.output) in (("a b", "x"), ("d e f", "<i>\u2028ß"))


def test_a_resumed_run_writes_lines_again(tmp_path: Path) -> None:
    path = tmp_path / "dev.jsonl"
    samples = begun(path)
    for step in (3, 6, 9):
        samples.add(step, ["x", "y", "z"])
    whole = path.read_bytes()
    for cut in (0, 1, 10, 100):  # a killed process may have cut the last line
        path.write_bytes(whole[: len(whole) - cut])
        again = begun(path, 3)
        for step in (6, 9):
            again.add(step, ["x", "y", "z"])
        assert path.read_bytes() == whole
    path.write_bytes(whole[:20])  # or even the first
    assert read_samples(path, list) == ([], [], [])
    begun(path, 9).add(12, ["x", "y", "z"])
    assert [each.step for each in read_samples(path, list)[2]] == [12]


def test_other_sentences_begin_a_new_file(tmp_path: Path) -> None:
    path = tmp_path / "dev.jsonl"
    begun(path).add(3, ["x", "y", "z"])
    begun(path, 3, sources=["A", "B", "C"]).add(6, ["x", "y", "z"])
    sources, _, outputs = read_samples(path, list)
    assert (sources, [each.step for each in outputs]) == (["A", "C"], [6])


@pytest.mark.parametrize(
    "line",
    [b"", b"[]", b'{"step": 4, cut}', b"\xff\xfe", b'{"step": 4, "outputs": {}}',
     b'{"step": 4, "outputs": ["x", "y"], "scores": [1, "2"]}', b'{"step": 4, "outputs": ["x"], "scores": [1]}',
     b'{"step": 4, "outputs": null, "scores": null}'],
)  # fmt: skip
def test_damaged_lines_are_left_out(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "dev.jsonl"
    samples = begun(path)
    samples.add(3, ["x", "y", "z"])
    with path.open("ab") as file:
        file.write(line + b"\n")
    samples.add(6, ["x", "y", "z"])
    assert [each.step for each in read_samples(path, list)[2]] == [3, 6]


def test_each_translation_has_its_chrf_and_each_tree_its_f1(train: Any, task: Path) -> None:
    train("training.checkpoint_updates=6", *SCORED)
    sources, references, [outputs] = read_samples(task / "ckpts/dev.jsonl", list)
    assert (task / "valid.a").read_text().splitlines() == sources
    assert (task / "valid.b").read_text().splitlines() == references
    pairs = zip(outputs.outputs, references, strict=True)
    assert outputs.scores == [round(CHRF().sentence_score(output, [reference]).score, 2) for output, reference in pairs]
    trees = ["(TOP (S (NP (XX a) (XX b)) (XX c)))", "", "(TOP (S (XX a) (XX b) (XX c)))"]
    gold = ["(TOP (S (NP (DT a) (NN b)) (VB c)))"] * 3
    parser = Validation.__new__(Validation)
    parser._task = TASKS["parse"]
    assert parser.each(gold, trees) == [100.0, 0.0, pytest.approx(200 / 3)]
    assert f1(gold[:1], trees[2:]).score == parser.each(gold, trees)[2]


def test_a_command_that_is_not_utf_8_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["nmt", "train", "--out", "caf\udce9"])
    about = about_run(1, None, {}, "../caf\udce9")
    assert "caf" in json.dumps(about, ensure_ascii=False).encode().decode()
