"""Residual and layer normalisation in C against PyTorch's operations."""

from __future__ import annotations

import pytest
import torch

from nmt.native import layer_norm
from nmt.native.layer_norm import norm_of_sum, plain_sum_and_norm, sum_and_norm
from nmt.native.loading import find, open_library

EPSILON = 1e-6
WIDTHS = [1, 3, 4, 7, 8, 15, 16, 17, 31, 33, 64, 100, 511, 512, 1023]


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def operands(rows: int, width: int, bias: bool):
    """x, z, weight, shift, epsilon and bias; x has a mean far from 0."""
    vectors = [numbers(width, seed=seed) for seed in (2, 3, 4)]
    return (
        numbers(rows, width) * 3 + 5,
        numbers(rows, width, seed=1),
        *vectors[:2],
        EPSILON,
        vectors[2] if bias else None,
    )


@pytest.fixture(params=["_base", "_avx2", "_avx512"])
def functions(request, monkeypatch):
    """The functions of each library that was compiled and that this processor can run."""
    capability = torch.backends.cpu.get_cpu_capability()
    needed = {"_base": None, "_avx2": torch.cpu._is_avx2_supported(), "_avx512": torch.cpu._is_avx512_supported()}
    if needed[request.param] is False:
        pytest.skip(f"this processor has {capability}")
    if (path := find(request.param)) is None:
        pytest.skip(f"{request.param} was not compiled")
    opened = open_library(path)
    assert opened is not None
    monkeypatch.setattr(layer_norm, "functions_for", lambda *tensors: opened)
    return opened


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
def test_c_and_pytorch_agree_on_any_shape(functions, width, bias):
    for rows in (0, 1, 2, 5):
        given = operands(rows, width, bias)
        total, norm = plain_sum_and_norm(*given)
        found = sum_and_norm(*given)
        torch.testing.assert_close(found[0], total, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(found[1], norm, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(norm_of_sum(*given), norm, rtol=1e-5, atol=1e-5)
