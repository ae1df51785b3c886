"""`nmt train --plan`: what a run will need, from the recipe alone; neither data nor network, and nothing is trained.

Parameters and FLOPs are exact for the lengths assumed; memory counts what the layers keep for the backward pass
(benchmarks/RESULTS.md has the fit); time rests on a matrix product measured on the device for a moment.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch

from nmt.data.prepare import directory
from nmt.files import read_json
from nmt.model.transformer import Transformer, parameter_groups
from nmt.recipe import Model, Recipe
from nmt.training.loop import device_tokens
from nmt.training.loss import chunk_logits
from nmt.training.progress import clock

ASSUMED_LENGTH = 28  # subwords a side where no prepared data tells: about the mean of WMT14 English-German
EFFICIENCY = 0.5  # share of the device's matrix-product speed that a training update reaches


@dataclass(frozen=True)
class Plan:
    """Figures of a run."""

    parameters: dict[str, int]
    """By part of the model."""
    micro_batches: int
    """Per update, at most about this many."""
    flops_per_update: float
    """Forward and backward pass, multiplications and additions counted apart."""
    memory_bytes: float
    """Weights, gradients, Adam's moments, activations of a micro-batch and a chunk of logits."""
    checkpoint_bytes: float
    length: float
    """Subwords a side that FLOPs assume."""
    assumed: bool
    """Whether that length is assumed rather than taken from prepared data."""


def make_plan(recipe: Recipe, device: torch.device) -> Plan:
    """Computes what training the recipe on one device will need."""
    vocabulary = recipe.tokenizer.vocab_size
    with torch.device("meta"):  # shapes without memory
        model = Transformer(recipe.model, vocabulary, vocabulary)
    groups = parameter_groups(model)
    size = sum(groups.values())
    report = directory(recipe) / "report.json"
    known = read_json(report)["train"]["mean length in subwords"] if report.exists() else None
    length = float(known or ASSUMED_LENGTH)
    tokens = recipe.training.batch_tokens
    micro = min(device_tokens(recipe.training, device), tokens)
    activations = 4.0 * micro * kept_per_token(recipe.model)
    return Plan(
        parameters=groups,
        micro_batches=math.ceil(tokens / micro),
        flops_per_update=3.0 * tokens * forward_flops_per_token(recipe.model, vocabulary, length),
        memory_bytes=16.0 * size + activations + 4.0 * chunk_logits(device),
        checkpoint_bytes=12.0 * size,
        length=length,
        assumed=known is None,
    )


def forward_flops_per_token(model: Model, vocabulary: int, length: float) -> float:
    """FLOPs of a forward pass per pair of a source and a target token, both sides of `length` tokens.

    A matrix product of a token with n weights is 2n; attention's two products with s keys are 2·s·h·(d_k + d_v), of
    which the causal mask leaves half to do. The backward pass takes twice as much.
    """
    width_k, width_v = model.heads * model.key_width, model.heads * model.value_width
    projections = 2 * model.d_model * (2 * width_k + 2 * width_v)
    feed_forward = 2 * 2 * model.d_model * model.d_ff
    attention = 2 * length * (width_k + width_v)
    encoder = model.layers * (projections + feed_forward + attention)
    decoder = model.decoder_depth * (2 * projections + feed_forward + 1.5 * attention)
    return encoder + decoder + 2.0 * model.d_model * vocabulary


def kept_per_token(model: Model) -> float:
    """Numbers that a pair of a source and a target token leave for the backward pass (benchmarks/memory.py)."""
    return (
        model.layers * (11 * model.d_model + model.d_ff)
        + model.decoder_depth * (16 * model.d_model + model.d_ff)
        + 14 * model.d_model
    )


def plan_run(recipe: Recipe, device: torch.device) -> str:
    """The plan as a table for people."""
    plan, training = make_plan(recipe, device), recipe.training
    total = plan.flops_per_update * training.updates
    peak = measured_flops(device)
    speed = EFFICIENCY * peak
    length = f"{plan.length:g} subwords a side" + (" (assumed)" if plan.assumed else "")
    kept = training.keep_last + 1
    rows = [
        ("parameters", f"{sum(plan.parameters.values()):,}"),
        *((f"  {name}", f"{count:,}") for name, count in plan.parameters.items()),
        ("tokens per update", f"{training.batch_tokens:,} source and {training.batch_tokens:,} target at most"),
        ("sentences per update", f"about {training.batch_tokens / (plan.length + 1):,.0f}, at {length}"),
        ("micro-batches", f"about {plan.micro_batches} per update on {device}"),
        ("memory", f"about {_bytes(plan.memory_bytes)} beside PyTorch itself"),
        ("disk", f"{_bytes(plan.checkpoint_bytes)} a checkpoint, {_bytes(kept * plan.checkpoint_bytes)} for {kept}"),
        ("FLOPs", f"{plan.flops_per_update:.2e} per update, {total:.2e} for {training.updates:,} updates"),
        (
            "time",
            f"about {clock(total / speed)}, {plan.flops_per_update / speed:,.3g} s per update, "
            f"at {EFFICIENCY:.0%} of the {peak / 1e9:,.0f} GFLOP/s measured on {device} just now",
        ),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join([f"plan of {recipe.name}", *(f"{name:<{width}}  {value}" for name, value in rows)])


def measured_flops(device: torch.device) -> float:
    """FLOP/s of a matrix product of the size that training does, in single precision, over a fifth of a second."""
    rows = 8192 if device.type == "cuda" else 1024
    left, right = torch.randn(rows, 512, device=device), torch.randn(512, 2048, device=device)

    def products(count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            product = left @ right
        float(product[0, 0])  # waits for the device
        return time.perf_counter() - began

    products(3)
    count = max(1, int(0.2 / products(1)))
    return 2.0 * rows * 512 * 2048 * count / products(count)


def _bytes(count: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
