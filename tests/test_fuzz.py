"""The targets of `make fuzz`, each on a few inputs, so that they stay what they are; and what becomes of a finding."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import strategies as st

import model_readers
import readers
from target import Target
from targets import TARGETS
from trials import Board, TimeIsUp, Trial, by_hypothesis, drawn


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_nothing_is_found_and_not_all_inputs_are_refused(target: Target) -> None:
    accepted: list[bool] = []
    examples = 25 if target in (*readers.TARGETS, *model_readers.TARGETS) else 4
    drawn(target, lambda value: accepted.append(target.run(target.read(target.write(value)))), 1, examples)()
    assert any(accepted)


def sums(values: list[int]) -> bool:
    assert sum(values) < 100, "too much"
    return bool(values)


def test_a_finding_is_saved_as_small_as_it_can_be_and_once(tmp_path: Path) -> None:
    target, board = Target(sums, st.lists(st.integers(0, 60)), ()), Board()
    with pytest.raises(TimeIsUp):
        by_hypothesis(Trial(target, board, 0.5, tmp_path / "found"), 1, tmp_path / "corpus")
    (saved,) = (tmp_path / "found").glob("*.input")
    assert sorted(target.read(saved.read_bytes())) == [40, 60]
    assert saved.name.startswith("sums-")
    assert "AssertionError in tests/test_fuzz.py" in saved.with_suffix(".problem").read_text()
    inputs, accepted, began, _ = board.read()
    assert 0 < accepted < inputs
    assert began == 0.0
