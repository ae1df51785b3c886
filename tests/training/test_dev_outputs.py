"""A run's dev.jsonl: what is written comes back, damaged or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from reverse_task import BARE, small
from sacrebleu.metrics import CHRF

from nmt.recipe import TASKS
from nmt.training.dev_outputs import DevOutputs, Samples, read_samples
from nmt.training.validation import Validation, f1

SMALL = small("updates: 6, log_updates: 1, checkpoint_updates: 2", *BARE)
SCORED = "data.name=reverse", "data.valid=[{source: valid.a, target: valid.b}]", "training.valid_beam=1"

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
