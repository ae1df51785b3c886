"""Rows in 8-bit integers and their products in C against PyTorch's operations and sums of integers."""

from __future__ import annotations

import pytest
import torch
from compiled import numbers

from nmt.compute import native as module
from nmt.compute.native import (
    INSTRUCTION_SETS,
    NEEDED,
    ZERO_POINT,
    FewQuantisedRows,
    Library,
    find,
    for_few_rows,
    open_library,
    plain_quantise_rows,
    quantise_rows,
)
from nmt.model.linear import Int8

WIDTHS = [1, 3, 4, 7, 8, 15, 16, 17, 31, 33, 64, 100, 511, 512]


def integers(low, high, *shape, seed=0):
    return torch.randint(low, high + 1, shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(params=list(INSTRUCTION_SETS))
def opened(request, monkeypatch):
    """Makes the module call each library that was compiled and that this processor can run."""
    capability = torch.backends.cpu.get_cpu_capability()
    if capability not in NEEDED.get(request.param, {capability}):
        pytest.skip(f"this processor, or ATEN_CPU_CAPABILITY, is limited to {capability}")
    if (path := find(request.param)) is None:
        pytest.skip(f"{request.param} was not compiled")
    functions = open_library(path)
    assert functions is not None, f"{path} is stale: install nmt again"
    monkeypatch.setattr(module, "functions_for", lambda *tensors: functions)
    monkeypatch.setattr(module, "library", lambda: Library(functions, INSTRUCTION_SETS[request.param]))
    return functions


@pytest.fixture
def limit(opened):
    """Largest weight that the library's product may have."""
    if opened.nmt_int8_limit() == 0:
        pytest.skip("this library has no product of 8-bit integers")
    return opened.nmt_int8_limit()


# --- rows ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", WIDTHS)
def test_c_and_pytorch_quantise_rows_of_any_width_alike(opened, width):
    for rows in (0, 1, 2, 5):
        x = numbers(rows, width) * torch.logspace(-6, 6, 5)[:rows, None]
        quantised, scales = quantise_rows(x)
        expected, plain_scales = plain_quantise_rows(x)
        assert torch.equal(scales, plain_scales)
        # C rounds the product and the sum once, PyTorch twice: what is almost halfway may become either neighbour.
        difference = (quantised.int() - expected.int()).abs()
        assert int(difference.sum()) <= 1


@pytest.mark.parametrize("quantise", [quantise_rows, plain_quantise_rows])
def test_a_row_in_8_bits_is_within_half_a_step(opened, quantise):
    x = numbers(6, 200) * torch.logspace(-5, 5, 6)[:, None]
    quantised, scales = quantise(x)
    assert quantised.dtype == torch.uint8
    assert ((quantised.float() - ZERO_POINT) * scales - x).abs().le(0.5001 * scales).all()
    assert (quantised.int() - ZERO_POINT).abs().amax(1).eq(127).all()


@pytest.mark.parametrize("quantise", [quantise_rows, plain_quantise_rows])
def test_halves_become_the_larger_integer(opened, quantise):
    x = torch.tensor([[127.0, 0.5, 1.5, -0.5, -1.5, -127.0, 0.0, 2.25]] * 2)
    quantised, _ = quantise(x)
    assert (quantised.int() - ZERO_POINT).tolist() == [[127, 1, 2, 0, -1, -127, 0, 2]] * 2


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [3, 36])
@pytest.mark.parametrize("quantise", [quantise_rows, plain_quantise_rows])
def test_the_scale_tells_that_a_row_has_what_is_not_finite(opened, quantise, place, value):
    x = numbers(3, 37)
    x[1, place] = value
    assert quantise(x)[1].isfinite()[:, 0].tolist() == [True, False, True]


# --- products ------------------------------------------------------------------------------------------------


def by_integers(quantised, scales, matrix, of_weights):
    """The product of quantised rows (rows, in), of scales (rows, 1), and a matrix (out, in)."""
    return ((quantised.long() - ZERO_POINT) @ matrix.long().t()).float() * of_weights * scales


@pytest.mark.parametrize("width", [4, 12, 64, 100, 512])
def test_the_product_is_that_of_integers_to_the_last_bit(opened, limit, width):
    for outputs in (1, 7, 16, 17, 64, 65, 150):
        matrix, of_weights = integers(-limit, limit, outputs, width).to(torch.int8), numbers(outputs).abs()
        few = for_few_rows(matrix, of_weights, limit)
        for rows in (0, 1, 3, 4, 9):
            quantised, scales = quantise_rows(numbers(rows, width))
            found = few.product(quantised, scales)
            assert torch.equal(found, by_integers(quantised, scales, matrix, of_weights))


def test_the_largest_products_do_not_saturate(opened, limit):
    matrix = torch.full((32, 64), limit, dtype=torch.int8)
    matrix[1::2] *= -1
    quantised, scales = torch.full((5, 64), 255, dtype=torch.uint8), torch.ones(5, 1)
    few = FewQuantisedRows(matrix, torch.ones(32), opened.nmt_int8_panel(), amx=False)
    assert torch.equal(few.product(quantised, scales), by_integers(quantised, scales, matrix, torch.ones(32)))


def test_a_row_does_not_depend_on_the_others_nor_on_who_multiplies(opened, limit, monkeypatch):
    layer, rows = Int8(numbers(96, 64), None), numbers(7, 64, seed=1) * torch.logspace(-3, 3, 7)[:, None]
    rows[3] = 0.0
    with torch.inference_mode():
        together = layer(rows)
        alone = torch.cat([layer(row[None]) for row in rows])
        monkeypatch.setattr(layer, "_few", None)
        by_onednn = layer(rows)
    assert torch.equal(together, alone)
    assert torch.equal(together, by_onednn)


def test_what_is_not_a_number_stays_in_its_row(opened, limit):
    layer, rows = Int8(numbers(24, 32), None), numbers(3, 32, seed=1)
    rows[1, 30] = float("nan")
    with torch.inference_mode():
        y = layer(rows)
    assert y[1].isnan().all()
    assert y[[0, 2]].isfinite().all()


def test_many_rows_are_left_to_onednn_where_it_has_threads_or_amx(opened, limit, monkeypatch):
    matrix, scales = torch.zeros(8, 16, dtype=torch.int8), torch.ones(8)
    plain, beside_amx = (FewQuantisedRows(matrix, scales, opened.nmt_int8_panel(), amx) for amx in (False, True))
    rows = quantise_rows(numbers(3, 16))
    for threads, at_once, computed in ((1, 384, (1, 1)), (1, 383, (1, 0)), (2, 768, (1, 1)), (2, 767, (0, 0))):
        monkeypatch.setattr(torch, "get_num_threads", lambda count=threads: count)
        monkeypatch.setattr(module, "FEW_MULTIPLICATIONS", at_once)
        assert tuple(few.product(*rows) is not None for few in (plain, beside_amx)) == computed


def test_a_matrix_that_the_product_cannot_use_is_left_to_onednn(opened, limit, monkeypatch):
    assert for_few_rows(torch.zeros(8, 16, dtype=torch.int8), torch.ones(8), limit) is not None
    assert for_few_rows(torch.zeros(8, 18, dtype=torch.int8), torch.ones(8), limit) is None
    assert for_few_rows(torch.zeros(8, 16, dtype=torch.int8), torch.ones(8), limit + 1) is None
    monkeypatch.setattr(module, "library", lambda: None)
    assert for_few_rows(torch.zeros(8, 16, dtype=torch.int8), torch.ones(8), limit) is None
