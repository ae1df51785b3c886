"""The plan of an epoch, micro-batches, and the layout of tensors."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from nmt.console import Console
from nmt.data.batches import Batch, Plan, make_batch, pad_ids, plan_epoch, split_update
from nmt.data.corpus import Corpus
from nmt.data.prepare import directory, prepare
from nmt.recipe import Recipe
from nmt.text.tokenizer import BOS, EOS, PAD

MULTI30K = Path(__file__).parents[3] / "shared" / "data" / "multi30k"

Lengths = tuple[NDArray[np.int32], NDArray[np.int32]]


def arrays(pairs: list[tuple[int, int]]) -> Lengths:
    both = np.array(pairs, dtype=np.int32).reshape(-1, 2)
    return both[:, 0].copy(), both[:, 1].copy()


# lists of few different lengths too, so that there are ties
LENGTHS = st.one_of(
    st.lists(st.tuples(st.integers(0, top), st.integers(0, top)), max_size=120) for top in (2, 12, 60)
).map(arrays)


def drawn(count: int, seed: int = 1) -> Lengths:
    """Lengths as translations have them: the sides resemble one another."""
    random = np.random.default_rng(seed)
    source = random.gamma(4, 4, count)
    target = source * random.normal(1.1, 0.2, count)
    return tuple(np.clip(side, 1, 100).astype(np.int32) for side in (source, target))  # type: ignore[return-value]


def updates(plan: Plan) -> list[list[int]]:
    return [plan.rows(update).tolist() for update in range(len(plan))]


# --- plan ---------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=150)
@given(lengths=LENGTHS, batch_tokens=st.integers(61, 400), seed=st.integers(0, 5), epoch=st.integers(0, 5))
def test_every_pair_is_in_an_epoch_exactly_once(
    lengths: Lengths,
    batch_tokens: int,
    seed: int,
    epoch: int,
) -> None:
    plan = plan_epoch(*lengths, batch_tokens, seed, epoch)
    assert sorted(row for update in updates(plan) for row in update) == list(range(len(lengths[0])))
    assert all(updates(plan))  # none is empty


@settings(deadline=None, max_examples=150)
@given(lengths=LENGTHS, batch_tokens=st.integers(61, 400))
def test_batch_tokens_bounds_each_side_in_real_tokens_with_end_symbols(
    lengths: Lengths,
    batch_tokens: int,
) -> None:
    plan = plan_epoch(*lengths, batch_tokens, 1, 0)
    for rows in updates(plan):
        for side in lengths:
            assert sum(int(side[row]) + 1 for row in rows) <= batch_tokens


@settings(deadline=None, max_examples=150)
@given(lengths=LENGTHS, batch_tokens=st.integers(61, 400))
def test_an_update_takes_as_many_pairs_as_fit(lengths: Lengths, batch_tokens: int) -> None:
    plan = plan_epoch(*lengths, batch_tokens, 1, 0)
    for begin, end in plan.bounds.tolist():
        if end < len(plan.order):
            with_next = plan.order[begin : end + 1]
            assert any(int(side[with_next].sum()) + len(with_next) > batch_tokens for side in lengths)


def test_a_side_of_exactly_batch_tokens_fits() -> None:
    lengths = arrays([(9, 4)] * 10)  # ten tokens with </s>
    assert [len(update) for update in updates(plan_epoch(*lengths, 50, 1, 0))] == [5, 5]
    assert len(plan_epoch(*lengths, 49, 1, 0)) == 3


def test_a_plan_is_a_pure_function_of_seed_and_epoch() -> None:
    lengths = drawn(500)
    plans = [updates(plan_epoch(*lengths, 400, seed, epoch)) for seed in (1, 2) for epoch in (0, 1)]
    np.random.seed(7)
    torch.manual_seed(7)
    assert plans == [updates(plan_epoch(*lengths, 400, seed, epoch)) for seed in (1, 2) for epoch in (0, 1)]
    assert all(plans[i] != plans[j] for i in range(4) for j in range(i))


def test_seeds_and_epochs_do_not_stand_in_for_one_another() -> None:
    lengths = drawn(300)
    assert updates(plan_epoch(*lengths, 400, 1, 2)) != updates(plan_epoch(*lengths, 400, 2, 1))
    assert updates(plan_epoch(*lengths, 400, 1, 23)) != updates(plan_epoch(*lengths, 400, 12, 3))


def test_epochs_differ_in_which_pairs_meet_and_in_the_order_of_updates() -> None:
    equal = arrays([(5, 5)] * 100)
    first, second = (updates(plan_epoch(*equal, 60, 1, epoch)) for epoch in (0, 1))
    assert {frozenset(update) for update in first} != {frozenset(update) for update in second}
    different = arrays([(n, n) for n in range(1, 40)])  # no ties: the same updates, shuffled
    first, second = (updates(plan_epoch(*different, 60, 1, epoch)) for epoch in (0, 1))
    assert first != second
    assert sorted(map(sorted, first)) == sorted(map(sorted, second))


def test_updates_do_not_come_in_order_of_length() -> None:
    lengths = drawn(2000)
    plan = plan_epoch(*lengths, 400, 1, 0)
    means = [float(lengths[0][rows].mean()) for rows in updates(plan)]
    assert abs(np.corrcoef(means, range(len(means)))[0, 1]) < 0.5


def test_no_pairs_make_an_empty_plan() -> None:
    assert len(plan_epoch(*arrays([]), 100, 1, 0)) == 0


# --- micro-batches ------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=150)
@given(lengths=LENGTHS.filter(lambda lengths: len(lengths[0]) > 0), device_tokens=st.integers(1, 400))
def test_micro_batches_cover_an_update_once_and_fit_the_device(lengths: Lengths, device_tokens: int) -> None:
    rows = np.random.default_rng(1).permutation(len(lengths[0]))
    parts = split_update(rows, *lengths, device_tokens)
    assert np.concatenate(parts).tolist() == rows.tolist()
    for part in parts:
        width = max(int(side[part].max()) + 1 for side in lengths)
        assert len(part) * width <= device_tokens or len(part) == 1


def test_an_update_that_fits_is_not_cut() -> None:
    rows, lengths = np.arange(10), arrays([(9, 4)] * 10)
    assert [len(part) for part in split_update(rows, *lengths, 100)] == [10]
    assert [len(part) for part in split_update(rows, *lengths, 99)] == [5, 5]


def test_micro_batches_of_an_update_are_of_equal_size() -> None:
    lengths = drawn(400)
    plan = plan_epoch(*lengths, 2000, 1, 0)
    for update in range(len(plan)):
        sizes = [len(part) for part in split_update(plan.rows(update), *lengths, 300)]
        assert max(sizes) - min(sizes) <= 1


# --- tensors ------------------------------------------------------------------------------------------------


class Rows:
    """What `make_batch` asks of a corpus."""

    def __init__(self, *pairs: tuple[list[int], list[int]]) -> None:
        self.pairs = [(np.array(source, np.int32), np.array(target, np.int32)) for source, target in pairs]

    def source(self, row: int) -> NDArray[np.int32]:
        return self.pairs[row][0]

    def target(self, row: int) -> NDArray[np.int32]:
        return self.pairs[row][1]


def batch_of(rows: list[int], *pairs: tuple[list[int], list[int]]) -> Batch:
    return make_batch(cast(Corpus, Rows(*pairs)), np.array(rows))


def test_a_batch_has_the_symbols_where_they_belong() -> None:
    batch = batch_of([2, 0], ([11, 12, 13], [21]), ([9], [9]), ([14], [22, 23]))
    assert (PAD, BOS, EOS) == (0, 2, 3)
    assert batch.source.tolist() == [[14, EOS, PAD, PAD], [11, 12, 13, EOS]]
    assert batch.target_in.tolist() == [[BOS, 22, 23], [BOS, 21, PAD]]
    assert batch.target_out.tolist() == [[22, 23, EOS], [21, EOS, PAD]]
    assert batch.num_tokens == 5
    assert {tensor.dtype for tensor in (batch.source, batch.target_in, batch.target_out)} == {torch.int64}


def test_an_empty_sentence_is_its_symbols() -> None:
    batch = batch_of([0], ([], []))
    assert (batch.source.tolist(), batch.target_in.tolist(), batch.target_out.tolist()) == (
        [[EOS]],
        [[BOS]],
        [[EOS]],
    )
    assert batch.num_tokens == 1


IDS = st.lists(st.integers(4, 999), max_size=9)


@settings(deadline=None, max_examples=100)
@given(pairs=st.lists(st.tuples(IDS, IDS), min_size=1, max_size=6))
def test_a_batch_holds_its_pairs_and_nothing_else(pairs: list[tuple[list[int], list[int]]]) -> None:
    batch = batch_of(list(range(len(pairs))), *pairs)
    assert batch.num_tokens == int((batch.target_out != PAD).sum()) == int((batch.target_in != PAD).sum())
    for row, (source, target) in enumerate(pairs):
        assert [i for i in batch.source[row].tolist() if i != PAD] == [*source, EOS]
        assert [i for i in batch.target_in[row].tolist() if i != PAD] == [BOS, *target]
        assert [i for i in batch.target_out[row].tolist() if i != PAD] == [*target, EOS]
    assert batch.source.shape == (len(pairs), max(len(source) for source, _ in pairs) + 1)
    assert batch.target_in.shape == batch.target_out.shape


def test_rows_are_padded_at_their_end() -> None:
    assert pad_ids([[5, 6], [7]]).tolist() == [[5, 6], [7, PAD]]
    assert pad_ids([[5, 6], []], before=8).tolist() == [[8, 5, 6], [8, PAD, PAD]]
    assert pad_ids([[5, 6], []], before=8, after=9).tolist() == [[8, 5, 6, 9], [8, 9, PAD, PAD]]


def test_a_batch_moves_to_a_device_whole() -> None:
    batch = batch_of([0], ([11], [21])).to(torch.device("meta"))
    assert {t.device.type for t in (batch.source, batch.target_in, batch.target_out)} == {"meta"}
    assert batch.num_tokens == 2


# --- real text ----------------------------------------------------------------------------------------------


def test_real_text_is_padded_by_less_than_a_twentieth(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not (MULTI30K / "train.en.gz").exists():
        pytest.skip(f"the Multi30k corpus is not at {MULTI30K}")
    monkeypatch.chdir(tmp_path)
    data = {"name": "x", "source": "en", "target": "de", "root": str(MULTI30K)}
    data |= {"train": [{"source": "train.en.gz", "target": "train.de.gz"}]}
    recipe = Recipe.model_validate({"name": "x", "data": data, "tokenizer": {"vocab_size": 8000}})
    prepare(recipe, Console(quiet=True), 2)
    corpus = Corpus(directory(recipe) / "train.arrow")
    lengths = corpus.source_lengths, corpus.target_lengths
    plan = plan_epoch(*lengths, 4096, 1, 0)
    cells = padding = tokens = 0
    for update in range(len(plan)):
        for part in split_update(plan.rows(update), *lengths, 4096):
            batch = make_batch(corpus, part)
            for side in (batch.source, batch.target_out):
                cells += side.numel()
                padding += int((side == PAD).sum())
            tokens += batch.num_tokens
    assert tokens == int(lengths[1].sum()) + len(corpus)
    assert padding / cells < 0.05
