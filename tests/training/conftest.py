"""Fixtures of the tests of training."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from reverse_task import sets
from torch import Tensor

from nmt.model.batch import Batch
from nmt.training.loss import Objective

Losses = tuple[Tensor, Tensor]
Forward = Callable[[Objective, Batch], Losses]


@pytest.fixture
def train(nmt: Callable[..., Any], task: Path, request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Trains the reverse task in this process, as `train("training.updates=5", out="ckpts")`; returns its stderr.

    The settings that the tests of a module share are its `SMALL`.
    """

    def run(*settings: str, out: str = "ckpts", code: int = 0) -> str:
        arguments = (*request.module.SMALL, *sets(*settings))
        done = nmt("train", "recipe.yaml", *arguments, "--out", out, "--device", "cpu")
        assert done.code == code, done.err
        return str(done.err)

    return run


@pytest.fixture
def inject(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int, Batch, Forward, Objective], Losses]], None]:
    """Puts something in the place of the objective: called with the number of the call, the batch and the original."""
    original = Objective.forward

    def patch(replacement: Callable[[int, Batch, Forward, Objective], Losses]) -> None:
        calls = [0]

        def forward(self: Objective, batch: Batch) -> Losses:
            calls[0] += 1
            return replacement(calls[0], batch, original, self)

        monkeypatch.setattr(Objective, "forward", forward)

    return patch


@pytest.fixture
def fresh_graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forgets graphs that were compiled, and what compilation was told."""
    monkeypatch.setattr(logging.getLogger("torch._dynamo.convert_frame"), "filters", [])
    torch.compiler.reset()
    torch._dynamo.pgo.reset_code_state()  # which sizes have varied, by line of code
    dynamo, inductor = torch._dynamo.config, torch._inductor.config
    kept = {"recompile_limit": dynamo.recompile_limit, "optimize_ddp": dynamo.optimize_ddp}
    shapes = torch.fx.experimental._config.patch(use_duck_shape=True)  # type: ignore[attr-defined]
    options = {"non_strict_mode": False, "split_size": None, "allow_multi_stages": False}
    norms = {f"triton.mix_order_reduction_{name}": value for name, value in options.items()}
    with dynamo.patch(kept), inductor.patch(norms), shapes:
        yield
    torch.compiler.reset()
