"""In which numbers a run computes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from nmt.errors import UserError
from nmt.model.transformer import Transformer


def autocast_dtype(precision: str, device: torch.device) -> torch.dtype | None:
    """What `training.precision` casts the factors of matrix products to; None where they stay as they are."""
    if precision == "auto":
        precision = "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "fp32"
    return torch.bfloat16 if precision == "bf16" else None


def short_factors(precision: str) -> str:
    """What products of fp32 matrices round their factors to, as torch.set_float32_matmul_precision calls it.

    On a CPU that has AMX "medium" rounds them to bf16, and adds up in fp32; on others it rounds nothing, and products
    are as fast as they were. On a GPU "high" is tf32.
    """
    return {"bf32": "medium", "tf32": "high"}.get(precision, "highest")


@contextmanager
def factors_rounded(to: str) -> Iterator[None]:
    """Rounds as short_factors says, until it is left; what PyTorch does unless told has changed before."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(to)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def product_dtype(precision: str, device: torch.device) -> torch.dtype:
    """In which type most matrix products are taken."""
    return autocast_dtype(precision, device) or (torch.float64 if precision == "fp64" else torch.float32)


def set_precision(model: Transformer, precision: str, device: torch.device) -> None:
    """Prepares the model for `training.precision`. Raises UserError where the device has no such thing."""
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


def compile_layers(model: Transformer, backend: str = "inductor") -> None:
    """Compiles each layer for shapes of any size; layers of a stack share their graph, so there are few."""
    for layer in (*model.encoder, *model.decoder):
        layer.compile(dynamic=True, backend=backend)
