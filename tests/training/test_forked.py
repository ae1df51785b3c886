"""How many processes train on a CPU, and how they share its work and memory."""

from __future__ import annotations

import sys

import pytest

from nmt.recipe import Training
from nmt.training import forked
from nmt.training.forked import owners, ranks_on_cpu


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has forks that are safe")
@pytest.mark.parametrize(
    ("threads", "batch_tokens", "ranks"),
    [(1, 4096, 1), (2, 4096, 2), (8, 2048, 4), (64, 25_000, 16), (2, 999, 1), (2, 1000, 2), (4, 1, 1)],
)
def test_each_process_on_a_cpu_has_a_thread_and_enough_tokens(threads: int, batch_tokens: int, ranks: int) -> None:
    assert ranks_on_cpu(threads, Training(batch_tokens=batch_tokens)) == ranks


def test_a_compiled_training_and_other_systems_have_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ranks_on_cpu(8, Training(compile=True)) == 1
    monkeypatch.setattr(forked.sys, "platform", "darwin")
    assert ranks_on_cpu(8, Training()) == 1


def test_parameters_are_shared_evenly_and_always_alike() -> None:
    assert owners([5, 9, 4, 1, 1], 2) == [1, 0, 1, 0, 1]
    assert owners([3, 3], 4) == [0, 1]
