"""The model of a folder as transformers 5.23 computes it, without a cache, from config.json and weights."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

Weights = Mapping[str, Tensor]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "silu": F.silu, "swish": F.silu, "gelu": F.gelu}


def logits(folder: Path, source: Tensor, target_in: Tensor) -> Tensor:
    """(batch, target length, vocabulary) of ids (batch, source length) and (batch, target length) with padding."""
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    weights, pad = load_file(folder / "model.safetensors"), config["pad_token_id"]
    shared = weights.get("model.shared.weight")
    tables = [weights.get(f"model.{side}.embed_tokens.weight", shared) for side in ("encoder", "decoder")]
    heads = config["encoder_attention_heads"]
    words = (source != pad)[:, None, None, :]
    memory = _stack(weights, config, "encoder", _embedded(tables[0], source, config), heads, words)
    causal = torch.ones(2 * [target_in.size(1)], dtype=torch.bool).tril()
    states = _stack(weights, config, "decoder", _embedded(tables[1], target_in, config), heads, causal, (memory, words))
    tied = config.get("tie_word_embeddings", True)
    softmax = tables[1] if tied else weights["lm_head.weight"]
    assert softmax is not None
    return F.linear(states, softmax) + weights.get("final_logits_bias", torch.zeros(1))


def _embedded(table: Tensor | None, ids: Tensor, config: Mapping[str, Any]) -> Tensor:
    assert table is not None
    length, width = ids.size(1), table.size(1)
    is_m2m = config["model_type"] == "m2m_100"  # whose positions begin after that of padding
    rates = 10000.0 ** -(torch.arange(0, width, 2, dtype=torch.float64) / (width - 2 * is_m2m))
    angles = (torch.arange(length) + 2 * is_m2m)[:, None] * rates
    return table[ids] * math.sqrt(width) + torch.cat((angles.sin(), angles.cos()), -1).float()


def _stack(
    weights: Weights,
    config: dict[str, Any],
    side: str,
    x: Tensor,
    heads: int,
    mask: Tensor,
    memory: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    pre, width, activation = config["model_type"] != "marian", x.size(-1), ACTIVATIONS[config["activation_function"]]

    def linear(name: str, x: Tensor) -> Tensor:
        return F.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def norm(name: str, x: Tensor) -> Tensor:
        return F.layer_norm(x, (width,), weights[f"{name}.weight"], weights[f"{name}.bias"])  # ε is 1e-5

    def attention(name: str, x: Tensor, others: Tensor, mask: Tensor) -> Tensor:
        query, key, value = (
            linear(f"{name}.{part}_proj", each).unflatten(-1, (heads, -1)).transpose(1, 2)
            for part, each in (("q", x), ("k", others), ("v", others))
        )
        mixed = F.scaled_dot_product_attention(query, key, value, mask)
        return linear(f"{name}.out_proj", mixed.transpose(1, 2).flatten(2))

    for index in range(config[f"{side}_layers"]):
        at = f"model.{side}.layers.{index}"
        for part in ("self_attn", "encoder_attn", "final") if memory else ("self_attn", "final"):
            y = norm(f"{at}.{part}_layer_norm", x) if pre else x
            if part == "final":
                y = linear(f"{at}.fc2", activation(linear(f"{at}.fc1", y)))
            else:
                y = attention(f"{at}.{part}", y, *(memory if memory and part == "encoder_attn" else (y, mask)))
            x = x + y if pre else norm(f"{at}.{part}_layer_norm", x + y)
    return norm(f"model.{side}.layer_norm", x) if pre else x
