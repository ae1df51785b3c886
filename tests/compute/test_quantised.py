"""Rows in 8-bit integers and their products in C against PyTorch's operations and sums of integers."""

from __future__ import annotations

import pytest
import torch
from compiled import numbers

from nmt.compute import cpu_products
from nmt.compute.cpu_products import ZERO_POINT, Int8, Int8InC
from nmt.system import torch_internals

WIDTHS = [1, 3, 4, 7, 8, 15, 16, 17, 31, 33, 64, 100, 511, 512]


def integers(low, high, *shape, seed=0):
    return torch.randint(low, high + 1, shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(params=["C", "PyTorch"])
def quantise(request, functions):
    """Quantises rows, by the library or by PyTorch."""

    def rows(x):
        weight = torch.zeros(1, x.size(1))
        return (Int8InC(functions, weight, None) if request.param == "C" else Int8(weight, None)).quantise_rows(x)

    return rows


@pytest.fixture
def limit(functions):
    """Largest weight that the library's product may have."""
    if functions.nmt_int8_limit() == 0:
        pytest.skip("this library has no product of 8-bit integers")
    return functions.nmt_int8_limit()


# --- rows ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", WIDTHS)
def test_c_and_pytorch_quantise_rows_of_any_width_alike(functions, width):
    for rows in (0, 1, 2, 5):
        x = numbers(rows, width) * torch.logspace(-6, 6, 5)[:rows, None]
        weight = torch.zeros(1, width)
        quantised, scales = Int8InC(functions, weight, None).quantise_rows(x)
        expected, plain_scales = Int8(weight, None).quantise_rows(x)
        assert torch.equal(scales, plain_scales)
        # C rounds the product and the sum once, PyTorch twice: what is almost halfway may become either neighbour.
        difference = (quantised.int() - expected.int()).abs()
        assert int(difference.sum()) <= 1


def test_a_row_in_8_bits_is_within_half_a_step(quantise):
    x = numbers(6, 200) * torch.logspace(-5, 5, 6)[:, None]
    quantised, scales = quantise(x)
    assert quantised.dtype == torch.uint8
    assert ((quantised.float() - ZERO_POINT) * scales - x).abs().le(0.5001 * scales).all()
    assert (quantised.int() - ZERO_POINT).abs().amax(1).eq(127).all()


def test_halves_become_the_larger_integer(quantise):
    x = torch.tensor([[127.0, 0.5, 1.5, -0.5, -1.5, -127.0, 0.0, 2.25]] * 2)
    quantised, _ = quantise(x)
    assert (quantised.int() - ZERO_POINT).tolist() == [[127, 1, 2, 0, -1, -127, 0, 2]] * 2


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [3, 36])
def test_the_scale_tells_that_a_row_has_what_is_not_finite(quantise, place, value):
    x = numbers(3, 37)
    x[1, place] = value
    assert quantise(x)[1].isfinite()[:, 0].tolist() == [True, False, True]


# --- products ------------------------------------------------------------------------------------------------


def by_integers(quantised, scales, matrix, of_weights):
    """The product of quantised rows (rows, in), of scales (rows, 1), and a matrix (out, in)."""
    return ((quantised.long() - ZERO_POINT) @ matrix.long().t()).float() * of_weights * scales


@pytest.fixture
def layer_of(functions, limit, monkeypatch):
    """Makes a layer that multiplies by the library, from a matrix of integers up to `limit` and scales of its rows."""
    monkeypatch.setattr(cpu_products, "largest_exact_weight", lambda: limit)

    def make(matrix, of_weights):
        layer = Int8InC(functions, matrix.float() * of_weights[:, None], None)
        layer.scales = of_weights
        layer.lay_out(matrix)
        assert layer._few
        return layer

    return make


