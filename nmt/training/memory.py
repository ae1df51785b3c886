"""How much of a device's memory training takes, and the micro-batch that fits it."""

from __future__ import annotations

import resource
from collections.abc import Callable

import torch

SHARE = 0.9  # of a GPU's memory that a micro-batch may lead to; the rest is for the allocator's gaps
RETRY = 0.9  # of a size that did not fit after all


def peak_memory(device: torch.device) -> int:
    """Most bytes of the GPU that PyTorch had at a time; on a CPU, of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def largest_fitting(measure: Callable[[int], int], least: int, most: int, limit: int) -> int:
    """Tokens of the largest micro-batch, from `least` to `most`, whose memory stays within `limit` bytes.

    `measure` runs one of so many tokens and gives the bytes it took, or raises torch.OutOfMemoryError. Memory grows
    linearly with tokens, so two small ones tell the size, and one of that size proves it.
    """
    small = min(most, 4 * least)
    first, second = measure(least), measure(small)
    if small == most and second <= limit:
        return most
    slope = max(1.0, (second - first) / max(1, small - least))
    tokens = max(least, min(most, least + int((limit - first) / slope)))
    while tokens > least:
        try:
            if measure(tokens) <= limit:
                break
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
        tokens = max(least, int(RETRY * tokens))
    return tokens
