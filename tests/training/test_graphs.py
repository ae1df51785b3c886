"""Recorded micro-batches, with a stand-in for CUDA graphs that computes anew: their bookkeeping, and their end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from reverse_task import BARE, assert_equal_to_the_bit, small
from torch import Tensor

from nmt.model.batch import Batch
from nmt.training.graphs import Graph, Graphs
from nmt.training.trainer import Trainer

SMALL = small("packing: true, device_tokens: 260, updates: 8, log_updates: 4", *BARE)


class Again:
    """Work whose inputs and results are where they were when it was recorded."""

    replays = 0

    def __init__(self, work: Callable[[], tuple[Tensor, ...]], results: tuple[Tensor, Tensor]) -> None:
        self._work, self._results = work, results

    def replay(self) -> None:
        Again.replays += 1
        for kept, result in zip(self._results, self._work(), strict=True):
            kept.copy_(result)


def record(self: Graphs, batch: Batch) -> Graph:
    own, losses = batch.clone(), (torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64))
    replay: Any = Again(lambda: self._work(own, self._scale), losses)
    return Graph(replay, own, losses)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a CPU have graphs."""

    def start(self: Graphs, useful: bool) -> None:
        self.active, self._scale = useful, torch.ones((), dtype=torch.float64)
        self._optimizer.keep_gradients(useful)

    monkeypatch.setattr(Graphs, "start", start)
    monkeypatch.setattr(Graphs, "_record", record)
    monkeypatch.setattr(Again, "replays", 0)


def test_recorded_runs_and_their_resumption_are_those_without(train, task, request) -> None:
    train(out="without")
    request.getfixturevalue("recorded")
    train(out="graphs")
    assert Again.replays > 8  # more than one of an update
    assert_equal_to_the_bit(task / "without", task / "graphs")
    train("training.updates=5", out="parts")
    train(out="parts")
    assert_equal_to_the_bit(task / "without", task / "parts")


GIVEN_UP = "out of memory; from here on without CUDA graphs"


@pytest.mark.parametrize("recording", [True, False])
def test_graphs_are_given_up_where_memory_runs_out(train, task, monkeypatch, inject, request, recording: bool) -> None:
    train(out="without")
    request.getfixturevalue("recorded")

    def full(self: Graphs, batch: Batch) -> Graph:
        self._work(batch, self._scale)  # some of the work is done
        raise torch.OutOfMemoryError("full")

    def losses(number, batch, forward, objective):
        if number == 3:
            raise torch.OutOfMemoryError("full")
        return forward(objective, batch)

    if recording:
        monkeypatch.setattr(Graphs, "_record", full)
    else:
        inject(losses)
    said = train(out="given up")
    assert said.count(GIVEN_UP) == 1
    assert "half the size" not in said
    assert_equal_to_the_bit(task / "without", task / "given up")


@pytest.mark.usefixtures("recorded")
def test_the_probe_counts_activations_of_graphs_beside_others(train, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []

    def probe(self: Trainer, *arguments: Any) -> None:
        start(self, *arguments)
        self._graphs.active = False
        without = self._memory_of(100)
        self._graphs.active = True
        measured.extend([without, self._memory_of(100)])

    start = Trainer.start
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 1000)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 1700)
    monkeypatch.setattr(Trainer, "start", probe)
    train("training.updates=1")
    assert measured[1] - measured[0] == 700
