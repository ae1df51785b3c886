"""Micro-batches, the layout of tensors, and making them ahead of time."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from strategies import PAIRS, Lengths, arrays

from nmt.data.corpus import Corpus
from nmt.model.batch import Batch
from nmt.model.transformer import Transformer
from nmt.recipe import Model
from nmt.text.vocabulary import BOS, EOS, PAD
from nmt.training.batches import make_batch, prefetched, split_mixed, split_update
from nmt.training.loss import Objective


@settings(max_examples=300)
@given(lengths=PAIRS.filter(bool).map(arrays), device_tokens=st.integers(1, 400), devices=st.sampled_from([1, 2, 3, 8]))
def test_micro_batches_cover_an_update_fit_and_are_as_many_for_each_rank(
    lengths: Lengths, device_tokens: int, devices: int
) -> None:
    for is_packed in (False, True):
        parts = split_update(*lengths, device_tokens, devices, is_packed)
        found = np.concatenate(parts).tolist()
        assert (sorted(found) if is_packed else found) == list(range(len(lengths[0])))
        assert len(parts) % devices == 0
        sizes = [len(part) for part in parts]
        assert max(sizes) - min(sizes) <= 1
        for part in (part for part in parts if len(part) > 1):
            tokens = [side[part].astype(int) + 1 for side in lengths]
            assert max(int(side.sum() if is_packed else len(part) * side.max()) for side in tokens) <= device_tokens
    mixed = split_mixed(*lengths, device_tokens, devices)
    assert sorted(np.concatenate(mixed).tolist()) == list(range(len(lengths[0])))
    assert len(mixed) % devices == 0
    for part in mixed:
        widest = max((int(side[part].max(initial=0)) for side in lengths), default=0) + 1
        assert len(part) <= 1 or len(part) * widest <= device_tokens


def test_long_pairs_among_short_ones_are_micro_batches_of_their_own() -> None:
    lengths = arrays([(9, 9), (59, 50), *[(9, 8)] * 40, (50, 59)])
    parts = split_mixed(*lengths, 4096, 2)
    assert [part.tolist() for part in parts[2:]] == [[1], [42]]
    assert sorted(map(len, parts)) == [1, 1, 20, 21]


def test_a_device_without_pairs_has_an_empty_part() -> None:
    parts = split_update(*arrays([(3, 3)] * 2), 100, 5)
    assert [part.tolist() for part in parts] == [[0], [1], [], [], []]


class Pairs:
    """What `make_batch` asks of a corpus."""

    def __init__(self, *pairs: tuple[list[int], list[int]]) -> None:
        self.pairs = pairs

    def sources(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        return padded([self.pairs[row][0] for row in rows])

    def targets(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        return padded([self.pairs[row][1] for row in rows])


def padded(rows: list[list[int]]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    width = max(map(len, rows))
    ids = np.array([row + [0] * (width - len(row)) for row in rows], np.int64).reshape(len(rows), width)
    return ids, np.array([len(row) for row in rows], np.int32)


def batch_of(rows: list[int], *pairs: tuple[list[int], list[int]]) -> Batch:
    return make_batch(cast(Corpus, Pairs(*pairs)), np.array(rows, np.int64))


IDS = st.lists(st.integers(4, 999), max_size=9)


@settings(max_examples=100)
@given(pairs=st.lists(st.tuples(IDS, IDS), min_size=1, max_size=6))
def test_a_batch_holds_its_pairs_and_nothing_else(pairs: list[tuple[list[int], list[int]]]) -> None:
    batch = batch_of(list(range(len(pairs))), *pairs)
    assert len(batch.real) == int((batch.target_out != PAD).sum()) == int((batch.target_in != PAD).sum())
    for row, (source, target) in enumerate(pairs):
        assert [i for i in batch.source[row].tolist() if i != PAD] == [*source, EOS]
        assert [i for i in batch.target_in[row].tolist() if i != PAD] == [BOS, *target]
        assert [i for i in batch.target_out[row].tolist() if i != PAD] == [*target, EOS]
    assert batch.source.shape == (len(pairs), max(len(source) for source, _ in pairs) + 1)
    assert batch.target_in.shape == batch.target_out.shape


def test_a_batch_moves_to_a_device_whole() -> None:
    batch = batch_of([0], ([11], [21])).to(torch.device("meta"))
    assert {t.device.type for t in (batch.source, batch.target_in, batch.target_out)} == {"meta"}
    assert len(batch.real) == 2


def test_a_batch_of_no_pairs_costs_nothing_and_changes_nothing() -> None:
    batch = batch_of([], ([11], [21]))
    assert len(batch.real) == 0
    torch.manual_seed(1)
    model = Transformer(Model(layers=1, d_model=8, d_ff=12, heads=2, dropout=0.5), 30, 30)
    loss, nll = Objective(model, 0.1)(batch)
    assert loss.item() == nll.item() == 0.0
    loss.backward()
    # all take part, else other devices would wait for theirs
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


# --- ahead of time ------------------------------------------------------------------------------------------


def test_items_come_in_order_and_once() -> None:
    assert list(prefetched(iter(range(100)), 3)) == list(range(100))
    assert list(prefetched(iter(()), 3)) == []
    assert list(prefetched(iter([None, 0, False]), 1)) == [None, 0, False]


def test_items_are_made_up_to_so_many_ahead() -> None:
    made, wanted = [], {count: threading.Event() for count in range(1, 30)}

    def items() -> Iterator[int]:
        for number in range(1, 30):
            made.append(number)
            wanted[number].set()
            yield number

    feed = prefetched(items(), 4)
    for number in range(1, 20):
        assert next(feed) == number
        assert wanted[number + 4].wait(60)  # made without being asked for
        assert len(made) <= number + 4
    feed.close()


def test_an_error_comes_where_its_item_would_have_come() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ValueError("no second")

    feed = prefetched(items(), 4)
    assert next(feed) == 1
    with pytest.raises(ValueError, match="no second"):
        next(feed)


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("prefetch")}


@pytest.mark.parametrize("how", ["closed", "forgotten", "failed"])
def test_its_thread_ends_with_it(how: str) -> None:
    def items() -> Iterator[int]:
        yield from range(5)
        if how == "failed":
            raise ValueError("no sixth")
        while how in ("closed", "forgotten"):
            yield 0

    before = threads()  # of a test that failed, say
    feed = prefetched(items(), 2)
    assert next(feed) == 0
    [thread] = threads() - before
    if how == "closed":
        feed.close()
    elif how == "forgotten":
        del feed
        gc.collect()
    else:
        with pytest.raises(ValueError, match="no sixth"):
            list(feed)
    thread.join(60)
    assert not thread.is_alive()
