"""Random inputs of operations, and operations that must agree in values and gradients."""

from __future__ import annotations

from typing import Any

import torch
from compiled import numbers
from torch import Tensor


def leaves(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    return [numbers(*shape, seed=seed).to(dtype).requires_grad_() for seed, shape in enumerate(shapes)]


def assert_same(found: Any, expected: Any, inputs: list[Tensor]) -> None:
    """Equal results, one or several, and equal gradients of a random weighting of them: in fp64, nearly to the bit."""
    pairs = zip(*((each,) if isinstance(each, Tensor) else tuple(each) for each in (found, expected)), strict=True)
    exact = inputs[0].dtype == torch.float64
    sums = [inputs[0].new_zeros(()), inputs[0].new_zeros(())]
    for one, other in pairs:
        torch.testing.assert_close(one, other, rtol=0 if exact else 1e-5, atol=1e-12 if exact else 2e-5)
        weights = numbers(*other.shape, seed=9).transpose(0, 1).contiguous().transpose(0, 1)  # need not be contiguous
        sums = [total + (each * weights).sum() for total, each in zip(sums, (one, other), strict=True)]
    found, expected = (torch.autograd.grad(total, inputs, retain_graph=True) for total in sums)
    assert any(right.any() for right in expected)
    for mine, right in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, right, rtol=0 if exact else 1e-3, atol=1e-11 if exact else 2e-4)
