"""Which numbers a run computes in."""

from __future__ import annotations

import math
from contextlib import suppress

import pytest
import torch

from nmt.compute import choice
from nmt.model.transformer import Transformer
from nmt.recipe import Model
from nmt.system import torch_internals
from nmt.system.errors import UserError
from nmt.training.arithmetic import autocast_dtype, factors_rounded, product_dtype, set_precision

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize("has_bf16", [True, False])
def test_auto_is_bf16_on_a_gpu_whose_hardware_has_it(monkeypatch: pytest.MonkeyPatch, has_bf16: bool) -> None:
    def is_supported(including_emulation: bool = True) -> bool:
        return has_bf16 or including_emulation  # as on a V100 or T4

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", is_supported)
    assert autocast_dtype("auto", GPU, 512) == (torch.bfloat16 if has_bf16 else None)
    assert product_dtype("auto", GPU, 512) == (torch.bfloat16 if has_bf16 else torch.float32)


@pytest.mark.parametrize(
    ("family", "has_bf16", "capability", "narrowest"),
    [
        (25, True, "AVX512", 128),  # Zen 4
        (25, False, "AVX2", math.inf),  # Zen 3
        (26, True, "AVX512", 256),  # Zen 5
        (0, True, "AVX512", 256),  # Intel
        (25, True, "AVX2", math.inf),  # Zen 4 that is asked to do without
    ],
)
def test_auto_is_bf16_on_a_cpu_from_the_width_on_where_it_pays(
    monkeypatch: pytest.MonkeyPatch, family: int, has_bf16: bool, capability: str, narrowest: float
) -> None:
    monkeypatch.setattr(choice, "_amd_family", lambda: family)
    monkeypatch.setattr(torch_internals, "find", lambda name: lambda: has_bf16)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(choice, "narrowest_in_bf16", choice.narrowest_in_bf16.__wrapped__)  # without its cache
    for width in (64, 128, 256, 1024):
        assert autocast_dtype("auto", CPU, width) == (torch.bfloat16 if width >= narrowest else None)
        assert autocast_dtype("fp32", CPU, width) is None


@pytest.mark.parametrize("device", [CPU, GPU])
def test_other_precisions_are_what_they_say(device: torch.device) -> None:
    assert autocast_dtype("bf16", device, 16) == product_dtype("bf16", device, 16) == torch.bfloat16
    fp32 = (("fp32", torch.float32), ("tf32", torch.float32), ("bf32", torch.float32))
    for precision, dtype in (*fp32, ("fp64", torch.float64)):
        assert autocast_dtype(precision, device, 16) is None
        assert product_dtype(precision, device, 16) == dtype


@pytest.mark.parametrize(
    ("precision", "cpu", "gpu"),
    [
        ("bf32", "medium", None),
        ("tf32", None, "high"),
        *((precision, "highest", "highest") for precision in ("auto", "bf16", "fp32", "fp64")),
    ],
)
def test_factors_of_products_are_as_short_as_asked_for(precision: str, cpu: str | None, gpu: str | None) -> None:
    for device, expected in ((CPU, cpu), (GPU, gpu)):
        if expected is None:
            kind = "GPUs" if device is CPU else "CPUs"
            with pytest.raises(UserError, match=rf"training\.precision: {precision} is for {kind}"):
                set_precision(tiny(), precision, device)
        else:
            with factors_rounded(precision):
                assert torch.get_float32_matmul_precision() == expected


@pytest.mark.parametrize("fails", [False, True])
def test_factors_are_as_before_once_it_is_left(fails: bool) -> None:
    before = torch.get_float32_matmul_precision()
    for precision, factors in (("bf32", "medium"), ("tf32", "high"), ("fp32", "highest")):
        with suppress(KeyError), factors_rounded(precision):
            assert torch.get_float32_matmul_precision() == factors
            assert torch.backends.cuda.matmul.allow_tf32 == (factors != "highest")
            if fails:
                raise KeyError
        assert torch.get_float32_matmul_precision() == before


def tiny(**settings: object) -> Transformer:
    torch.manual_seed(1)
    options: dict[str, object] = {"layers": 3, "d_model": 16, "d_ff": 24, "heads": 2, "dropout": 0.0}
    return Transformer(Model(**options | settings), 60, 60)
