"""Packed micro-batches: how pairs are dealt to them, and where everything lies."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from padded import padded

from nmt.model.batch import Batch
from nmt.recipe import Model, Training
from nmt.system.launchers import World
from nmt.text.vocabulary import BOS, EOS, PAD
from nmt.training.batches import ALIGNED, SIZES, MicroBatches, Packer, largest_batch, split_update
from nmt.training.distributed import Group

LONGEST = 10
IDS = st.lists(st.integers(4, 999), max_size=LONGEST - 1)
PAIRS = st.lists(st.tuples(IDS, IDS), min_size=1, max_size=40)


def lengths(*pairs: tuple[int, int]) -> list[NDArray[np.int32]]:
    return list(np.array(pairs, np.int32).reshape(-1, 2).T)


def test_an_update_that_fits_is_one_part() -> None:
    pairs = lengths(*[(9, 4), (3, 8)] * 5)
    assert [len(part) for part in split_update(*pairs, 70, packed=True)] == [10]
    assert [len(part) for part in split_update(*pairs, 69, packed=True)] == [5, 5]


@settings(max_examples=100)
@given(pairs=PAIRS, share=st.integers(1, 600))
def test_a_packed_batch_holds_its_pairs_end_to_end(pairs: list[tuple[list[int], list[int]]], share: int) -> None:
    sources, targets = ([list(pair[side]) for pair in pairs] for side in (0, 1))
    batch = padded(sources, targets)
    packed = Packer(share, LONGEST).pack(batch, share)
    assert packed.packing is not None
    assert packed.target_out[0, : len(batch.real)].tolist() == batch.target_out.flatten()[batch.real].tolist()
    assert int(packed.target_out.count_nonzero()) == len(batch.real)
    sides = [(packed.target_in, packed.packing.target, [[BOS, *ids] for ids in targets])]
    sides.append((packed.source, packed.packing.source, [[*ids, EOS] for ids in sources]))
    for row, sequences, expected in sides:
        tokens = sum(map(len, expected))
        assert row.shape == sequences.positions.shape
        assert row.size(1) % 8 == 0  # or kernels are slow
        assert row.size(1) <= tokens + share / SIZES + 2 * ALIGNED + share  # each filler has a token
        bounds = sequences.bounds.tolist()
        assert bounds == sorted(bounds)
        assert (bounds[0], bounds[-1]) == (0, row.size(1))
        found = [row[0, begin:end].tolist() for begin, end in pairwise(bounds)]
        assert found[: len(pairs)] == expected
        filler = [ids for ids in found[len(pairs) :] if ids]
        assert filler
        assert all(symbol == PAD for ids in filler for symbol in ids)
        assert max(map(len, found)) <= sequences.longest <= LONGEST
        places = [place for ids in found for place in range(len(ids))]
        assert sequences.positions[0].tolist() == places
    counts = {len(sequences.bounds) for _, sequences, _ in sides}
    assert len(counts) == 1
    # Targets have keys to attend to, so that no weights are 0 / 0.
    both = [sequences.bounds.diff() > 0 for _, sequences, _ in sides]
    assert torch.equal(*both)


@settings(max_examples=100)
@given(pairs=PAIRS, share=st.integers(1, 600))
def test_groups_are_whole_pairs_and_as_many_as_fit(pairs: list[tuple[list[int], list[int]]], share: int) -> None:
    sources, targets = ([list(pair[side]) for pair in pairs] for side in (0, 1))
    packing = Packer(share, LONGEST, [6, LONGEST]).pack(padded(sources, targets), share).packing
    assert packing is not None
    sides = list(packing)
    longest = max(map(len, [*targets, *sources])) + 1
    firsts, sizes = [], []
    for side in sides:
        assert side.groups is not None
        bounds, segments, tile = side.groups
        assert tile == (6 if longest <= 6 else LONGEST)  # filler needs no larger one
        assert segments.tolist() == [number for number, size in enumerate(side.bounds.diff()) for _ in range(size)]
        assert (bounds[0], bounds[-1]) == (0, side.bounds[-1])
        assert set(bounds.tolist()) <= set(side.bounds.tolist())
        firsts.append(torch.searchsorted(side.bounds, bounds))
        sizes.append(bounds.diff())
        assert sizes[-1].max() <= tile
    assert torch.equal(firsts[0], firsts[-1])
    for at in range(int((sizes[0] > 0).sum()) - 1):
        extents = [
            side.bounds[first[at + 1] + 1] - side.bounds[first[at]] for side, first in zip(sides, firsts, strict=True)
        ]
        assert max(extents) > tile


def test_long_sentences_are_not_grouped() -> None:
    packing = Packer(100, LONGEST, [6]).pack(padded([[5] * 3], [[5] * 6]), 100).packing
    assert packing is not None
    assert packing.source.groups is packing.target.groups is None


def test_a_full_share_takes_no_more_than_the_largest_size() -> None:
    for share in range(1600, 3200, 100):
        targets = [[9] * (LONGEST - 1)] * (share // LONGEST)
        packed = Packer(share, LONGEST).pack(padded(targets, targets), share)
        assert share <= packed.num_cells / 2 <= share + share // LONGEST + SIZES * ALIGNED


def test_a_batch_without_pairs_is_filler_alone() -> None:
    nothing = Batch(torch.tensor([[EOS]]), torch.tensor([[BOS]]), torch.tensor([[PAD]]), torch.empty(0).long())
    packed = Packer(100, LONGEST).pack(nothing, 100)
    assert int(packed.target_out.count_nonzero()) == 0
    assert (packed.target_out == PAD).all()


def test_a_packed_batch_moves_to_a_device_whole() -> None:
    packed = Packer(100, LONGEST, [LONGEST]).pack(padded([[5, 6]], [[7]]), 100)
    there = packed.to(torch.device("meta"))
    assert {there.target_in.device.type, there.packing.target.bounds.device.type} == {"meta"}
    assert there.packing.target.positions.is_meta
    assert there.packing.target.groups.bounds.is_meta
    assert there.packing.target.groups.segments.is_meta
    assert there.packing.source.bounds.is_meta
    assert there.packing.target.longest == packed.packing.target.longest


@pytest.mark.parametrize(("tokens", "shape"), [(2, (1, 2)), (11, (2, 6)), (12, (3, 4)), (100, (10, 10))])
def test_the_largest_batch_has_as_many_pairs_as_can_be_so_short(tokens: int, shape: tuple[int, int]) -> None:
    """The longer sides of the pairs have 3, 3, 6 and 10 tokens."""
    sides = dict(zip(("source_lengths", "target_lengths"), lengths((1, 2), (2, 1), (3, 5), (9, 4)), strict=True))
    corpus: Any = SimpleNamespace(**sides)
    batch = largest_batch(corpus, tokens)
    assert batch.target_in.shape == batch.target_out.shape == shape
    assert batch.source.shape == shape
    assert int(batch.target_out.count_nonzero()) == shape[0] * shape[1]


@pytest.mark.parametrize(("longest", "expected"), [(4, {4}), (5, {4, 8}), (9, {4, 8, None})])
def test_all_ways_of_attention_are_probed(longest: int, expected: set[int | None]) -> None:
    sides = dict(zip(("source_lengths", "target_lengths"), lengths((1, 2), (2, longest - 1)), strict=True))
    corpus: Any = SimpleNamespace(longest=lambda: longest - 1, **sides)
    made = MicroBatches(Model(), corpus, Training(packing=True, batch_tokens=60), Group(World(), timeout_minutes=1))
    made._packer = Packer(60, longest, [4, 8])
    groups = [batch.packing.target.groups for batch in made.probes() if batch.packing]
    assert {each and each.tile for each in groups} == expected


@pytest.mark.parametrize("tiles", [[], [64, 128]], ids=["ungrouped", "grouped"])
def test_there_are_few_shapes(tiles: list[int]) -> None:
    draw, shapes = np.random.default_rng(1), set()
    for mean in np.geomspace(2, 60, 100):  # updates of sentences that are alike in length
        sides = [draw.poisson(mean, int(0.96 * 3000 / (mean + 1))).clip(1, 99) for _ in range(2)]
        batch = padded(*([[9] * length for length in side] for side in sides))
        shapes.add(Packer(3000, 100, tiles).pack(batch, 3000).shape())
    assert len(shapes) <= 24


def test_a_batch_takes_the_place_of_another_of_its_shape() -> None:
    first, second = (
        Packer(200, LONGEST, [LONGEST]).pack(padded(*[[[symbol] * size for size in sizes]] * 2), 200)
        for symbol, sizes in ((5, (3, 8, 2, 6)), (6, (1, 9, 9, 4)))
    )
    assert first.shape() == second.shape() != Packer(200, LONGEST).pack(padded([[5]], [[5]]), 200).shape()
    kept = first.clone()
    kept.copy_(second)
    assert str(kept) == str(second) != str(first)


def test_a_batch_in_one_buffer_is_copied_with_it() -> None:
    first, second = (
        Packer(60, LONGEST, [LONGEST]).pack(padded([[symbol] * 3], [[symbol] * 5]), 60) for symbol in (5, 6)
    )
    joined = first.joined(pinned=False)
    kept, moved = joined.clone(), joined.to(torch.device("cpu"))
    kept.copy_(second.joined(pinned=False))
    assert [str(replace(each, buffer=None)) for each in (joined, moved, kept)] == [*2 * [str(first)], str(second)]
    assert kept.shape() == first.shape()
    assert all(ids.data_ptr() % 16 == kept.buffer.data_ptr() % 16 for ids in (kept.target_in, kept.target_out))
