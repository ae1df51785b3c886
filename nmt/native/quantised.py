"""Rows in 8-bit integers, and the product of few rows by a matrix of 8-bit integers, in C.

A call of oneDNN costs 20 to 30 microseconds, in which the C function multiplies a few dozen rows. oneDNN is
faster for many rows only, by AMX or by several threads. Sums of integers are exact, so the results of both are equal to
the last bit.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from nmt.native.loading import INSTRUCTION_SETS, functions_for, library

ZERO_POINT = 128  # what 0 becomes in 8 unsigned bits
AT_ONCE = 1 << 23  # products of two numbers that the C function computes no slower than oneDNN with AMX
SMALLEST = 1e-12  # scale of a row, also of one of zeros


def quantise_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows (rows, width) in unsigned 8-bit integers, and their scales (rows, 1): x ≈ (quantised - 128) · scale.

    The largest absolute value of a row becomes 127. What lies between two integers becomes the nearest, halves the
    larger. The scale of a row with infinity or NaN is not finite.
    """
    functions = functions_for(x)
    if functions is None:
        return plain_quantise_rows(x)
    quantised, scales = torch.empty(x.shape, dtype=torch.uint8), x.new_empty((len(x), 1))
    functions.nmt_quantise_rows(*x.shape, x.data_ptr(), quantised.data_ptr(), scales.data_ptr())
    return quantised, scales


def plain_quantise_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """`quantise_rows` by PyTorch's operations."""
    scales = x.abs().amax(1, keepdim=True).div_(127.0).clamp_min_(SMALLEST)
    # The conversion truncates; adding 128.5 instead of the zero point 128 makes it round.
    return (x * scales.reciprocal()).add_(ZERO_POINT + 0.5).to(torch.uint8), scales


class FewQuantisedRows:
    """x Wᵀ for few quantised rows x and a matrix W (out, in) of 8-bit integers, by the C function."""

    def __init__(self, matrix: Tensor, scales: Tensor, panel: int, amx: bool) -> None:
        """`scales` (out,) are those of the rows of W; `panel` outputs lie side by side; oneDNN may use `amx`."""
        outputs, width = matrix.shape
        beyond = -outputs % panel
        panels = F.pad(matrix, (0, 0, 0, beyond)).view(-1, panel, width // 4, 4)
        self._matrix = panels.transpose(1, 2).contiguous()
        self._shifts = F.pad(matrix.sum(1, dtype=torch.int32) * -ZERO_POINT, (0, beyond))
        self._scales = F.pad(scales, (0, beyond))
        self._outputs, self._amx = outputs, amx

    def product(self, quantised: Tensor, scales: Tensor) -> Tensor | None:
        """(rows, out) in fp32 of what `quantise_rows` returned, or None if oneDNN is to be used: it may be faster."""
        functions, threads = functions_for(scales), torch.get_num_threads()
        rows, width = quantised.shape
        is_large = rows * width * self._outputs * threads > AT_ONCE
        if functions is None or (is_large and (self._amx or threads > 1)):
            return None
        y = scales.new_empty((rows, self._outputs))
        functions.nmt_int8_product(
            *(rows, width, self._outputs, quantised.data_ptr(), scales.data_ptr(), self._matrix.data_ptr()),
            *(self._shifts.data_ptr(), self._scales.data_ptr(), y.data_ptr()),
        )
        return y


def for_few_rows(matrix: Tensor, scales: Tensor, limit: int) -> FewQuantisedRows | None:
    """W (out, in), of absolute values up to `limit`, laid out for the C function; None if that does not apply to it."""
    opened = library()
    if opened is None or opened.functions.nmt_int8_limit() < limit or matrix.size(1) % 4:
        return None
    amx = opened.instruction_set == INSTRUCTION_SETS["_avx512"] and torch.cpu._is_amx_tile_supported()
    return FewQuantisedRows(matrix, scales, opened.functions.nmt_int8_panel(), amx)
