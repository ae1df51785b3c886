"""The C libraries that a test can call, and what tests of their functions share."""

from __future__ import annotations

from ctypes import CDLL

import pytest
import torch
from torch import Tensor

from nmt.compute.native import NEEDED, find, open_library


def compiled(name: str) -> CDLL:
    """The functions of a library; skips the test if it was not compiled or this processor cannot run it."""
    capability = torch.backends.cpu.get_cpu_capability()
    if capability not in NEEDED.get(name, {capability}):
        pytest.skip(f"this processor, or ATEN_CPU_CAPABILITY, is limited to {capability}")
    if (path := find(name)) is None:
        pytest.skip(f"{name} was not compiled")
    opened = open_library(path)
    assert opened is not None, f"{path} is stale: install nmt again"
    return opened


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def pointer(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


def assert_close(found: Tensor, expected: Tensor, magnitude: float = 1.0) -> None:
    torch.testing.assert_close(found, expected.float(), rtol=1e-5, atol=1e-5 * magnitude)
