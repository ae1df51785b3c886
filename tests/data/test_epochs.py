"""The plan of an epoch: which pairs make which update, how sets are mixed, and the plan on disk."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import LENGTHS, Lengths, arrays

from nmt.data import epochs
from nmt.data.corpus import Corpus
from nmt.data.epochs import EpochPlan, EpochPlans, plan_epoch
from nmt.recipe import Training
from nmt.system import processes
from nmt.system.errors import UserError


def drawn(count: int, seed: int = 1) -> Lengths:
    """Lengths as translations have them: the sides resemble one another."""
    random = np.random.default_rng(seed)
    source = random.gamma(4, 4, count)
    target = source * random.normal(1.1, 0.2, count)
    return tuple(np.clip(side, 1, 100).astype(np.int32) for side in (source, target))  # type: ignore[return-value]


def updates(plan: EpochPlan) -> list[list[int]]:
    return [plan.rows(update).tolist() for update in range(len(plan))]


def seen(plan: EpochPlan) -> Counter[int]:
    """How often an epoch has each row."""
    return Counter(itertools.chain.from_iterable(updates(plan)))


# --- every pair once ----------------------------------------------------------------------------------------


def test_a_plan_is_a_pure_function_of_seed_and_epoch() -> None:
    lengths = drawn(500)
    plans = [updates(plan_epoch(*lengths, 400, seed, epoch)) for seed in (1, 2) for epoch in (0, 1)]
    np.random.seed(7)
    torch.manual_seed(7)
    assert plans == [updates(plan_epoch(*lengths, 400, seed, epoch)) for seed in (1, 2) for epoch in (0, 1)]
    assert all(plans[i] != plans[j] for i in range(4) for j in range(i))


# --- blocks -------------------------------------------------------------------------------------------------


@settings(max_examples=300)
@given(
    lengths=LENGTHS,
    batch_tokens=st.integers(61, 400),
    seed=st.integers(0, 5),
    epoch=st.integers(0, 5),
    block=st.integers(1, 80) | st.just(epochs.SLICE),
)
def test_updates_have_every_pair_once_and_are_cut_as_by_a_plain_loop(
    lengths: Lengths, batch_tokens: int, seed: int, epoch: int, block: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(epochs, "SLICE", block)
        plan = plan_epoch(*lengths, batch_tokens, seed, epoch)
    assert sorted(row for update in updates(plan) for row in update) == list(range(len(lengths[0])))
    cuts, sums = [0], [0, 0]
    for place, row in enumerate(plan.order.tolist()):
        tokens = [int(side[row]) + 1 for side in lengths]  # batch_tokens limits each side in tokens with `</s>`
        if any(done + more > batch_tokens for done, more in zip(sums, tokens, strict=True)):
            cuts.append(place)
            sums = [0, 0]
        sums = [done + more for done, more in zip(sums, tokens, strict=True)]
    if len(plan.order):
        cuts.append(len(plan.order))
    assert sorted(plan.bounds.tolist()) == [list(bounds) for bounds in itertools.pairwise(cuts)]


def test_blocks_sort_as_one_sort_does(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = drawn(1000)
    monkeypatch.setattr(epochs, "SLICE", 64)
    order = plan_epoch(*lengths, 400, 1, 0).order
    assert sorted(order.tolist()) == list(range(1000))
    longer = np.maximum(*lengths)[order].astype(int)
    difference = (lengths[0] - lengths[1])[order].astype(int)
    up_and_down = np.where(longer % 2 == 0, difference, -difference)
    keys = list(zip(longer.tolist(), up_and_down.tolist(), strict=True))
    assert keys == sorted(keys)


@pytest.mark.timeout(60)  # it may go round for ever
def test_an_update_may_fill_a_block_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = arrays([(0, 0)] * 200)  # a token a pair: batch_tokens pairs an update
    monkeypatch.setattr(epochs, "SLICE", 1)
    assert [len(update) for update in updates(plan_epoch(*empty, 50, 1, 0))] == [50] * 4


def test_lengths_may_leave_a_single_bit_for_chance() -> None:
    lengths = np.array([5 * 2**28, 1], np.int32), np.array([1, 1], np.int32)
    assert sorted(itertools.chain(*updates(plan_epoch(*lengths, 2**31, 1, 0)))) == [0, 1]


# --- mixtures -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2])
def test_weights_are_how_often_an_epoch_sees_each_pair(seed: int) -> None:
    lengths = drawn(70)
    mixture = [(30, 0.5), (21, 1.0), (19, 2.5)]
    for epoch in range(3):
        counts = seen(plan_epoch(*lengths, 200, seed, epoch, mixture))
        assert sorted(counts[row] for row in range(30)) == [0] * 15 + [1] * 15
        assert [counts[row] for row in range(30, 51)] == [1] * 21
        assert sorted(counts[row] for row in range(51, 70)) == [2] * 9 + [3] * 10  # round(9.5) is 10


def test_the_fraction_is_fresh_in_every_epoch_and_the_same_when_made_again() -> None:
    lengths, mixture = drawn(100), [(60, 0.5), (40, 1.5)]
    plans = [plan_epoch(*lengths, 200, 1, epoch, mixture) for epoch in range(8)]
    again = [plan_epoch(*lengths, 200, 1, epoch, mixture) for epoch in range(8)]
    assert [updates(plan) for plan in plans] == [updates(plan) for plan in again]
    chosen = [frozenset(row for row in seen(plan) if row < 60) for plan in plans]
    twice = [frozenset(row for row, times in seen(plan).items() if times == 2) for plan in plans]
    assert len(set(chosen)) == len(set(twice)) == 8
    # each pair with a chance of 1/2 an epoch: not the same few again and again
    assert len(frozenset.union(*chosen)) > 50
    assert not frozenset.intersection(*chosen)


def test_weights_that_leave_nothing_are_refused() -> None:
    with pytest.raises(UserError, match="weight"):
        plan_epoch(*drawn(100), 200, 1, 0, [(100, 0.001)])


# --- on disk ------------------------------------------------------------------------------------------------


def plans(out: Path, leads: bool = True, minutes: float = 1, check: Callable[[], None] = lambda: None) -> EpochPlans:
    """The plans of 200 pairs, each of them once."""
    source, target = drawn(200)
    corpus = cast(Corpus, SimpleNamespace(source_lengths=source, target_lengths=target))
    settings = Training(batch_tokens=300, timeout_minutes=minutes)
    return EpochPlans(out, "data", corpus, [(200, 1.0)], settings, leads, check)


def test_a_plan_is_made_once_and_mapped_from_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = plan_epoch(*drawn(200), 300, 1, 0)
    first = plans(tmp_path).plan(0)
    monkeypatch.setattr(epochs, "plan_epoch", lambda *given: pytest.fail("made again"))
    for plan in (first, plans(tmp_path).plan(0), plans(tmp_path, leads=False).plan(0)):
        assert updates(plan) == updates(made)
        assert isinstance(plan.order, np.memmap)
        assert not plan.order.flags.writeable
        assert plan.order.dtype == np.int32
        assert plan.rows(0).dtype == np.int64


def test_a_rank_waits_for_the_plan_that_another_is_making(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting, got = threading.Event(), list[EpochPlan]()
    monkeypatch.setattr(processes.time, "sleep", lambda seconds: waiting.set())
    thread = threading.Thread(target=lambda: got.append(plans(tmp_path, leads=False).plan(0)))
    thread.start()
    assert waiting.wait(60)
    assert not got
    made = plans(tmp_path).plan(0)
    thread.join(60)
    assert updates(got[0]) == updates(made)


def test_a_plan_that_does_not_come_is_given_up_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"/order\.npy: another process did not write it within 0 s") as error:
        plans(tmp_path, leads=False, minutes=1e-9).plan(0)
    assert error.value.hint == "give an --out that all hosts share, or raise training.timeout_minutes"
    assert "\n" not in error.value.message


def test_waiting_for_a_plan_ends_where_it_makes_no_sense_any_more(tmp_path: Path) -> None:
    def gone() -> None:
        raise UserError("the others are gone", "call them back")

    with pytest.raises(UserError, match="the others are gone"):
        plans(tmp_path, leads=False, check=gone).plan(0)


def test_a_plan_is_read_without_unpickling(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, ...]:
            return (pytest.fail, ("unpickled",))

    plans(tmp_path).plan(0)
    (order,) = tmp_path.glob(".epoch-0-*/order.npy")
    np.save(order, np.array([Trap()], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"pickle|Python objects"):
        plans(tmp_path).plan(0)
