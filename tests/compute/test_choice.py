"""Which way of computing is chosen."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import CDLL
from pathlib import Path

import pytest
import torch

from nmt.compute import choice
from nmt.compute.cpu_training import TrainingOnCPU
from nmt.compute.cpu_training_in_c import TrainingByNmt, TrainingInC
from nmt.compute.native import Kernels
from nmt.model.operations import PLAIN

INTEL, ZEN_4, ZEN_5 = (
    f"vendor_id\t: {vendor}\ncpu family\t: {family}\n"
    for vendor, family in (("GenuineIntel", 207), ("AuthenticAMD", 25), ("AuthenticAMD", 26))
)


@pytest.fixture(autouse=True)
def _chosen_anew() -> Iterator[None]:
    cached = choice.fp32_multiplier
    cached.cache_clear()
    yield
    cached.cache_clear()


@pytest.mark.parametrize(
    ("cpuinfo", "instructions", "ours"), [(ZEN_5, "AVX2", True), (INTEL, "AVX-512", False), (ZEN_4, "generic", False)]
)
def test_our_products_are_chosen_on_amd_with_fused_multiply_add(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpuinfo: str, instructions: str, ours: bool
) -> None:
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    monkeypatch.setattr(choice, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(choice, "kernels", lambda: Kernels(CDLL(None), instructions))
    assert (choice.fp32_multiplier() == "nmt") == ours
    assert isinstance(choice.for_training(torch.device("cpu"), torch.float32), TrainingByNmt) == ours
    assert type(choice.for_training(torch.device("cpu"), torch.bfloat16)) is TrainingInC


@pytest.mark.parametrize(("has_mkl", "expected"), [(True, "mkl"), (False, "pytorch")])
def test_without_c_kernels_pytorch_multiplies(monkeypatch: pytest.MonkeyPatch, has_mkl: bool, expected: str) -> None:
    monkeypatch.setattr(choice, "kernels", lambda: None)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: has_mkl)
    assert choice.fp32_multiplier() == expected
    cpu = torch.device("cpu")
    assert type(choice.for_training(cpu, torch.float32)) is TrainingOnCPU
    assert choice.for_training(cpu, torch.float32, compiled=True) is PLAIN
