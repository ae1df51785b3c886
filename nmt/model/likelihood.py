"""How probable given symbols are, without ever holding their logits.

Logits are tokens × vocabulary, the largest tensor of all by far; they exist a chunk at a time.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

CHUNK_LOGITS = {"cpu": 1 << 22, "cuda": 1 << 27}  # 16 MB stay in a CPU's cache, 512 MB fill a GPU


def chunk_logits(device: torch.device) -> int:
    """How many logits are alive at a time."""
    return CHUNK_LOGITS[device.type]


def log_probabilities(states: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """(tokens,) log-probability of each of targets (tokens,) over the whole vocabulary, in nats, at least fp32.

    Logits are states (tokens, d_model) · weight (vocabulary, d_model)ᵀ. Not made to be differentiated.
    """
    rows = max(1, chunk_logits(states.device) // weight.size(0))
    wide = torch.promote_types(states.dtype, torch.float32)
    return torch.cat(
        [
            -F.cross_entropy(F.linear(part, weight).to(wide), answers, reduction="none")
            for part, answers in zip(states.split(rows), targets.split(rows), strict=True)
        ]
    )


def perplexity(nll: float, tokens: float) -> float:
    """Exponential of the negative log-likelihood in nats per token."""
    return math.exp(min(nll / tokens, 700.0))  # e^700 is about the largest float
