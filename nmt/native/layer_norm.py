"""The residual connection with layer normalisation, in C where that applies; fp32, for inference on a CPU.

Shapes: x, z and the results (…, d); weight, shift and bias (d,).
"""

from __future__ import annotations

from ctypes import CDLL

import torch
from torch import Tensor
from torch.nn import functional as F

from nmt.native.loading import functions_for

AT_ONCE = 1 << 15  # elements up to which PyTorch uses one thread (its GRAIN_SIZE)


def norm_of_sum(
    x: Tensor, z: Tensor, weight: Tensor, shift: Tensor, epsilon: float, bias: Tensor | None = None
) -> Tensor:
    """LayerNorm(x + z + bias), where z + bias is the output of a sublayer."""
    functions = _functions_for(x, z, weight, shift, bias)
    if functions is None:
        return plain_sum_and_norm(x, z, weight, shift, epsilon, bias)[1]
    norm = torch.empty_like(x)
    _add_norm(functions, x, z, weight, shift, epsilon, bias, None, norm)
    return norm


def sum_and_norm(
    x: Tensor, z: Tensor, weight: Tensor, shift: Tensor, epsilon: float, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """x + z + bias and LayerNorm(x + z + bias); pre-norm needs both."""
    functions = _functions_for(x, z, weight, shift, bias)
    if functions is None:
        return plain_sum_and_norm(x, z, weight, shift, epsilon, bias)
    total, norm = torch.empty_like(x), torch.empty_like(x)
    _add_norm(functions, x, z, weight, shift, epsilon, bias, total, norm)
    return total, norm


def plain_sum_and_norm(
    x: Tensor, z: Tensor, weight: Tensor, shift: Tensor, epsilon: float, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """`sum_and_norm` by PyTorch's operations, on any device and with gradients."""
    total = x + z if bias is None else x + z + bias
    return total, F.layer_norm(total, weight.shape, weight, shift, epsilon)


def _functions_for(x: Tensor, z: Tensor, weight: Tensor, shift: Tensor, bias: Tensor | None) -> CDLL | None:
    """The C functions if they apply to these tensors."""
    width = x.size(-1)
    if x.shape != z.shape or weight.numel() != width or shift.numel() != width:
        return None
    if bias is None:
        return None if _is_large(x) else functions_for(x, z, weight, shift)
    return None if bias.numel() != width or _is_large(x) else functions_for(x, z, weight, shift, bias)


def _is_large(x: Tensor) -> bool:
    """Whether PyTorch would use several threads, and thus be faster."""
    return x.numel() > AT_ONCE and torch.get_num_threads() > 1


def _add_norm(
    functions: CDLL,
    x: Tensor,
    z: Tensor,
    weight: Tensor,
    shift: Tensor,
    epsilon: float,
    bias: Tensor | None,
    total: Tensor | None,  # written, if it is wanted
    norm: Tensor,  # written
) -> None:
    width = weight.numel()
    functions.nmt_add_norm(
        x.numel() // width if width else 0,
        width,
        x.data_ptr(),
        z.data_ptr(),
        None if bias is None else bias.data_ptr(),
        weight.data_ptr(),
        shift.data_ptr(),
        epsilon,
        None if total is None else total.data_ptr(),
        norm.data_ptr(),
    )
