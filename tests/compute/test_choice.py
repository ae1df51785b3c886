"""Which way of computing is chosen."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import CDLL
from pathlib import Path

import pytest
import torch

from nmt.compute import choice
from nmt.compute.cpu_training import TrainingByOneDNN, TrainingOnCPU
from nmt.compute.cpu_training_in_c import TrainingByNmt, TrainingInC
from nmt.compute.native import Kernels
from nmt.model.operations import PLAIN

INTEL, OLD_AMD, ZEN_4, ZEN_5 = (
    f"vendor_id\t: {vendor}\ncpu family\t: {family}\n"
    for vendor, family in (("GenuineIntel", 207), ("AuthenticAMD", 21), ("AuthenticAMD", 25), ("AuthenticAMD", 26))
)


@pytest.fixture(autouse=True)
def _chosen_anew() -> Iterator[None]:
    cached = choice.fp32_multiplier
    cached.cache_clear()
    yield
    cached.cache_clear()


@pytest.mark.parametrize(
    ("machine", "cpuinfo", "capability", "expected"),
    [  # without C kernels
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
    monkeypatch.setattr(choice, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(choice.platform, "machine", lambda: machine)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    monkeypatch.setattr(choice, "kernels", lambda: None)
    assert choice.fp32_multiplier() == expected


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


def test_a_library_that_is_missing_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "_amd_family", lambda: choice.ZEN_5)
    monkeypatch.setattr(choice, "kernels", lambda: None)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: False)
    assert choice.fp32_multiplier() == "pytorch"


def test_only_fp32_is_multiplied_by_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "fp32_multiplier", lambda: choice.ONEDNN)
    monkeypatch.setattr(choice, "kernels", lambda: None)
    cpu = torch.device("cpu")
    assert isinstance(choice.for_training(cpu, torch.float32), TrainingByOneDNN)
    for dtype in (torch.float64, torch.bfloat16):
        assert type(choice.for_training(cpu, dtype)) is TrainingOnCPU
    assert choice.for_training(cpu, torch.float32, compiled=True) is PLAIN
