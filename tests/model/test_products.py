"""Which library multiplies, and that both give the same products and gradients but for rounding."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from nmt.model import products
from nmt.system.errors import UserError

INTEL, OLD_AMD, ZEN_4, ZEN_5 = (
    f"vendor_id\t: {vendor}\ncpu family\t: {family}\n"
    for vendor, family in (("GenuineIntel", 207), ("AuthenticAMD", 21), ("AuthenticAMD", 25), ("AuthenticAMD", 26))
)


@pytest.fixture(autouse=True)
def _chosen_anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(products.VARIABLE, raising=False)
    products.library.cache_clear()
    yield
    products.library.cache_clear()


@pytest.mark.parametrize(
    ("machine", "cpuinfo", "capability", "expected"),
    [
        ("x86_64", ZEN_5, "AVX512", "onednn"),
        ("x86_64", ZEN_5, "AVX2", "mkl"),
        ("x86_64", ZEN_4, "AVX512", "mkl"),
        ("x86_64", OLD_AMD, "AVX2", "mkl"),
        ("x86_64", INTEL, "AVX512", "mkl"),
        ("aarch64", "", "DEFAULT", "pytorch"),
    ],
)
def test_the_processor_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str, cpuinfo: str, capability: str, expected: str
) -> None:
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    monkeypatch.setattr(products, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(products.platform, "machine", lambda: machine)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    assert products.library() == expected


def test_a_library_that_is_missing_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(products.VARIABLE, "onednn")
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: False)
    assert products.library() == "pytorch"


def test_another_library_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(products.VARIABLE, "openblas")
    with pytest.raises(UserError, match="NMT_PRODUCTS=openblas: is neither mkl nor onednn"):
        products.library()


@pytest.fixture(params=["mkl", "onednn"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(products.VARIABLE, request.param)
    if products.library() != request.param:
        pytest.skip("this PyTorch does not have both libraries")
    return str(request.param)


@pytest.mark.parametrize("shape", [(7, 24, 40), (300, 64, 96), (1, 5, 3)])
@pytest.mark.parametrize("with_bias", [True, False])
def test_a_linear_layer_has_the_values_and_gradients_of_doubles(
    library: str, shape: tuple[int, int, int], with_bias: bool
) -> None:
    rows, inputs, outputs = shape
    torch.manual_seed(rows)
    given = [torch.randn(2, rows, inputs), torch.randn(outputs, inputs), torch.randn(outputs)][: 2 + with_bias]
    single = [x.clone().requires_grad_() for x in given]
    double = [x.double().requires_grad_() for x in given]
    ours, exact = products.linear(*single), F.linear(*double)
    assert ("_Linear" in ours.grad_fn.name()) == (library == "onednn")  # type: ignore[union-attr]
    torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-5 * inputs**0.5)
    weights = torch.randn_like(ours)
    (ours * weights).sum().backward()
    (exact * weights.double()).sum().backward()
    for mine, theirs in zip(single, double, strict=True):
        torch.testing.assert_close(mine.grad.double(), theirs.grad, rtol=1e-4, atol=2e-5 * rows**0.5)


def test_a_layer_need_not_have_all_gradients(library: str) -> None:
    x, weight = torch.randn(3, 8), torch.randn(5, 8, requires_grad=True)
    products.linear(x, weight).sum().backward()
    assert x.grad is None
    torch.testing.assert_close(weight.grad, x.sum(0).expand(5, -1))


@pytest.mark.parametrize("scale", [1.0, 1.25])
def test_products_are_scaled_and_shifted(library: str, scale: float) -> None:
    torch.manual_seed(1)
    a, b, bias = torch.randn(30, 20).t(), torch.randn(12, 30).t(), torch.randn(12)
    exact = a.double() @ b.double()
    torch.testing.assert_close(products.product(a, b, scale).double(), scale * exact, rtol=1e-5, atol=1e-5)
    shifted = scale * exact + bias.double()
    torch.testing.assert_close(products.product(a, b, scale, bias).double(), shifted, rtol=1e-5, atol=1e-5)


def test_doubles_and_reduced_precision_keep_pytorchs_products(library: str) -> None:
    assert products.by_onednn(torch.zeros(2)) == (library == "onednn")
    assert not products.by_onednn(torch.zeros(2, dtype=torch.float64))
    assert not products.by_onednn(torch.zeros(0, 2))
    with torch.autocast("cpu"):
        assert not products.by_onednn(torch.zeros(2))
