"""How processes on a CPU share its work and memory."""

from __future__ import annotations

from nmt.training.forked import owners


def test_parameters_are_shared_evenly_and_always_alike() -> None:
    assert owners([5, 9, 4, 1, 1], 2) == [1, 0, 1, 0, 1]
    assert owners([3, 3], 4) == [0, 1]
