"""The targets of `make fuzz`, each on a few inputs, so that they stay what they are; and what becomes of a finding."""

from __future__ import annotations

import os
import signal
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import measuring
import model_readers
import pytest
import readers
import trials
from hypothesis import strategies as st
from target import Target
from targets import TARGETS
from trials import Board, TimeIsUp, Trial, by_hypothesis, drawn

QUICK = (*readers.TARGETS, *model_readers.TARGETS)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_nothing_is_found_and_not_all_inputs_are_refused(target: Target) -> None:
    accepted: list[bool] = []
    examples = 24 if target in QUICK else 8
    drawn(target, lambda value: accepted.append(target.run(target.read(target.write(value)))), 1, examples)()
    assert any(accepted)


def sums(values: list[int]) -> bool:
    assert sum(values) < 100, "too much"
    return bool(values)


def test_a_finding_is_saved_as_small_as_it_can_be_and_once(tmp_path: Path) -> None:
    target, board = Target(sums, st.lists(st.integers(0, 60)), ()), Board()
    with pytest.raises(TimeIsUp):
        by_hypothesis(Trial(target, board, 2.0, tmp_path / "found"), 1, tmp_path / "corpus")
    (saved,) = (tmp_path / "found").glob("*.input")
    assert sorted(target.read(saved.read_bytes())) == [40, 60]
    assert saved.name.startswith("sums-")
    assert "AssertionError in tests/test_fuzz.py" in saved.with_suffix(".problem").read_text()
    inputs, accepted, began, _ = board.read()
    assert 0 < accepted < inputs
    assert began == 0.0


def takes_memory(value: int) -> bool:
    return len(bytes(1 << 31)) == value


def takes_time(value: int) -> bool:
    while True:
        value += 1


def dies(value: int) -> bool:
    os.kill(os.getpid(), signal.SIGKILL)
    return True


@pytest.mark.parametrize(
    ("run", "problem"), [(takes_memory, "MemoryError"), (takes_time, "TooSlow"), (dies, "the process ends with -9")]
)
def test_memory_time_and_the_end_of_a_process_are_findings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[[int], bool], problem: str
) -> None:
    monkeypatch.setattr(trials, "PATIENCE", 0.05)
    given = Namespace(seconds=0.001, seed=1, engine="hypothesis", scratch=tmp_path, findings=tmp_path / "found")
    figures = measuring.try_target(Target(run, st.just(7), ()), given)
    (finding,) = figures["findings"]
    assert problem in finding["problem"]
    assert Path(finding["file"]).read_bytes() == b"7"
