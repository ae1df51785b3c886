"""The C kernels that compute states against plain formulas of PyTorch, in each library that this processor can run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from ctypes import CDLL
from typing import NamedTuple

import pytest
import torch
from compiled import assert_close, numbers, pointer
from torch import Tensor
from torch.nn import functional as F

from nmt.compute.header import constant
from nmt.compute.native import gomp_parallel
from nmt.model.operations import ACTIVATIONS

EPSILON = 1e-6
WIDTHS = [1, 7, 8, 16, 17, 33, 1023]
PLACES_AT_ONCE = constant("PLACES_AT_ONCE")
LARGE = 1e30  # in places that must not count


# --- residual and layer normalisation -----------------------------------------------------------------------


class Operands(NamedTuple):
    """Of nmt_add_norm; the mean of x is far from 0."""

    x: Tensor
    z: Tensor
    bias: Tensor | None
    weight: Tensor
    shift: Tensor

    @classmethod
    def of(cls, rows: int, width: int, bias: bool) -> Operands:
        x, z = 3 * numbers(rows, width) + 5, numbers(rows, width, seed=1)
        vectors = [numbers(width, seed=seed) for seed in (2, 3, 4)]
        return cls(x, z, vectors[0] if bias else None, *vectors[1:])

    def expected(self) -> tuple[Tensor, Tensor]:
        total = self.x + self.z if self.bias is None else self.x + self.z + self.bias
        return total, F.layer_norm(total, self.weight.shape, self.weight, self.shift, EPSILON)

    def add_norm(self, functions: CDLL, total: Tensor | None, norm: Tensor) -> None:
        shape, epsilon = self.x.shape, EPSILON
        functions.nmt_add_norm(*shape, *map(pointer, self), epsilon, pointer(total), pointer(norm))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
def test_residual_and_normalisation(functions: CDLL, width: int, bias: bool) -> None:
    for rows in (0, 1, 2, 5):
        given = Operands.of(rows, width, bias)
        before = [x.clone() for x in given if x is not None]
        total, norm = given.expected()
        found = torch.full((2, rows, width), math.nan)
        given.add_norm(functions, *found)
        assert_close(found[0], total)
        assert_close(found[1], norm)
        alone = torch.full((rows, width), math.nan)
        given.add_norm(functions, None, alone)
        assert torch.equal(alone, found[1])
        after = [x for x in given if x is not None]
        assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))


@pytest.mark.parametrize(("total_over", "norm_over"), [("x", "z"), ("z", "x"), (None, "x"), (None, "z")])
def test_results_may_be_written_over_operands(functions: CDLL, total_over: str | None, norm_over: str) -> None:
    given = Operands.of(3, 37, True)
    total, norm = given.expected()
    given.add_norm(functions, total_over and getattr(given, total_over), getattr(given, norm_over))
    assert_close(getattr(given, norm_over), norm)
    if total_over:
        assert_close(getattr(given, total_over), total)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_a_number_stays_in_its_row(functions: CDLL, value: float) -> None:
    given = Operands.of(3, 37, False)
    given.x[1, 35] = value
    norm = torch.empty(3, 37)
    given.add_norm(functions, None, norm)
    assert norm[1].isnan().all()
    assert norm[[0, 2]].isfinite().all()


# --- products -----------------------------------------------------------------------------------------------


def product(functions: CDLL, x: Tensor, weight: Tensor, bias: Tensor | None, threads: int = 1) -> Tensor:
    (rows, width), outputs = x.shape, len(weight)
    packed = torch.full((-(-outputs // 16) * 16, width), math.nan)
    functions.nmt_pack(outputs, width, pointer(weight), pointer(packed))
    out = torch.full((rows + 1, outputs), math.nan)  # its last row must not be written
    parallel = gomp_parallel() if threads > 1 else None
    functions.nmt_product(rows, width, outputs, *map(pointer, (x, packed, bias, out)), parallel, threads)
    assert out[rows].isnan().all()
    return out[:rows]


@pytest.mark.parametrize("outputs", [1, 8, 15, 16, 24, 33, 47, 48, 49, 100, 200])
@pytest.mark.parametrize("width", [1, 16, 37])
def test_products_of_any_shape(functions: CDLL, width: int, outputs: int) -> None:
    weight, bias = numbers(outputs, width), numbers(outputs, seed=1)
    for rows in (0, 1, 2, 3, 5, 8, 15, 33):
        x = numbers(rows, width, seed=rows)
        for given in (None, bias):
            assert_close(
                product(functions, x, weight, given),
                F.linear(x.double(), weight.double(), None if given is None else given.double()),
                width**0.5,
            )


def test_a_row_of_a_product_depends_on_no_other_row_and_on_no_thread(functions: CDLL) -> None:
    x, weight, bias = numbers(45, 300), numbers(500, 300, seed=1), numbers(500, seed=2)
    expected = torch.cat([product(functions, row[None], weight, bias) for row in x])
    for threads in (1, 2, 5):
        assert torch.equal(product(functions, x, weight, bias, threads), expected)
    x[7] = math.nan
    assert torch.equal(product(functions, x, weight, bias).isfinite().all(1), torch.arange(45).ne(7))


# --- which hypotheses are followed --------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "beam"), [(1, 1), (3, 2), (2, 5), (4, 21)])
def test_hypotheses_follow_others_in_the_first_free_places(functions: CDLL, rows: int, beam: int) -> None:
    for extent in (0, 1, 7, 16, 40):
        random = torch.Generator().manual_seed(extent)
        shape = (rows, beam, extent + beam + 3)
        bias = torch.full(shape, -1e9)
        bias[:, :, :extent][numbers(rows, beam, extent, seed=extent) > 0.8] = 0.0
        parents = torch.randint(0, beam, (rows, beam), generator=random)
        expected, places = bias.clone(), torch.empty((rows, beam), dtype=torch.int64)
        for row in range(rows):
            expected[row] = bias[row, parents[row]]
            places[row] = expected[row].ne(0.0).all(0).nonzero()[:beam, 0]
            expected[row, torch.arange(beam), places[row]] = 0.0
        before, newest = torch.empty(beam, max(extent, 1)), torch.full((rows, beam), -7)
        seen = functions.nmt_extend(
            *(rows, beam, extent, parents.data_ptr(), bias.data_ptr(), *bias.stride()[:2]),
            *(before.data_ptr(), newest.data_ptr()),
        )
        assert torch.equal(newest, places)
        assert torch.equal(bias, expected)
        assert seen == int(expected.eq(0.0).any(0).any(0).nonzero().max()) + 1


# --- which places are seen ----------------------------------------------------------------------------------


@pytest.mark.parametrize("extent", [1, 3, 4, 5, 16, 17, 70])
def test_seen_places(functions: CDLL, extent: int) -> None:
    for seed in range(5):
        rows, beam, room = 3, 1 + seed, -(-extent // PLACES_AT_ONCE) * PLACES_AT_ONCE
        buffer = torch.full((rows, beam + 2, extent + 5), -1e9)  # has more room than is used
        bias = buffer[:, :beam, :extent]
        bias[numbers(*bias.shape, seed=seed) > 0.4 * (seed - 2)] = 0.0  # from nearly nothing to nearly all
        places, counts = torch.full((rows, beam, room), -7, dtype=torch.int32), torch.zeros(rows, beam).int()
        functions.nmt_seen_places(
            *(rows, beam, extent, bias.data_ptr(), bias.stride(0), bias.stride(1)),
            *(room, places.data_ptr(), counts.data_ptr()),
        )
        for found, count, of in zip(places.flatten(0, 1), counts.flatten(), bias.flatten(0, 1), strict=True):
            seen = of.eq(0.0).nonzero()[:, 0]
            filled = -(-len(seen) // PLACES_AT_ONCE) * PLACES_AT_ONCE
            assert count == len(seen)
            assert torch.equal(found[:count].long(), seen)
            assert found[count:filled].eq(0).all()


# --- attention ----------------------------------------------------------------------------------------------


def states(rows: int, heads: int, places: int, width: int, by_place: bool, seed: int) -> Tensor:
    """Keys or values (rows, heads, places, width) in a buffer with more room, of which the rest must not count.

    Those of a head are side by side, or those `by_place`.
    """
    shape = (rows + 1, places + 9, heads, width) if by_place else (rows + 1, heads, places + 9, width)
    buffer = torch.full(shape, LARGE)
    whole = buffer.transpose(1, 2) if by_place else buffer
    whole[:rows, :, :places] = numbers(rows, heads, places, width, seed=seed)
    return whole


def buffer(x: Tensor) -> tuple[int, ...]:
    return (x.data_ptr(), *x.stride()[:3])


def attention(query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """softmax(query keys * scale) values of (heads, d_k), (heads, places, d_k) and (heads, places, d_v), in fp64."""
    weights = (torch.einsum("hd,hpd->hp", query.double(), keys.double()) * scale).softmax(-1)
    return torch.einsum("hp,hpd->hd", weights, values.double()).flatten()


def hypotheses(rows: int, beam: int, seed: int) -> Tensor:
    """Some of them, in order."""
    return (numbers(rows * beam, seed=seed) > 0).nonzero()[:, 0]


SHAPES = [  # heads, key width, value width
    *((1, 7, 7), (3, 16, 16), (4, 1, 1), (4, 64, 64), (8, 33, 33), (1, 128, 128), (4, 8, 8), (8, 32, 32)),
    *((2, 3, 5), (4, 16, 32), (4, 64, 16), (8, 33, 7), (3, 1, 64)),
]
COUNTS = [1, 2, 3, 4, 5, 8, 15, 16, 17, 33, 70]  # of places


def attend_to_places(
    functions: CDLL,
    projected: Tensor,
    which: Tensor | None,
    newest: Tensor,
    seen: list[list[list[int]]],
    keys: Tensor,
    values: Tensor,
    scale: float,
) -> Tensor:
    """The outputs of hypotheses, of which each sees places `seen`."""
    heads, key_width, value_width = keys.size(1), keys.size(3), values.size(3)
    room = -(-max(len(places) for row in seen for places in row) // PLACES_AT_ONCE) * PLACES_AT_ONCE
    padded = torch.tensor([[places + [0] * (room - len(places)) for places in row] for row in seen]).int()
    counts = torch.tensor([[len(places) for places in row] for row in seen]).int()
    out = torch.full((len(projected), heads * value_width), math.nan)
    functions.nmt_attend_to_places(
        *(len(projected), pointer(which), newest.size(1), heads, key_width, value_width, projected.data_ptr()),
        *(newest.data_ptr(), *buffer(keys), *buffer(values), padded.data_ptr(), counts.data_ptr()),
        *(room, scale, out.data_ptr()),
    )
    return out


@pytest.mark.parametrize("by_place", [False, True], ids=["heads", "places"])
@pytest.mark.parametrize(("heads", "key_width", "value_width"), SHAPES)
def test_attention_to_places(functions: CDLL, heads: int, key_width: int, value_width: int, by_place: bool) -> None:
    rows, beam = 2, 3
    for index, count in enumerate(COUNTS):
        extent = count + beam
        keys = states(rows, heads, extent, key_width, by_place, seed=index)
        values = states(rows, heads, extent, value_width, by_place, seed=100 + index)
        order = [torch.randperm(extent, generator=torch.Generator().manual_seed(row)).tolist() for row in range(rows)]
        newest = torch.tensor([places[:beam] for places in order])
        # Each hypothesis sees its newest place and `count` - 1 others at most, but not the newest ones of its mates.
        seen = [[sorted([of[k], *of[beam : beam + count - 1 - k]]) for k in range(beam)] for of in order]
        which = hypotheses(rows, beam, index) if index % 2 else None
        chosen = list(range(rows * beam)) if which is None else which.tolist()
        projected = numbers(len(chosen), heads * (2 * key_width + value_width), seed=200 + index)
        for row, of in enumerate(order):
            unseen = sorted(set(range(extent)) - {place for places in seen[row] for place in places} | set(of[:beam]))
            keys[row, :, unseen], values[row, :, unseen] = LARGE, LARGE
        after = keys.clone(), values.clone()
        widths = (heads * key_width, heads * key_width, heads * value_width)
        queries, new_keys, new_values = (
            each.unflatten(1, (heads, -1)) for each in projected.split_with_sizes(widths, dim=1)
        )
        for at, hypothesis in enumerate(chosen):
            row, k = divmod(hypothesis, beam)
            after[0][row, :, newest[row, k]], after[1][row, :, newest[row, k]] = new_keys[at], new_values[at]

        scale = key_width**-0.5
        out = attend_to_places(functions, projected, which, newest, seen, keys, values, scale)
        assert torch.equal(keys, after[0])
        assert torch.equal(values, after[1])
        for query, found, hypothesis in zip(queries, out, chosen, strict=True):
            row, k = divmod(hypothesis, beam)
            own = seen[row][k]
            assert_close(found, attention(query, keys[row][:, own], values[row][:, own], scale))


def attend_to_rows(
    functions: CDLL,
    queries: Tensor,
    which: Tensor | None,
    beam: int,
    lengths: Sequence[int],
    keys: Tensor,
    values: Tensor,
    scale: float,
) -> Tensor:
    """The outputs of queries (m, heads, key width)."""
    out, counts = torch.full((len(queries), values.size(1) * values.size(3)), math.nan), torch.tensor(lengths)
    functions.nmt_attend_to_rows(
        *(len(queries), pointer(which), beam, keys.size(1), keys.size(3), values.size(3), queries.data_ptr()),
        *(queries.size(1) * queries.size(2), *buffer(keys), *buffer(values), counts.data_ptr(), scale, out.data_ptr()),
    )
    return out


@pytest.mark.parametrize("by_place", [False, True], ids=["heads", "places"])
@pytest.mark.parametrize(("heads", "key_width", "value_width"), SHAPES)
def test_attention_to_rows(functions: CDLL, heads: int, key_width: int, value_width: int, by_place: bool) -> None:
    rows, beam = len(COUNTS), 2
    keys = states(rows, heads, 70, key_width, by_place, seed=1)
    values = states(rows, heads, 70, value_width, by_place, seed=2)
    for row, length in enumerate(COUNTS):
        keys[row, :, length:], values[row, :, length:] = LARGE, LARGE
    for which in (None, hypotheses(rows, beam, 3)):
        chosen = list(range(rows * beam)) if which is None else which.tolist()
        queries, scale = numbers(len(chosen), heads, key_width, seed=4), key_width**-0.5
        out = attend_to_rows(functions, queries, which, beam, COUNTS, keys, values, scale)
        for query, found, hypothesis in zip(queries, out, chosen, strict=True):
            row = hypothesis // beam
            length = COUNTS[row]
            assert_close(found, attention(query, keys[row][:, :length], values[row][:, :length], scale))


@pytest.mark.parametrize("width", [5, 16])
@pytest.mark.parametrize("magnitude", [30.0, 1e4, 1e15])
def test_large_scores_of_attention_do_not_overflow(functions: CDLL, width: int, magnitude: float) -> None:
    """With weights from 0 to 1, whichever place has the highest score."""
    heads, length = 4, 37
    values = states(length, heads, length, width, False, seed=1)
    keys = torch.zeros(values.shape)
    queries = torch.full((length, heads, width), magnitude**0.5)
    scores = numbers(heads, length, seed=2)
    for highest in range(length):  # one row for each place of the highest score
        own = scores.clone()
        own[:, highest] = 5.0
        keys[highest, :, :length, 0] = own * magnitude**0.5
    out = attend_to_rows(functions, queries, None, 1, [length] * length, keys, values, 1.0)
    assert out.isfinite().all()
    for row in range(length):
        expected = attention(queries[row], keys[row][:, :length], values[row][:, :length], 1.0)
        assert_close(out[row], expected, magnitude=10.0)  # the scores are rounded at their own magnitude


@pytest.mark.parametrize(("heads", "width"), [(1, 5), (3, 16), (4, 64)])
@pytest.mark.parametrize("used", [0, 1, 17])
def test_rows_of_keys_and_values_are_moved(functions: CDLL, heads: int, width: int, used: int) -> None:
    given = numbers(9, heads, 24, width)
    from_rows, to_rows = torch.tensor([8, 6, 7]), torch.tensor([0, 3, 4])
    expected = given.clone()
    expected[to_rows, :, :used] = given[from_rows, :, :used]
    functions.nmt_move_rows(3, from_rows.data_ptr(), to_rows.data_ptr(), heads, used, *buffer(given))
    assert torch.equal(given, expected)


# --- feed-forward -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_bias_and_activation(functions: CDLL, activation: str, width: int) -> None:
    for rows, scale in ((0, 1), (1, 1), (3, 1), (3, 30)):
        x, bias = scale * numbers(rows, width), numbers(width, seed=1)
        expected = ACTIVATIONS[activation]((x + bias).double())
        getattr(functions, f"nmt_add_bias_{activation}")(rows, width, x.data_ptr(), bias.data_ptr())
        torch.testing.assert_close(x.double(), expected, rtol=1e-6, atol=5e-7)
