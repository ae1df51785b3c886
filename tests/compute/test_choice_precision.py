"""Which numbers a run computes in."""

from __future__ import annotations

import math
from contextlib import suppress

import pytest
import torch

from nmt.compute import choice
from nmt.compute.choice import dtype_of, factors_rounded, muon_dtype, set_precision, training_precision
from nmt.model.transformer import Transformer
from nmt.recipe import Model
from nmt.search import way
from nmt.system import torch_internals
from nmt.system.errors import UserError

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize("has_bf16", [True, False])
def test_auto_is_bf16_on_a_gpu_whose_hardware_has_it(monkeypatch: pytest.MonkeyPatch, has_bf16: bool) -> None:
    def is_supported(including_emulation: bool = True) -> bool:
        return has_bf16 or including_emulation  # as on a V100 or T4

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", is_supported)
    assert training_precision("auto", GPU, 512) == ("bf16" if has_bf16 else "fp32")
    assert muon_dtype("auto", GPU, 512) == (torch.bfloat16 if has_bf16 else torch.float32)


@pytest.mark.parametrize(
    ("family", "has_bf16", "has_tiles", "capability", "precision", "narrowest"),
    [
        (25, True, False, "AVX512", "bf16", 128),  # Zen 4
        (25, False, False, "AVX2", "bf16", math.inf),  # Zen 3
        (26, True, False, "AVX512", "bf16", 256),  # Zen 5
        (0, True, True, "AVX512", "bf32", 128),  # Intel
        (0, False, False, "AVX512", "bf16", math.inf),  # an older one
        (0, True, True, "AVX2", "bf16", math.inf),  # Intel that is asked to do without
        (25, True, False, "AVX2", "bf16", math.inf),  # Zen 4, too
    ],
)
def test_auto_rounds_on_a_cpu_from_the_width_on_where_it_pays(
    monkeypatch: pytest.MonkeyPatch,
    family: int,
    has_bf16: bool,
    has_tiles: bool,
    capability: str,
    precision: str,
    narrowest: float,
) -> None:
    has = {"torch.cpu:_is_avx512_bf16_supported": has_bf16, "torch.cpu:_is_amx_tile_supported": has_tiles}
    monkeypatch.setattr(choice, "_amd_family", lambda: family)
    monkeypatch.setattr(torch_internals, "find", lambda name: lambda: has[name])
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    for function in (choice.narrowest_in_bf16, choice.has_amx):
        monkeypatch.setattr(choice, function.__name__, function.__wrapped__)  # without its cache
    for width in (64, 128, 256, 1024):
        assert training_precision("auto", CPU, width) == (precision if width >= narrowest else "fp32")


@pytest.mark.parametrize(
    ("precision", "dtype", "cpu", "gpu"),
    [
        ("bf32", torch.float32, "medium", None),
        ("tf32", torch.float32, None, "high"),
        ("fp32", torch.float32, "highest", "highest"),
        ("fp64", torch.float64, "highest", "highest"),
        ("bf16", torch.bfloat16, "highest", "highest"),
    ],
)
def test_precisions_are_what_they_say(precision: str, dtype: torch.dtype, cpu: str | None, gpu: str | None) -> None:
    before = torch.get_float32_matmul_precision()
    for device, expected in ((CPU, cpu), (GPU, gpu)):
        assert training_precision(precision, device, 16) == training_precision(precision, device, 1024) == precision
        assert dtype_of(precision) == dtype
        assert muon_dtype(precision, device, 16) == (dtype if device is GPU or precision == "fp64" else torch.float32)
        model = Transformer(Model(layers=1, d_model=16, d_ff=24, heads=2), 60, 60)
        if expected is None:
            kind = "GPUs" if device is CPU else "CPUs"
            with pytest.raises(UserError, match=rf"training\.precision: {precision} is for {kind}"):
                set_precision(model, precision, device)
            continue
        set_precision(model, precision, device)
        assert model.output_embedding.weight.dtype == (torch.float64 if precision == "fp64" else torch.float32)
        for error in (None, KeyError):
            with suppress(KeyError), factors_rounded(precision):
                assert torch.get_float32_matmul_precision() == expected
                assert torch.backends.cuda.matmul.allow_tf32 == (expected != "highest")
                if error:
                    raise error
            assert torch.get_float32_matmul_precision() == before


@pytest.mark.parametrize(
    ("capability", "has_bf16", "expected"),
    [
        ("AVX512", True, (True, True)),
        ("AVX512", False, (True, False)),
        ("AVX2", True, (True, False)),
        ("DEFAULT", False, (False, False)),
    ],
)
def test_a_precision_pays_by_what_the_processor_has(
    monkeypatch: pytest.MonkeyPatch, capability: str, has_bf16: bool, expected: tuple[bool, bool]
) -> None:
    known = {"torch.cpu:_is_avx512_bf16_supported": lambda: has_bf16, **dict.fromkeys((*way.BF16, *way.INT8), print)}
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch_internals, "find", known.get)
    monkeypatch.setattr(way, "narrowest_in_bf16", choice.narrowest_in_bf16.__wrapped__)  # without its cache
    assert (way.pays("int8"), way.pays("bf16")) == expected
    monkeypatch.setattr(torch_internals, "find", lambda name: None)
    assert not way.pays("int8")
