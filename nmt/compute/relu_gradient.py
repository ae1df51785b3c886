"""The gradient of ReLU with the sums for the bias before it, in Triton: both in one pass over the gradient.

torch.compile launches the kernel itself. Only `nmt.compute.gpu` imports this module, and only if Triton is installed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

PART = 128  # rows of a program, whose sums are one row of the result
TILE = 16  # rows that it reads at a time
BLOCK = 128  # columns of a program


@triton.jit(do_not_specialize=["rows"])
def _relu_gradient(
    grad,  # (rows, width)
    output,  # (rows, width), of ReLU
    result,  # (rows, width)
    sums,  # (parts, width), fp32
    rows,
    width,
    PART: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    first = tl.program_id(1) * PART
    total = tl.zeros((TILE, BLOCK), tl.float32)
    for start in range(0, PART, TILE):
        numbers = first + start + tl.arange(0, TILE)[:, None]
        at = numbers.to(tl.int64) * width + columns
        inside = (numbers < rows) & (columns < width)
        passes = tl.load(output + at, inside, 0.0) > 0.0
        passed = tl.where(passes, tl.load(grad + at, inside, 0.0), 0.0)
        tl.store(result + at, passed, inside)
        total += passed
    tl.store(sums + tl.program_id(1) * width + columns, tl.sum(total, 0), columns < width)


@triton_op("nmt::relu_gradient", mutates_args={})
def relu_gradient(grad: Tensor, output: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient (rows, width) of what ReLU made `output` of, and its sums over 128 rows each, in fp32."""
    rows, width = output.shape
    grad = grad.contiguous()
    parts = (rows + PART - 1) // PART
    blocks = (width + BLOCK - 1) // BLOCK
    result = torch.empty_like(grad)
    sums = grad.new_empty((parts, width), dtype=torch.float32)
    kernel = wrap_triton(_relu_gradient)[blocks, parts]
    kernel(grad, output, result, sums, rows, width, PART=PART, TILE=TILE, BLOCK=BLOCK)
    return result, sums
