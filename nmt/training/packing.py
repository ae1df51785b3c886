"""Whether the sentences of a micro-batch are packed or padded."""

from __future__ import annotations

import torch

from nmt.errors import UserError
from nmt.recipe import Model, Training
from nmt.training.precision import product_dtype

WIDEST_HEAD = 256  # of the kernel of packed attention
HEAD_STEP = 8
OLDEST = (8, 0)  # compute capability: Ampere


def use_packing(model: Model, settings: Training, device: torch.device) -> bool:
    """Whether `training.packing` packs the micro-batches of a model; on a CPU `auto` does not.

    Raises UserError where sentences must be packed and cannot be.
    """
    if settings.packing != "auto" and not settings.packing:
        return False
    if device.type == "cpu":  # where any model can be packed, but more slowly than padded
        return settings.packing is True
    obstacle = _obstacle(model, settings, device)
    if obstacle is not None and settings.packing is True:
        reason, hint = obstacle
        raise UserError(f"training.packing: sentences cannot be packed, since {reason}", hint)
    return obstacle is None


def _obstacle(model: Model, settings: Training, device: torch.device) -> tuple[str, str] | None:
    """Why the kernel of packed attention cannot train a model on this GPU, and what to do; None where it can."""
    otherwise = ", or training.packing=auto"
    if not torch.backends.cuda.is_flash_attention_available() or torch.version.hip is not None:
        return "this build of PyTorch has no FlashAttention for NVIDIA's GPUs", "--set training.packing=auto"
    if torch.cuda.get_device_capability(device) < OLDEST:
        return f"{torch.cuda.get_device_name(device)} is too old for it", "--set training.packing=auto"
    if product_dtype(settings.precision, device) != torch.bfloat16:
        return f"training.precision is {settings.precision}", f"--set training.precision=bf16{otherwise}"
    if model.attention_dropout > 0.0:
        return f"model.attention_dropout is {model.attention_dropout}", f"--set model.attention_dropout=0{otherwise}"
    key, value = model.key_width, model.value_width
    if key != value or key % HEAD_STEP or key > WIDEST_HEAD:
        return (
            f"a head's keys have {key} numbers and its values {value}, which must be equally many, a multiple of "
            f"{HEAD_STEP}, at most {WIDEST_HEAD}",
            f"change model.d_k, d_v or heads{otherwise}",
        )
    return None
