"""The residual connection with layer normalisation, in C where that applies; fp32, for inference on a CPU.

Shapes: x, z and the results (…, d); weight, shift and bias (d,).
"""

from __future__ import annotations

from ctypes import CDLL

import torch
from torch import Tensor
from torch.nn import functional as F

from nmt.native.loading import functions_for

AT_ONCE = 1 << 15  # elements up to which one thread is as fast as several; PyTorch's grain size


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
    vectors = (weight, shift) if bias is None else (weight, shift, bias)
    if x.shape != z.shape or any(vector.shape != x.shape[-1:] for vector in vectors):
        return None
    if x.numel() > AT_ONCE and torch.get_num_threads() > 1:
        return None
    return functions_for(x, z, *vectors)


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
    functions.nmt_add_norm(
        x.shape[:-1].numel(),
        x.size(-1),
        x.data_ptr(),
        z.data_ptr(),
        None if bias is None else bias.data_ptr(),
        weight.data_ptr(),
        shift.data_ptr(),
        epsilon,
        None if total is None else total.data_ptr(),
        norm.data_ptr(),
    )
