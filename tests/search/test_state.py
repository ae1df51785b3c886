"""Decoding step by step equals decoding at once, whatever is admitted, replaced or removed on the way."""

import numpy as np
import pytest
import torch
from step_by_step import BEAM, SOURCES, VOCABULARY, Searched, tiny

from nmt.search.state import Removal, with_room


@torch.no_grad()
@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "words"])
@pytest.mark.parametrize("sources", [SOURCES, SOURCES[:1]])  # with padding and without
def test_cached_decoding_equals_decoding_at_once(norm, positions, sources):
    searched = Searched(tiny(norm=norm, positions=positions, max_positions=80))
    searched.admit(sources)
    parents = torch.arange(BEAM).expand(len(sources), -1)
    for _ in range(60):  # beyond several enlargements of the cache
        states = searched.step(parents, torch.randint(1, VOCABULARY, (len(sources), BEAM)))
    torch.testing.assert_close(states, searched.at_once(), rtol=0, atol=1e-10)
    assert searched.past.rows.ages.tolist() == [60] * len(sources)


@torch.no_grad()
def test_hypotheses_keep_their_own_past_while_rows_come_and_go():
    """Random parents at every step; now and then sentences leave and others, longer ones too, take their places."""
    random = torch.Generator().manual_seed(0)
    searched = Searched(tiny())
    searched.admit(SOURCES)
    for step in range(60):
        if step % 7 == 3:
            searched.leave([row for row in range(len(searched.sources)) if (row + step) % 3 == 0])
        if step % 5 == 4 or not searched.sources:
            length = int(torch.randint(1, 40, (), generator=random))
            searched.admit(torch.randint(4, VOCABULARY, (2, length), generator=random))
        shape = (len(searched.sources), BEAM)
        parents = torch.randint(0, BEAM, shape, generator=random)
        states = searched.step(parents, torch.randint(1, VOCABULARY, shape, generator=random))
        torch.testing.assert_close(states, searched.at_once(), rtol=0, atol=1e-10)


@torch.no_grad()
def test_places_that_nobody_descends_from_are_used_again():
    searched = Searched(tiny())
    searched.admit(SOURCES)
    for _ in range(50):  # all hypotheses follow the first, so that two positions of each step are lost at once
        searched.step(torch.zeros((3, BEAM), dtype=torch.int64), torch.full((3, BEAM), 5))
    assert searched.past.memory.extent == 49 + BEAM
    searched.leave([0, 1, 2])
    searched.admit(SOURCES)
    searched.step(torch.zeros((3, BEAM), dtype=torch.int64), torch.full((3, BEAM), 5))
    assert searched.past.memory.extent == BEAM  # what was there before is forgotten


@torch.no_grad()
@pytest.mark.parametrize("first", ["long", "many"])
def test_many_rows_and_long_ones_need_no_room_for_many_long_ones(first):
    searched = Searched(tiny())
    parents, symbols = torch.arange(BEAM), torch.full((BEAM,), 5)

    def run(rows, length, steps):
        searched.admit(torch.full((rows, length), 5))
        for _ in range(steps):
            searched.step(parents.expand(rows, -1), symbols.expand(rows, -1))
        searched.leave(list(range(rows)))

    both = {"long": (2, 300, 100), "many": (60, 10, 3)}
    for name in sorted(both, key=lambda name: name != first) * 2:
        run(*both[name])
    layer = searched.past.memory.caches[0][0]
    buffers = (*layer, searched.past.rows.bias[:, 0, :, None])
    assert max(buffer.size(0) * buffer.size(-2) for buffer in buffers) <= 3 * 2 * 300


# --- rows that leave a batch, and buffers that grow ---------------------------------------------------------


@pytest.mark.parametrize(
    ("leaving", "expected"),
    [([], [0, 1, 2, 3, 4]), ([1], [0, 4, 2, 3]), ([3, 4], [0, 1, 2]), ([0, 3], [4, 1, 2]), ([0, 1, 2, 3, 4], [])],
)
def test_rows_from_the_end_take_the_places_of_those_that_leave(leaving, expected):
    rows = torch.arange(5)
    buffer = torch.arange(5.0)[:, None].expand(-1, 2).contiguous()
    removal = Removal(leaving, 5)
    assert removal.count == len(expected)
    removal.move(buffer)
    assert buffer.shape == (5, 2)
    assert buffer[: removal.count].tolist() == [[row, row] for row in expected]
    assert removal.keep(rows).tolist() == expected
    assert removal.keep(np.arange(5)).tolist() == expected


def test_a_buffer_grows_by_half_keeps_what_it_holds_and_is_nowhere_unset():
    buffer = torch.arange(32.0).view(1, 32)
    assert with_room(buffer, 1, 32) is buffer
    larger = with_room(buffer, 1, 33)
    assert larger.shape == (1, 48)
    assert larger[0, :32].tolist() == list(range(32))
    assert larger[0, 32:].eq(0).all()
    rows = with_room(buffer, 0, 2, fill=-1.0)
    assert rows.shape == (2, 32)
    assert rows[1].eq(-1).all()


def test_a_buffer_that_grows_lets_go_of_what_is_hardly_used_beside():
    buffer = torch.arange(6 * 32.0).view(6, 32)
    assert with_room(buffer, 1, 32, beside=(0, 1)) is buffer
    larger = with_room(buffer, 1, 33, beside=(0, 2))
    assert larger.shape == (2, 48)
    assert larger[:, :32].equal(buffer[:2])
    assert with_room(buffer, 1, 33, beside=(0, 3)).shape == (6, 48)
    assert with_room(buffer, 0, 7, beside=(1, 5)).shape == (9, 16)
