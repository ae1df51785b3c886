"""FLOPs: of updates, counted exactly, and of devices, known or measured."""

from __future__ import annotations

import re
import time

import numpy as np
import torch

from nmt.compute.choice import device_name, dtype_of, factors_rounded, for_training
from nmt.data.corpus import Ids
from nmt.recipe import Model

# Sustained single-precision FLOP/s that the paper assumes for each GPU (section 6.1, footnote 5).
SUSTAINED = {"K80": 2.8e12, "K40": 3.7e12, "M40": 6.0e12, "P100": 9.5e12}


def training_flops(model: Model, vocabulary: int, source_lengths: Ids, target_lengths: Ids) -> float:
    """Return forward and backward FLOPs for pairs with the given lengths (pairs,), in subwords without `</s>`.

    Count the matrix multiplications of layers, attention and output projection, without padding; the rest
    (biases, LayerNorm, dropout, activations, softmax, the optimizer) is well below 1%. Each weight costs 2 FLOPs per
    token forward, a multiplication and an addition, and 4 backward.
    """
    sources = source_lengths.astype(np.float64) + 1  # (pairs,)
    targets = target_lengths.astype(np.float64) + 1  # (pairs,)
    source = float(sources.sum())
    target = float(targets.sum())
    width = model.heads * (model.key_width + model.value_width)  # total width of keys and values
    half = model.d_model * width  # weights of query and output projections, and of key and value projections
    feed_forward = 2 * model.d_model * model.d_ff
    encoder = source * (2 * half + feed_forward) + width * float((sources**2).sum())
    looked_back = float((targets * (targets + 1)).sum() / 2)  # pairs of a token and one up to it
    own = target * (2 * half + feed_forward) + width * looked_back
    # Queries and outputs are of target tokens, keys and values of source tokens.
    cross = half * (target + source) + width * float((sources * targets).sum())
    softmax = target * model.d_model * vocabulary
    return 3.0 * 2.0 * (model.layers * encoder + model.decoder_depth * (own + cross) + softmax)


def measured_flops(device: torch.device, precision: str) -> float:
    """Return the FLOP/s of matrix multiplications, measured over 0.2 s: of a feed-forward layer's size.

    `precision` is one of `training.precision`, but not "auto".
    """
    dtype = dtype_of(precision)
    rows = 8192 if device.type == "cuda" else 1024
    x = torch.randn(rows, 512, device=device, dtype=dtype)
    weight = torch.randn(2048, 512, device=device, dtype=dtype)
    linear = for_training(device, dtype).linear

    def seconds(count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            product = linear(x, weight)
        float(product[0, 0])  # synchronises with the device
        return time.perf_counter() - began

    with factors_rounded(precision):
        seconds(3)
        count = max(1, int(0.2 / seconds(1)))
        return 2.0 * rows * 512 * 2048 * count / seconds(count)


def sustained_flops(device: torch.device) -> float:
    """Return the single-precision FLOP/s for the paper's cost estimate, from `SUSTAINED` or else measured."""
    name = device_name(device)
    for gpu, flops in SUSTAINED.items():
        if re.search(rf"\b{gpu}[cmst]?\b", name):
            return flops
    return measured_flops(device, "fp32")
