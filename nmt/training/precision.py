"""In which numbers a run computes."""

from __future__ import annotations

import torch

from nmt.errors import UserError
from nmt.model.transformer import Transformer


def autocast_dtype(precision: str, device: torch.device) -> torch.dtype | None:
    """What `training.precision` casts the factors of matrix products to; None where they stay as they are."""
    if precision == "auto":
        precision = "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "fp32"
    return torch.bfloat16 if precision == "bf16" else None


def product_dtype(precision: str, device: torch.device) -> torch.dtype:
    """In which type most matrix products are taken."""
    return autocast_dtype(precision, device) or (torch.float64 if precision == "fp64" else torch.float32)


def set_precision(model: Transformer, precision: str, device: torch.device) -> None:
    """Prepares model and device for `training.precision`. Raises UserError where the device has no such thing."""
    if precision == "tf32" and device.type != "cuda":
        raise UserError("training.precision: tf32 is for GPUs", "fp32, or bf16 where the CPU has it")
    # What PyTorch does unless told has changed before; fp32 here means fp32.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    if precision == "fp64":
        model.double()


def compile_layers(model: Transformer, backend: str = "inductor") -> None:
    """Compiles each layer for shapes of any size; layers of a stack share their graph, so there are few."""
    for layer in (*model.encoder, *model.decoder):
        layer.compile(dynamic=True, backend=backend)
