"""The memory that training needs, and the largest micro-batch that fits a device."""

from __future__ import annotations

import math
import resource
from collections.abc import Callable
from contextlib import suppress

import torch

from nmt.device import available_memory
from nmt.errors import UserError
from nmt.recipe import Training

SHARE = 0.9  # of a GPU's memory that an update may take; the rest is for gaps between allocations
GIB = 2**30
RETRY = 0.9  # of the size that did not fit, to try next


def peak_memory(device: torch.device) -> int:
    """The most bytes that PyTorch has had on the GPU at a time; on a CPU, the process's peak resident memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def check_memory(parameters: int, settings: Training, device: torch.device, ranks: int) -> None:
    """Raises UserError where a model of so many parameters cannot be trained on a device that `ranks` share.

    Counts weights, gradients and Adam's moments, which every run needs, but no activations and no checkpoints.
    """
    needed = 4 * parameters * (8 if settings.precision == "fp64" else 4) * ranks
    there = available_memory(device)
    if there is not None and needed > there:
        raise UserError(
            f"model: its {parameters:,} parameters need {needed / GIB:,.1f} GiB for weights, gradients and Adam's "
            f"moments, but {there / GIB:,.1f} GiB of memory are available ({device})",
            "lower model.d_model, model.d_ff, model.layers or tokenizer.vocab_size; nmt train --plan counts parameters",
        )


def largest_fitting(measure: Callable[[int], int], least: int, most: int, limit: int) -> int:
    """Tokens of the largest micro-batch, from `least` to `most`, whose memory stays within `limit` bytes.

    `measure` runs a micro-batch of so many tokens and returns the bytes it took, or raises torch.OutOfMemoryError.
    Memory grows linearly with tokens, so the size follows from two small micro-batches, and a third one of that size
    verifies it. Returns `least` where nothing fits.
    """

    def taken(tokens: int) -> float:
        with suppress(torch.OutOfMemoryError):
            return measure(tokens)
        torch.cuda.empty_cache()  # only now, since the error held what was allocated
        return math.inf

    small = min(most, 4 * least)
    first, second = taken(least), taken(small)
    if small == most and second <= limit:
        return most
    if second <= limit:
        slope = max(1.0, (second - first) / (small - least))
        tokens = min(most, least + int((limit - first) / slope))
    else:
        tokens = int(RETRY * small)
    while tokens > least and taken(tokens) > limit:
        tokens = int(RETRY * tokens)
    return max(least, tokens)
