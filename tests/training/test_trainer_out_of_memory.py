"""Gradients accumulated over micro-batches: memory that runs out, and the size that is kept."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from reverse_task import BARE, assert_equal_to_the_bit, position, small
from torch import Tensor

from nmt.system.errors import GroupError
from nmt.system.launchers import World
from nmt.training.distributed import Group
from nmt.training.trainer import Trainer

SMALL = small("updates: 8, log_updates: 4", *BARE)


def out_of_memory(above: int):
    def losses(number, batch, forward, objective):
        if batch.source.numel() > above and len(batch.source) > 1:
            raise torch.OutOfMemoryError("full")
        return forward(objective, batch)

    return losses


HALVED = "out of memory; from here on micro-batches have half the size"


def test_micro_batches_are_halved_where_memory_runs_out(train, inject, task) -> None:
    train("training.device_tokens=125", out="small")
    inject(out_of_memory(above=150))
    said = train("training.device_tokens=500", out="halved")
    assert [line for line in said.splitlines() if HALVED in line] == [
        f"update 1: {HALVED}, 250 tokens",
        f"update 1: {HALVED}, 125 tokens",
    ]
    assert_equal_to_the_bit(task / "small", task / "halved")
    assert position(task / "halved")["device_tokens"] == 125


def test_a_probe_that_runs_out_of_memory_leaves_no_gradients(train, inject, task, monkeypatch) -> None:
    train("training.device_tokens=125", out="plain")

    def losses(number, batch, forward, objective):
        if number == 1:  # the backward pass gets through the decoder

            def fail(gradient: Tensor) -> None:
                handle.remove()
                raise torch.OutOfMemoryError("full")

            handle = objective.model.encoder[0].attention.qkv.weight.register_hook(fail)
        return forward(objective, batch)

    def probe(self: Trainer) -> None:
        with pytest.raises(torch.OutOfMemoryError):
            self._memory_of(100)
        choose(self)

    choose = Trainer._choose_size
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(Trainer, "_choose_size", probe)
    inject(losses)
    train("training.device_tokens=125", out="probed")
    assert_equal_to_the_bit(task / "plain", task / "probed")


def test_a_probe_counts_gradients_beside_the_activations_of_a_later_micro_batch(train, inject, monkeypatch) -> None:
    """On a GPU, the peak is that of allocated memory; here, of gradients there are while activations are, in bytes."""
    peak, measured = 0, []

    def losses(number, batch, forward, objective):
        nonlocal peak
        there = sum(parameter.grad.nbytes for parameter in objective.parameters() if parameter.grad is not None)
        peak = max(peak, there)
        return forward(objective, batch)

    def probe(self: Trainer) -> None:
        gradients = sum(parameter.nbytes for parameter in self.model.parameters())
        measured.extend([self._memory_of(100), gradients])
        choose(self)

    choose = Trainer._choose_size
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: peak)
    monkeypatch.setattr(Trainer, "_choose_size", probe)
    inject(losses)
    train("training.updates=1")
    assert measured[0] == measured[1]


def test_memory_may_run_out_in_the_backward_pass(train, inject, task) -> None:
    train("training.device_tokens=125", out="small")

    class Full(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, loss: Tensor) -> Tensor:
            return loss.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            raise torch.OutOfMemoryError("full")

    for number in (1, 2):  # of a micro-batch that is added up, and of the last one

        def losses(call, batch, forward, objective, number=number):
            loss, nll = forward(objective, batch)
            return (Full.apply(loss) if call == number else loss), nll

        inject(losses)
        assert train("training.device_tokens=250", out=f"halved{number}").count(HALVED) == 1
        assert_equal_to_the_bit(task / "small", task / f"halved{number}")


def test_a_halved_size_is_kept_when_the_run_is_resumed(train, inject, task) -> None:
    inject(out_of_memory(above=150))
    train(out="whole")
    train("training.updates=5", out="parts")
    sizes = []

    def losses(number, batch, forward, objective):
        sizes.append(batch.source.numel())
        return forward(objective, batch)

    inject(losses)
    assert HALVED not in train(out="parts")
    assert max(sizes) <= position(task / "parts")["device_tokens"] == 128
    assert_equal_to_the_bit(task / "whole", task / "parts")


def test_one_pair_that_is_too_much_is_told(train, inject, task) -> None:
    def losses(number, batch, forward, objective):
        raise torch.OutOfMemoryError("full")

    inject(losses)
    said = train("training.device_tokens=4", code=1)
    assert "error: cpu: out of memory at update 1 with one sentence at a time" in said
    assert said.count(HALVED) == 2


def test_a_gpu_that_fails_is_told_in_a_line(train, inject, task) -> None:
    def losses(number, batch, forward, objective):
        raise torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered\nmore of it")

    inject(losses)
    *_, error, hint = train(code=1).splitlines()
    assert error == "error: CUDA error: uncorrectable ECC error encountered"
    assert hint.startswith("hint: run this again; ")


def test_a_rank_that_is_lost_before_the_second_update_breaks_the_group() -> None:
    def lost() -> bool:
        raise RuntimeError("[pair.cc:537] Connection reset by peer")

    group = Group(World(1, 2), 1)
    group._store = dist.HashStore()
    group._parallel = SimpleNamespace(reducer=SimpleNamespace(_rebuild_buckets=lost))  # type: ignore[assignment]
    told = "rank 1 lost the others while agreeing on the order of gradients: Connection reset"
    with pytest.raises(GroupError, match=told) as error:
        group.agree_on_order()
    assert error.value.retry
