"""The kernel of ReLU's gradient computes what PyTorch does in two passes; Triton's interpreter runs it."""

from __future__ import annotations

import math

import pytest
import torch

from nmt.compute.gpu import _LinearReLU

pytest.importorskip("triton", reason="Triton is not installed")
from nmt.compute import relu_gradient as kernel


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "wrap_triton", lambda function: function)


@pytest.mark.parametrize(("rows", "width"), [(1, 24), (127, 128), (128, 200), (300, 130)])
def test_gradients_of_a_product_with_relu_are_those_without_the_kernel(rows: int, width: int) -> None:
    torch.manual_seed(1)
    given = [torch.randn(shape, requires_grad=True) for shape in ((rows, 8), (width, 8), (width,))]
    results = []
    for has_kernels in (True, False):
        output = _LinearReLU.apply(*given, has_kernels)  # type: ignore[no-untyped-call]
        grad = torch.linspace(-1.0, 1.0, rows * width).view(rows, width).masked_fill(output == 0.0, math.inf)
        results.append(torch.autograd.grad(output, given, grad))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-4)  # sums of up to 300 in other order
