"""The number formats that a run computes in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from nmt.errors import UserError
from nmt.model.transformer import Transformer


def autocast_dtype(precision: str, device: torch.device) -> torch.dtype | None:
    """Type to which `training.precision` casts the factors of matrix products; None where it casts nothing.

    A GPU that only emulates bf16 is slower in it than in fp32; fp16 would need the loss to be scaled.
    """
    if precision == "auto":
        has_bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        precision = "bf16" if has_bf16 else "fp32"
    return torch.bfloat16 if precision == "bf16" else None


def short_factors(precision: str) -> str:
    """How products of fp32 matrices round their factors, in the words of torch.set_float32_matmul_precision.

    On a CPU that has AMX "medium" rounds them to bf16 and sums in fp32; on other CPUs it rounds nothing, and products
    are no faster. On a GPU "high" is tf32.
    """
    return {"bf32": "medium", "tf32": "high"}.get(precision, "highest")


@contextmanager
def factors_rounded(to: str) -> Iterator[None]:
    """Rounds factors as `short_factors` says, and restores the previous setting on exit.

    The precision is set even where it is PyTorch's default, which has changed between versions.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(to)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def product_dtype(precision: str, device: torch.device) -> torch.dtype:
    """Type of the factors of most matrix products."""
    return autocast_dtype(precision, device) or (torch.float64 if precision == "fp64" else torch.float32)


def set_precision(model: Transformer, precision: str, device: torch.device) -> None:
    """Converts the model to `training.precision`. Raises UserError where the device does not have it."""
    if precision == "tf32" and device.type != "cuda":
        raise UserError(
            f"training.precision: tf32 is for GPUs, not for {device.type}", "--set training.precision=fp32, or bf32"
        )
    if precision == "bf32" and device.type != "cpu":
        raise UserError(
            f"training.precision: bf32 is for CPUs, not for {device.type}", "--set training.precision=bf16, or tf32"
        )
    if precision == "fp64":
        model.double()
