"""Residual and layer normalisation in C against PyTorch's operations."""

from __future__ import annotations

import pytest
import torch

from nmt.native import layer_norm
from nmt.native.layer_norm import AT_ONCE, norm_of_sum, plain_sum_and_norm, sum_and_norm
from nmt.native.loading import INSTRUCTION_SETS, NEEDED, find, open_library

EPSILON = 1e-6
WIDTHS = [1, 3, 4, 7, 8, 15, 16, 17, 31, 33, 64, 100, 511, 512, 1023]


def numbers(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def operands(shape, bias):
    """x, z, weight, shift, epsilon and bias; x has a mean far from 0."""
    weight, shift, vector = (numbers(shape[-1], seed=seed) for seed in (2, 3, 4))
    return 3 * numbers(*shape) + 5, numbers(*shape, seed=1), weight, shift, EPSILON, vector if bias else None


@pytest.fixture(params=list(INSTRUCTION_SETS))
def calls(request, monkeypatch):
    """Makes the wrappers call each library that was compiled and that this processor can run; collects the operands."""
    capability = torch.backends.cpu.get_cpu_capability()
    if capability not in NEEDED.get(request.param, {capability}):
        pytest.skip(f"this processor, or ATEN_CPU_CAPABILITY, is limited to {capability}")
    if (path := find(request.param)) is None:
        pytest.skip(f"{request.param} was not compiled")
    opened, collected = open_library(path), []
    assert opened is not None, f"{path} is stale: install nmt again"
    monkeypatch.setattr(layer_norm, "functions_for", lambda *tensors: collected.append(tensors) or opened)
    return collected


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
def test_c_and_pytorch_agree_on_any_shape(calls, width, bias):
    for lead in ((), (0,), (1,), (2,), (5,), (2, 3)):
        given = operands((*lead, width), bias)
        total, norm = plain_sum_and_norm(*given)
        found = sum_and_norm(*given)
        torch.testing.assert_close(found[0], total, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(found[1], norm, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(norm_of_sum(*given), norm, rtol=1e-5, atol=1e-5)
    assert len(calls) == 12


def test_the_operands_stay_as_they_are(calls):
    given = operands((3, 21), True)
    before = [x.clone() for x in given if isinstance(x, torch.Tensor)]
    sum_and_norm(*given)
    norm_of_sum(*given)
    assert len(calls) == 2
    assert all(torch.equal(x, y) for x, y in zip((*given[:4], given[5]), before, strict=True))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_a_number_stays_in_its_row(calls, value):
    x, z, *rest = operands((3, 37), False)
    x[1, 35] = value
    norm = norm_of_sum(x, z, *rest)
    assert norm[1].isnan().all()
    assert norm[[0, 2]].isfinite().all()


def test_a_row_of_equal_numbers_has_a_norm(calls):
    zeros = torch.zeros(2, 19)
    assert torch.equal(norm_of_sum(zeros, zeros, torch.ones(19), torch.full((19,), 7.0), EPSILON), zeros + 7)


def test_shapes_that_do_not_fit_are_left_to_pytorch(calls):
    x, z, weight, shift, epsilon, bias = operands((4, 8), True)
    broadcast = norm_of_sum(x, z[:1], weight, shift, epsilon, bias)
    torch.testing.assert_close(broadcast, plain_sum_and_norm(x, z[:1], weight, shift, epsilon, bias)[1])
    norm_of_sum(x, z, weight, shift, epsilon, bias[:1])
    with pytest.raises(RuntimeError):
        norm_of_sum(x, z, weight[:4], shift, epsilon)
    assert calls == []


def test_large_operands_are_left_to_the_threads_of_pytorch(calls, monkeypatch):
    given = operands((2, AT_ONCE), False)
    norm_of_sum(*given)
    assert len(calls) == 1
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    norm_of_sum(*given)
    assert len(calls) == 1


def test_gradients_flow_through_pytorchs_operations():
    x, z, *rest = operands((2, 9), False)
    total, norm = sum_and_norm(x.requires_grad_(), z, *rest)
    (total.sum() + norm.square().sum()).backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