@pytest.mark.parametrize("width", [4, 12, 64, 100, 512])
def test_the_product_is_that_of_integers_to_the_last_bit(layer_of, limit, width):
    for outputs in (1, 7, 16, 17, 64, 65, 150):
        matrix, of_weights = integers(-limit, limit, outputs, width).to(torch.int8), numbers(outputs).abs()
        layer = layer_of(matrix, of_weights)
        for rows in (0, 1, 3, 4, 9):
            quantised, scales = layer.quantise_rows(numbers(rows, width))
            found = layer.quantised_product(quantised, scales)
            assert torch.equal(found, by_integers(quantised, scales, matrix, of_weights))


def test_the_largest_products_do_not_saturate(layer_of, limit):
    matrix = torch.full((32, 64), limit, dtype=torch.int8)
    matrix[1::2] *= -1
    quantised, scales = torch.full((5, 64), 255, dtype=torch.uint8), torch.ones(5, 1)
    found = layer_of(matrix, torch.ones(32)).quantised_product(quantised, scales)
    assert torch.equal(found, by_integers(quantised, scales, matrix, torch.ones(32)))


def test_a_row_does_not_depend_on_the_others_nor_on_who_multiplies(functions, limit):
    layer, rows = Int8InC(functions, numbers(96, 64), None), numbers(7, 64, seed=1) * torch.logspace(-3, 3, 7)[:, None]
    rows[3] = 0.0
    with torch.inference_mode():
        together = layer(rows)
        alone = torch.cat([layer(row[None]) for row in rows])
        by_onednn = Int8(numbers(96, 64), None)(rows)
    assert torch.equal(together, alone)
    assert torch.equal(together, by_onednn)


def test_what_is_not_a_number_stays_in_its_row(functions, limit):
    layer, rows = Int8InC(functions, numbers(24, 32), None), numbers(3, 32, seed=1)
    rows[1, 30] = float("nan")
    with torch.inference_mode():
        y = layer(rows)
    assert y[1].isnan().all()
    assert y[[0, 2]].isfinite().all()


def test_many_rows_are_left_to_onednn_where_it_has_amx(layer_of, monkeypatch):
    layer, left = layer_of(torch.zeros(8, 16, dtype=torch.int8), torch.ones(8)), []
    monkeypatch.setattr(Int8, "quantised_product", lambda *given: left.append(given))
    rows = layer.quantise_rows(numbers(3, 16))
    for amx in (False, True):
        monkeypatch.setattr(cpu_products, "has_amx", lambda amx=amx: amx)
        for threads, at_once, expected in ((1, 384, 0), (1, 383, 1), (2, 768, 0), (2, 767, 1)):
            monkeypatch.setattr(torch, "get_num_threads", lambda count=threads: count)
            monkeypatch.setattr(cpu_products, "FEW_MULTIPLICATIONS", at_once)
            left.clear()
            layer.quantised_product(*rows)
            assert len(left) == (expected if amx else 0)


def test_a_matrix_that_the_product_cannot_use_is_left_to_onednn(functions, limit, monkeypatch):
    for width, largest, expected in ((16, limit, True), (18, limit, False), (16, limit + 1, False)):
        monkeypatch.setattr(cpu_products, "largest_exact_weight", lambda largest=largest: largest)
        assert Int8InC(functions, torch.zeros(8, width), None)._few == expected


@pytest.mark.parametrize(("largest", "limit"), [(2**31 - 1, 127), (2**15 - 1, 64)])
def test_weights_have_7_bits_where_sums_of_two_products_saturate(monkeypatch, largest, limit):
    def product(x, zero_point, matrix, scales, zeros):  # as processors with VNNI and without it compute it
        pairs = (x.long()[:, None, :] * matrix.long()).unflatten(2, (-1, 2)).sum(-1)
        return pairs.clamp(-largest - 1, largest).sum(-1).float()

    monkeypatch.setattr(cpu_products, "_int8_product", product)
    monkeypatch.setattr(torch_internals, "require", lambda name: lambda matrix, shape: matrix)
    assert cpu_products.largest_exact_weight.__wrapped__() == limit
    x, weight = torch.full((1, 64), 255, dtype=torch.uint8), torch.full((1, 64), limit)
    assert product(x, 0, weight, None, None).item() == 64 * 255 * limit
