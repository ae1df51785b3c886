"""Log-probabilities of given symbols, without storing all logits.

Logits, tokens × vocabulary, would be the largest tensor by far. They are computed chunk by chunk.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

CHUNK_LOGITS = {"cpu": 1 << 20, "cuda": 1 << 27}  # 4 MB fit in a core's cache, 512 MB keep a GPU busy


def chunk_logits(device: torch.device) -> int:
    """How many logits are held at a time."""
    return CHUNK_LOGITS[device.type]


def log_probabilities(states: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None = None) -> Tensor:
    """(tokens,) log-probability of each of targets (tokens,) over the whole vocabulary, in nats, at least fp32.

    Logits are states (tokens, d_model) · weight (vocabulary, d_model)ᵀ + bias (vocabulary,). Not meant for training.
    """
    rows = max(1, chunk_logits(states.device) // weight.size(0))
    wide = torch.promote_types(states.dtype, torch.float32)
    return torch.cat(
        [
            -F.cross_entropy(F.linear(part, weight, bias).to(wide), answers, reduction="none")
            for part, answers in zip(states.split(rows), targets.split(rows), strict=True)
        ]
    )


def perplexity(nll: float, tokens: float) -> float:
    """Exponential of the negative log-likelihood in nats per token."""
    return math.exp(min(nll / tokens, 700.0))  # e^700 is about the largest float
