"""The largest micro-batch that fits, found by trying few."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from nmt.training.memory import RETRY, largest_fitting, peak_memory


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


@pytest.mark.parametrize("step", [16, 64, 5000])
def test_memory_in_steps_stays_within_the_limit(step: int) -> None:
    device = Device(lambda tokens: 1000 + 7 * (-(-tokens // step)) * step)
    found = largest_fitting(device, 100, 1_000_000, 500_000)
    assert device(found) <= 500_000
    assert found > 0.8 * 500_000 / 7


@pytest.mark.parametrize("there_is", [2_000, 5_000, 40_000, 200_000, 400_000])
def test_memory_that_ends_before_the_limit_is_found_out(there_is: int) -> None:
    """Fragments, or a neighbour on the same device: what fits by the numbers does not fit."""
    device = Device(lambda tokens: 1000 + 7 * tokens, there_is)
    found = largest_fitting(device, 100, 1_000_000, 500_000)
    assert device(found) <= there_is
    assert found >= RETRY * (there_is - 1000) / 7 - 1


def test_memory_that_grows_faster_than_linearly_stays_within_the_limit() -> None:
    device = Device(lambda tokens: tokens**2 / 100)
    found = largest_fitting(device, 100, 1_000_000, 500_000)
    assert device(found) <= 500_000
    assert found >= RETRY * (100 * 500_000) ** 0.5 - 1


@pytest.mark.parametrize("most", [100, 101, 400, 5000])
def test_all_fits(most: int) -> None:
    assert largest_fitting(Device(lambda tokens: tokens), 100, most, 10_000) == most


@pytest.mark.parametrize(("least", "most"), [(100, 1000), (100, 100), (1, 2)])
@pytest.mark.parametrize("there_is", [10, 1_000_000])
def test_the_least_is_tried_at_least_where_nothing_fits(least: int, most: int, there_is: int) -> None:
    assert largest_fitting(Device(lambda tokens: 1000 * tokens, there_is), least, most, 50) == least


def test_memory_that_does_not_grow_is_no_division_by_zero() -> None:
    assert largest_fitting(Device(lambda tokens: 100), 1, 1000, 100) <= 1000


def test_the_memory_of_this_process_is_counted_in_bytes() -> None:
    before = peak_memory(torch.device("cpu"))
    assert before > 50 << 20  # torch alone is more
    block = torch.ones(before // 8)  # fp32: half as much again
    assert peak_memory(torch.device("cpu")) >= before
    del block
