"""The number formats that a run computes in, counts of its operations, and the speed of devices."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

from nmt.data.corpus import Ids
from nmt.model import products
from nmt.model.transformer import Transformer
from nmt.recipe import Model
from nmt.system.errors import UserError


def autocast_dtype(precision: str, device: torch.device) -> torch.dtype | None:
    """Return the type to which `training.precision` casts the factors of matrix products; None if it casts nothing.

    A GPU that only emulates bf16 is slower in it than in fp32; fp16 would need the loss to be scaled.
    """
    if precision == "auto":
        has_bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        precision = "bf16" if has_bf16 else "fp32"
    return torch.bfloat16 if precision == "bf16" else None


@contextmanager
def factors_rounded(precision: str) -> Iterator[None]:
    """Round the factors of products of fp32 matrices as `training.precision` says while the block runs.

    On a CPU that has AMX, "medium" rounds them to bf16 and sums in fp32; on other CPUs it rounds nothing, and products
    are no faster. On a GPU, "high" is tf32. The default is set as well, since it has changed between versions of
    PyTorch.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision({"bf32": "medium", "tf32": "high"}.get(precision, "highest"))
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def product_dtype(precision: str, device: torch.device) -> torch.dtype:
    """Return the type of the factors of most matrix products."""
    return autocast_dtype(precision, device) or (torch.float64 if precision == "fp64" else torch.float32)


def set_precision(model: Transformer, precision: str, device: torch.device) -> None:
    """Convert the model to `training.precision`; raise UserError if the device does not have it."""
    only = {"tf32": ("cuda", "GPUs", "fp32, or bf32"), "bf32": ("cpu", "CPUs", "bf16, or tf32")}
    kind, devices, others = only.get(precision, (device.type, "", ""))
    if device.type != kind:
        problem = f"training.precision: {precision} is for {devices}, not for {device.type}"
        raise UserError(problem, f"--set training.precision={others}")
    if precision == "fp64":
        model.double()


# Dense bf16 products with fp32 sums, FLOP/s by NVIDIA's data sheets; the first that is in a device's name counts.
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

# What the paper takes a GPU to sustain in single precision, FLOP/s (section 6.1, footnote 5).
SUSTAINED = {"K80": 2.8e12, "K40": 3.7e12, "M40": 6.0e12, "P100": 9.5e12}


def training_flops(model: Model, vocabulary: int, source_lengths: Ids, target_lengths: Ids) -> float:
    """Return the FLOPs of forward and backward pass over pairs of these lengths (pairs,) in subwords without `</s>`.

    Count the matrix products of layers, attention and softmax, multiplications and additions apart; the rest (biases,
    LayerNorm, dropout, activations, softmax, the optimizer) is well below a hundredth. A product of a token with n
    weights takes 2n forward, and the backward pass takes twice as much. Padding is not counted.
    """
    lengths = source_lengths.astype(np.float64) + 1, target_lengths.astype(np.float64) + 1
    source, target = (float(side.sum()) for side in lengths)
    width = model.heads * (model.key_width + model.value_width)  # of keys and values side by side
    half = model.d_model * width  # weights of queries and outputs, or of keys and values
    feed_forward = 2 * model.d_model * model.d_ff
    seen_by_source = attended(lengths[0], model.reach(causal=False) or (math.inf, math.inf))
    seen_by_target = attended(lengths[1], model.reach(causal=True) or (math.inf, 0))
    encoder = source * (2 * half + feed_forward) + width * seen_by_source
    own = target * (2 * half + feed_forward) + width * seen_by_target
    cross = half * (target + source) + width * float((lengths[0] * lengths[1]).sum()) if source else 0.0
    softmax = target * model.d_model * vocabulary
    return 3.0 * 2.0 * (model.layers * encoder + model.decoder_depth * (own + cross) + softmax)


def attended(lengths: NDArray[np.float64], reach: tuple[float, float]) -> float:
    """Return how many positions self-attention looks at, summed over all positions of sequences of these lengths.

    Each position sees itself and up to `reach` before and after it. The first positions see 0, 1, 2, … before
    themselves, the later ones as many as the reach allows; likewise at the end.
    """
    total = lengths.sum()
    for most in reach:
        near = np.minimum(lengths, most + 1)
        far = lengths - near
        total += (near * (near - 1) / 2).sum() + (far * min(most, lengths.max(initial=0))).sum()
    return float(total)


def peak_flops(device: torch.device) -> float | None:
    """Return the FLOP/s of a GPU in bf16 by its data sheet; None if it is not in `PEAKS`, or is a part of a GPU."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    if re.search(r"\b(MIG|Laptop|Ti|D)\b", name):  # slower or faster than the GPU they are named after
        return None
    return next((peak for key, peak in PEAKS.items() if re.search(rf"\b({key})\b", name)), None)


def measured_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Measure the FLOP/s of matrix products as large as those of training for a fifth of a second, without rounding."""
    rows = 8192 if device.type == "cuda" else 1024
    x, weight = (torch.randn(size, 512, device=device, dtype=dtype) for size in (rows, 2048))

    def seconds(count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            product = products.linear(x, weight)
        float(product[0, 0])  # waits for the device
        return time.perf_counter() - began

    with factors_rounded("fp32"):
        seconds(3)
        count = max(1, int(0.2 / seconds(1)))
        return 2.0 * rows * 512 * 2048 * count / seconds(count)


def sustained_flops(device: torch.device) -> float:
    """Return the FLOP/s in single precision for the paper's estimate of cost: its figure of this GPU, or measured."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    known = (flops for key, flops in SUSTAINED.items() if re.search(rf"\b{key}[cmst]?\b", name))
    return next(known, None) or measured_flops(device, torch.float32)


def device_name(device: torch.device) -> str:
    """Return the name of a device in reports: NVIDIA H200, CPU (2 threads), or CPU (2 threads, oneDNN)."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"CPU ({threads} thread{'s' if threads > 1 else ''}{_by()})"


def processor() -> str:
    """Return the name of a CPU without its threads: CPU, or CPU, oneDNN."""
    return f"CPU{_by()}"


def _by() -> str:
    return ", oneDNN" if products.library() == products.ONEDNN else ""
