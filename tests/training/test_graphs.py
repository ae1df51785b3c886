"""Recorded micro-batches, with a stand-in for CUDA graphs that computes anew: their bookkeeping, and their end."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from from_outside import look_at_recordings
from padded import padded
from reverse_task import BARE, assert_equal_to_the_bit, small

from nmt.compute.gpu import GPU
from nmt.compute.recorded import Recorded
from nmt.data.corpus import Corpus
from nmt.model.transformer import Transformer, computed_by
from nmt.recipe import Model
from nmt.training.batches import Packer
from nmt.training.graphs import Graphs
from nmt.training.loss import Objective
from nmt.training.start import keep_expressible
from nmt.training.trainer import Trainer

SMALL = small("packing: true, device_tokens: 260, updates: 8, log_updates: 4", *BARE)


class Again:
    """Work that is done anew where a graph would repeat it."""

    replays = 0

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work

    def replay(self) -> None:
        Again.replays += 1
        self._work()


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a CPU have graphs."""

    def make(self: Graphs, *given: Any) -> None:
        original(self, *given)
        *_, useful = given
        self._recorded.active = useful
        self._optimizer.keep_gradients(useful)

    original = Graphs.__init__
    monkeypatch.setattr(Graphs, "__init__", make)
    monkeypatch.setattr(Recorded, "_record", lambda self, work: Again(work))
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


@pytest.mark.parametrize("recording", [True, False])
def test_a_run_goes_on_without_graphs_where_it_cannot_have_them(
    train, task, monkeypatch, inject, request, recording: bool
) -> None:
    train(out="without")
    request.getfixturevalue("recorded")

    def refuse(self: Recorded, work: Callable[[], object]) -> None:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nCompile with")

    def losses(number, batch, forward, objective):
        if number == 3:
            raise torch.OutOfMemoryError("full")
        return forward(objective, batch)

    if recording:
        monkeypatch.setattr(Recorded, "_record", refuse)
    else:
        inject(losses)
    said = train(out="given up")
    assert said.count("continuing without CUDA graphs") == 1
    reason = "CUDA error: operation not permitted when stream is capturing" if recording else "out of memory"
    assert f": continuing without CUDA graphs: {reason}\n" in said
    assert "half the size" not in said
    assert_equal_to_the_bit(task / "without", task / "given up")


# --- from outside -------------------------------------------------------------------------------------------

MANY = {"positions": "fairseq", "output_bias": True, "dropout": 0.1}


@pytest.mark.parametrize(
    ("changes", "languages"),
    [(MANY, "targets"), (MANY, "sources"), ({"positions": "words", "norm": "pre"}, ""), ({"positions": "learned"}, "")],
    ids=["m2m", "opus", "words", "learned"],
)
def test_a_recorded_micro_batch_takes_nothing_from_the_host_or_from_what_is_not_named(
    changes: dict[str, Any], languages: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a device that computes nothing: a copy, a number that is read, or a tensor of others would be seen."""
    longest, starts = 1030, [index % 3 == 1 for index in range(60)]  # longer than the tables of a new model
    options: dict[str, Any] = {
        "layers": 1,
        "d_model": 16,
        "d_ff": 16,
        "heads": 2,
        "dropout": 0.0,
        "max_positions": longest,
    }
    model = Transformer(Model(**options | changes), 60, 60, (starts, starts)).to("meta")
    objective = Objective(computed_by(model, GPU()), 0.1)
    if languages:
        objective.limit([40, 50, 60] * 20, symbols_first=languages == "targets")
        keep_expressible(objective.model)
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # which the device lacks
    optimizer = SimpleNamespace(keep_gradients=bool, clear=dict)
    work = partial(Trainer._add_gradients, SimpleNamespace(_forward=objective))
    graphs = Graphs(work, objective, optimizer, torch.device("meta"), print, useful=True)
    graphs._recorded.active = True
    batch = padded([[5] * (longest - 1), [6, 7]], [[8, 9], [5] * (longest - 1)])
    batch = Packer(3000, longest).pack(batch, 3000).joined(pinned=False).to(torch.device("meta"))
    objective.model.reserve(longest)
    work(batch, 1.0)  # moves the tables of words to the device, and makes gradients
    found = look_at_recordings(monkeypatch, lambda: [batch.buffer for batch in graphs._inputs.values()])
    graphs(batch, 1.0)
    assert [look.taken for look in found] == [[]]
    assert found[0].draws == ("dropout" in changes)


def test_tables_are_as_long_as_the_longest_sentence_before_anything_is_recorded(train, monkeypatch) -> None:
    lengths = []

    def probe(self: Trainer) -> None:
        choose(self)
        lengths.extend(len(table) for table in self.objective.tables())

    choose = Trainer._choose_size
    monkeypatch.setattr(Corpus, "longest", lambda self: 1500)
    monkeypatch.setattr(Trainer, "_choose_size", probe)
    train("training.updates=1")
    assert lengths
    assert min(lengths) > 1500


# --- memory -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("recorded")
def test_the_probe_counts_activations_of_graphs_beside_others(train, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []

    def probe(self: Trainer) -> None:
        choose(self)
        self._graphs._recorded.active = False
        without = self._memory_of(100)
        self._graphs._recorded.active = True
        measured.extend([without, self._memory_of(100)])

    choose = Trainer._choose_size
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 1000)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 1700)
    monkeypatch.setattr(Trainer, "_choose_size", probe)
    train("training.updates=1")
    assert measured[1] - measured[0] == 700
