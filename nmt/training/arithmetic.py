"""Number formats of training, and FLOPs: of updates, counted, and of devices, known or measured."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

from nmt.compute import choice
from nmt.data.corpus import Ids
from nmt.model.transformer import Transformer
from nmt.recipe import Model
from nmt.system.errors import UserError


def autocast_dtype(precision: str, device: torch.device, d_model: int) -> torch.dtype | None:
    """Return the autocast dtype for `training.precision`; None to run without autocast.

    "auto" picks bf16 only where hardware makes it faster than fp32: on GPUs that do not emulate it, and on CPUs from
    the d_model on that `choice.narrowest_in_bf16` returns. fp16 is never used, as it would need loss scaling.
    """
    if precision == "auto":
        if device.type == "cuda":
            is_faster = torch.cuda.is_bf16_supported(including_emulation=False)
        else:
            is_faster = device.type == "cpu" and d_model >= choice.narrowest_in_bf16()
        precision = "bf16" if is_faster else "fp32"
    return torch.bfloat16 if precision == "bf16" else None


@contextmanager
def factors_rounded(precision: str) -> Iterator[None]:
    """Set the precision of fp32 matrix multiplications to `training.precision` for the duration of the block.

    PyTorch's "medium" rounds operands to bf16 and accumulates in fp32 on CPUs with AMX, and has no effect on other
    CPUs; its "high" is TF32 on GPUs. "highest" is set explicitly because PyTorch's default varies.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision({"bf32": "medium", "tf32": "high"}.get(precision, "highest"))
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def product_dtype(precision: str, device: torch.device, d_model: int) -> torch.dtype:
    """Return the operand dtype of most matrix multiplications under `training.precision`."""
    return autocast_dtype(precision, device, d_model) or (torch.float64 if precision == "fp64" else torch.float32)


def set_precision(model: Transformer, precision: str, device: torch.device) -> None:
    """Convert the model to `training.precision`; raise UserError if the device does not support it."""
    only = {"tf32": ("cuda", "GPUs", "fp32, or bf32"), "bf32": ("cpu", "CPUs", "bf16, or tf32")}
    kind, devices, others = only.get(precision, (device.type, "", ""))
    if device.type != kind:
        problem = f"training.precision: {precision} is for {devices}, not for {device.type}"
        raise UserError(problem, f"--set training.precision={others}")
    if precision == "fp64":
        model.double()


# Peak dense bf16 FLOP/s with fp32 accumulation, from NVIDIA's data sheets. Keys are patterns; the first match wins.
PEAKS = {
    "H[12]00 NVL": 835e12,
    "H100 PCIe": 756e12,
    "G?H200|H100": 989e12,
    "B200": 2250e12,
    "A[18]00": 312e12,
    "A40": 149.7e12,
    "A10G": 70e12,
    "A10": 125e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L4": 121e12,
    "RTX 4090": 165.2e12,
    "RTX 3090": 71e12,
}

# Sustained single-precision FLOP/s that the paper assumes for each GPU (section 6.1, footnote 5).
SUSTAINED = {"K80": 2.8e12, "K40": 3.7e12, "M40": 6.0e12, "P100": 9.5e12}


def training_flops(model: Model, vocabulary: int, source_lengths: Ids, target_lengths: Ids) -> float:
    """Return forward and backward FLOPs for pairs with the given lengths (pairs,), in subwords without `</s>`.

    Count the matrix multiplications of layers, attention and output projection, without padding; the rest
    (biases, LayerNorm, dropout, activations, softmax, the optimizer) is well below 1%. Each weight costs 2 FLOPs per
    token forward, a multiplication and an addition, and 4 backward.
    """
    lengths = source_lengths.astype(np.float64) + 1, target_lengths.astype(np.float64) + 1
    source, target = (float(side.sum()) for side in lengths)
    width = model.heads * (model.key_width + model.value_width)  # total width of keys and values
    half = model.d_model * width  # weights of the query and output projections; key and value have as many
    feed_forward = 2 * model.d_model * model.d_ff
    seen_by_source = attended(lengths[0], model.reach(causal=False) or (math.inf, math.inf))
    seen_by_target = attended(lengths[1], model.reach(causal=True) or (math.inf, 0))
    encoder = source * (2 * half + feed_forward) + width * seen_by_source
    own = target * (2 * half + feed_forward) + width * seen_by_target
    cross = half * (target + source) + width * float((lengths[0] * lengths[1]).sum()) if source else 0.0
    softmax = target * model.d_model * vocabulary
    return 3.0 * 2.0 * (model.layers * encoder + model.decoder_depth * (own + cross) + softmax)


def attended(lengths: NDArray[np.float64], reach: tuple[float, float]) -> float:
    """Return the number of (query, key) pairs in self-attention over sequences of the given lengths.

    Each position attends to itself and to at most `reach` = (before, after) neighbours, fewer near the ends of a
    sequence.
    """
    total = lengths.sum()
    for most in reach:
        near = np.minimum(lengths, most + 1)
        far = lengths - near
        total += (near * (near - 1) / 2).sum() + (far * min(most, lengths.max(initial=0))).sum()
    return float(total)


def peak_flops(device: torch.device) -> float | None:
    """Return a GPU's peak bf16 FLOP/s from `PEAKS`; None if unknown, or for a partition of a GPU (MIG)."""
    name = device_name(device)
    if re.search(r"\b(MIG|Laptop|Ti|D)\b", name):  # partitions, and variants of another speed
        return None
    return next((peak for key, peak in PEAKS.items() if re.search(rf"\b({key})\b", name)), None)


def measured_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Return the FLOP/s of training-sized matrix multiplications in `dtype`, measured over 0.2 s."""
    rows = 8192 if device.type == "cuda" else 1024
    x, weight = (torch.randn(size, 512, device=device, dtype=dtype) for size in (rows, 2048))

    linear = choice.for_training(device, dtype).linear

    def seconds(count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            product = linear(x, weight)
        float(product[0, 0])  # synchronises with the device
        return time.perf_counter() - began

    with factors_rounded("fp32"):
        seconds(3)
        count = max(1, int(0.2 / seconds(1)))
        return 2.0 * rows * 512 * 2048 * count / seconds(count)


def sustained_flops(device: torch.device) -> float:
    """Return the single-precision FLOP/s for the paper's cost estimate, from `SUSTAINED` or else measured."""
    name = device_name(device)
    known = (flops for key, flops in SUSTAINED.items() if re.search(rf"\b{key}[cmst]?\b", name))
    return next(known, None) or measured_flops(device, torch.float32)


def multiplier(dtype: torch.dtype) -> str:
    """Return what multiplies matrices of `dtype` on a CPU: bf16, by oneDNN, or the library for fp32."""
    return "bf16" if dtype == torch.bfloat16 else choice.fp32_multiplier()


def device_name(device: torch.device, with_threads: bool = True, dtype: torch.dtype = torch.float32) -> str:
    """Return the name of a device that multiplies in `dtype`.

    Examples are NVIDIA H200, CPU (2 threads, oneDNN) and, without threads, CPU, bf16.
    """
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    by = {choice.ONEDNN: ", oneDNN", "bf16": ", bf16"}.get(multiplier(dtype), "")
    threads = torch.get_num_threads()
    return f"CPU ({threads} thread{'s' if threads > 1 else ''}{by})" if with_threads else f"CPU{by}"
