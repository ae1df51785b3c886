"""The largest micro-batch that fits, found by trying few."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nmt.recipe import Training
from nmt.system.device import RETRY, largest_fitting
from nmt.system.errors import UserError
from nmt.training import start
from nmt.training.start import check_memory


class Device:
    """Memory as a function of tokens, and the sizes that were tried."""

    def __init__(self, taken: Callable[[int], float], there_is: float = float("inf")) -> None:
        self._taken, self._there_is = taken, there_is
        self.tried: list[int] = []

    def __call__(self, tokens: int) -> int:
        self.tried.append(tokens)
        if self._taken(tokens) > self._there_is:
            raise torch.OutOfMemoryError("full")
        return int(self._taken(tokens))


def test_memory_that_grows_linearly_is_used_up() -> None:
    device = Device(lambda tokens: 1000 + 7 * tokens)
    found = largest_fitting(device, 100, 1_000_000, 500_000)
    assert found == (500_000 - 1000) // 7
    assert len(device.tried) == 3  # two small ones, and the proof


@pytest.mark.parametrize(
    ("taken", "enough"),
    [
        *(
            (lambda tokens, step=step: 1000 + 7 * -(-tokens // step) * step, 0.8 * 500_000 / 7)
            for step in (16, 64, 5000)
        ),
        (lambda tokens: tokens**2 / 100, RETRY * (100 * 500_000) ** 0.5 - 1),
    ],
)
def test_memory_that_grows_in_steps_or_faster_stays_within_the_limit(
    taken: Callable[[int], float], enough: float
) -> None:
    found = largest_fitting(Device(taken), 100, 1_000_000, 500_000)
    assert taken(found) <= 500_000
    assert found >= enough


@pytest.mark.parametrize(("least", "most"), [(100, 1000), (100, 100), (1, 2)])
@pytest.mark.parametrize("there_is", [10, 1_000_000])
def test_the_least_is_tried_at_least_where_nothing_fits(least: int, most: int, there_is: int) -> None:
    assert largest_fitting(Device(lambda tokens: 1000 * tokens, there_is), least, most, 50) == least


@pytest.mark.parametrize(
    ("precision", "ranks", "needed"), [("fp32", 1, 16 * 2**20), ("fp64", 1, 32 * 2**20), ("auto", 2, 32 * 2**20)]
)
def test_a_model_whose_training_state_does_not_fit_is_refused(
    monkeypatch: pytest.MonkeyPatch, precision: str, ranks: int, needed: int
) -> None:
    settings, cpu = Training.model_validate({"precision": precision}), torch.device("cpu")
    model: Any = torch.nn.Linear(2**10, 2**10, bias=False, device="meta")
    for there in (needed, None):  # which nobody knows
        monkeypatch.setattr(start, "available_memory", lambda device, there=there: there)
        check_memory(model, settings, cpu, ranks)
    monkeypatch.setattr(start, "available_memory", lambda device: needed - 1)
    with pytest.raises(UserError, match=r"1,048,576 parameters need 0\.0 GiB .* 0\.0 GiB are available"):
        check_memory(model, settings, cpu, ranks)


def test_a_run_that_cannot_fit_says_what_it_needs_and_what_there_is(nmt: Callable[..., Any], task: Path) -> None:
    done = nmt("train", "recipe.yaml", "--device", "cpu", "--set", "model.d_model=100000")
    assert (done.code, done.out) == (1, b"")
    assert re.fullmatch(
        r"error: model: its [\d,]+ parameters need [\d,]+\.\d GiB .*, but [\d,]+\.\d GiB are available .*\n"
        r"hint: lower model\.d_model.*\n",
        done.err,
    ), done.err
    assert list((task / "ckpts").glob("step-*")) == []
