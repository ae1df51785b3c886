"""Rows that leave a batch, and buffers that grow."""

import numpy as np
import pytest
import torch

from nmt.model.cache import Removal, with_room


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
