"""What a run will need and what it has cost.

`nmt train --plan` computes from the recipe alone, without data or network, and trains nothing. Parameters and FLOPs are
exact for the lengths and, of a parser, the labels assumed; memory counts what the layers keep for the backward pass
(benchmarks/RESULTS.md has the fit); time rests on a matrix product measured on the device for a moment.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nmt.checkpoint.reading import Bundle, best, survey
from nmt.data.corpus import ABSENT
from nmt.data.prepare import directory, mean_lengths
from nmt.exchange.resolve import resolve
from nmt.model.functional import CHUNK_LOGITS
from nmt.model.transformer import Transformer, parameter_groups
from nmt.parsing.linearization import load_tokenizer
from nmt.recipe import CPU_DEVICE_TOKENS, Model, Recipe
from nmt.system.console import Console, clock
from nmt.system.errors import UserError, printable
from nmt.training.arithmetic import measured_flops, product_dtype, training_flops
from nmt.training.run_files import PAGE
from nmt.training.state import COST, RunState
from nmt.training.validation import Validation

# Subwords of a source and symbols of a target where no prepared data tells: about the means of WMT14 English-German,
# and of the Treebank's section 23, which has 23.5 words and 18.3 constituents a sentence.
ASSUMED_LENGTHS = {"translate": (28.0, 28.0), "parse": (28.0, 60.0), "language_model": (ABSENT, 28.0)}
ASSUMED_SYMBOLS = 57  # of trees: brackets of 26 labels, as the Treebank and GUM have them, and XX
EFFICIENCY = 0.5  # share of the device's matrix-product speed that a training update reaches; of GPUs assumed
HOST_SECONDS = 8e-4  # to launch the kernels of a layer, forward and backward, for a micro-batch; assumed
LINK = 100e9  # bytes per second that a GPU sends while gradients are added up; assumed


@dataclass(frozen=True)
class Plan:
    """Figures of a run."""

    devices: int
    parameters: dict[str, int]
    """By part of the model."""
    micro_batches: int
    """Per update and device, at most about this many."""
    sentences: float
    """Per update, which the longer side of the pairs fills first; lines, of a language model."""
    flops_per_update: float
    """Forward and backward pass, multiplications and additions counted apart."""
    memory_bytes: float
    """Of a device: weights, gradients, Adam's moments, activations of a micro-batch and a chunk of logits."""
    checkpoint_bytes: float
    host_seconds: float
    """Per update, to launch the kernels of a GPU; assumed."""
    vocabularies: tuple[int, int]
    """Entries of source and target."""
    lengths: tuple[float, float]
    """Subwords of a source, ABSENT where there is none, and subwords or symbols of a target, that FLOPs and memory rest
    on."""
    assumed: bool
    """Whether those lengths, and a parser's symbols, are assumed rather than taken from prepared data."""

    def compute_seconds(self, peak: float) -> float:
        """Of an update on GPUs that are never kept waiting, where `peak` is their FLOP/s in matrix products."""
        return self.flops_per_update / (EFFICIENCY * peak * self.devices)

    @property
    def exchange_seconds(self) -> float:
        """To add up the gradients of all devices: each sends 4 bytes a parameter nearly twice, as rings do."""
        return 2 * (1 - 1 / self.devices) * 4.0 * sum(self.parameters.values()) / LINK

    def gpu_seconds(self, peak: float) -> float:
        """Of an update on GPUs. Gradients travel beside the last backward pass, two thirds of its micro-batch."""
        pace = max(self.compute_seconds(peak), self.host_seconds)
        return pace + max(0.0, self.exchange_seconds - 2 / 3 * pace / self.micro_batches)

    def busy_factor(self, peak: float) -> float:
        """How many times larger an update must be to hide the host's time and the exchange of gradients."""
        return max(self.host_seconds, 1.5 * self.exchange_seconds) / self.compute_seconds(peak)


def make_plan(recipe: Recipe, device: torch.device, devices: int = 1) -> Plan:
    """Computes what training the recipe on so many devices will need."""
    prepared = directory(recipe)
    lengths = mean_lengths(prepared)
    if lengths and (lengths[0] == ABSENT) == recipe.task.has_source:
        lengths = None  # what is there was prepared for pairs, or for a language model, and this is not
    source, target = lengths or ASSUMED_LENGTHS[recipe.task.name]
    vocabulary = symbols = recipe.tokenizer.vocab_size
    if recipe.task.has_trees:
        symbols = len(load_tokenizer(prepared).target) if lengths else ASSUMED_SYMBOLS
    with torch.device("meta"):  # shapes without memory
        model = Transformer.of(recipe, vocabulary, symbols, ([False] * vocabulary, [False] * symbols))
    groups = parameter_groups(model)
    size = sum(groups.values())
    longer = max(source, target) + 1
    tokens = recipe.training.batch_tokens
    share = math.ceil(tokens / devices)
    at_most = CPU_DEVICE_TOKENS if device.type == "cpu" else share
    micro = min(recipe.training.device_tokens or at_most, share)
    activations = 4.0 * micro * kept_per_token(recipe.model, (source + 1) / longer, (target + 1) / longer)
    pair = np.array([source]), np.array([target])
    micro_batches = math.ceil(share / micro)
    return Plan(
        devices=devices,
        parameters=groups,
        micro_batches=micro_batches,
        sentences=tokens / longer,
        flops_per_update=training_flops(recipe.model, symbols, *pair) * tokens / longer,
        memory_bytes=16.0 * size + activations + 4.0 * CHUNK_LOGITS[device.type],
        checkpoint_bytes=12.0 * size,
        host_seconds=HOST_SECONDS * micro_batches * len([*model.encoder, *model.decoder]),
        vocabularies=(vocabulary, symbols),
        lengths=(source, target),
        assumed=lengths is None,
    )


def kept_per_token(model: Model, source: float = 1.0, target: float = 1.0) -> float:
    """Numbers that so many source and target tokens leave for the backward pass (benchmarks/memory.py)."""
    inner = model.d_ff if model.activation == "relu" else 2 * model.d_ff  # others need what they were applied to
    own, cross = 11 * model.d_model + inner, 5 * model.d_model if source else 0  # of a layer
    return (
        source * model.layers * own
        + target * model.decoder_depth * (own + cross)
        + (source + target) * 7 * model.d_model
    )


def plan_run(recipe: Recipe, device: torch.device, devices: int = 1) -> str:
    """The plan as a table for people."""
    plan, training = make_plan(recipe, device, devices), recipe.training
    peak = measured_flops(device, product_dtype(training.precision, device))
    seconds = plan.gpu_seconds(peak)
    if device.type == "cpu":  # which its workers share
        seconds = plan.flops_per_update / (EFFICIENCY * peak)
    assumed = " (assumed)" if plan.assumed else ""
    with_symbols = assumed if recipe.task.has_trees else ""
    subwords, symbols = plan.vocabularies
    lengths = "{:g} subwords in and {:g} out".format(*plan.lengths)
    vocabulary = f"{subwords:,} subwords" + ("" if recipe.tokenizer.shared else " a side")
    tokens = f"{training.batch_tokens:,} source and {training.batch_tokens:,} target at most"
    if not recipe.task.has_source:
        lengths, tokens = f"{plan.lengths[1]:g} subwords each", f"{training.batch_tokens:,} at most"
    if recipe.task.has_trees:
        lengths = "{:g} subwords in and {:g} tree symbols out".format(*plan.lengths)
        vocabulary = f"{subwords:,} subwords in, {symbols:,} tree symbols out{with_symbols}"
    on = f"{devices} devices, {device.type}" if devices > 1 else str(device)
    kept = training.keep_last + 1
    rows = [
        ("vocabulary", vocabulary),
        ("parameters", f"{sum(plan.parameters.values()):,}{with_symbols}"),
        *((f"  {name}", f"{count:,}") for name, count in plan.parameters.items()),
        ("tokens per update", tokens),
        ("sentences per update", f"about {plan.sentences:,.0f}, at {lengths}{assumed}"),
        ("micro-batches", f"about {plan.micro_batches} per update" + (" on each device" if devices > 1 else "")),
        ("memory", f"about {_bytes(plan.memory_bytes)} a device, beside PyTorch itself"),
        ("disk", f"{_bytes(plan.checkpoint_bytes)} a checkpoint, {_bytes(kept * plan.checkpoint_bytes)} for {kept}"),
        (
            "FLOPs",
            f"{plan.flops_per_update:.2e} per update, {plan.flops_per_update * training.updates:.2e} for "
            f"{training.updates:,} updates",
        ),
        (
            "time",
            f"about {clock(seconds * training.updates)}, {seconds:,.3g} s per update on {on}, "
            f"at {EFFICIENCY:.0%} of the {peak / 1e9:,.0f} GFLOP/s measured just now",
        ),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join([f"plan of {recipe.name}", *(f"{name:<{width}}  {value}" for name, value in rows)])


def too_many_gpus(recipe: Recipe, devices: int, peak: float) -> str | None:
    """Return a line that says so if less than half of the GPUs would be of use, at `peak` FLOP/s each."""
    plan = make_plan(recipe, torch.device("cuda"), devices)
    useful = make_plan(recipe, torch.device("cuda")).gpu_seconds(peak) / plan.gpu_seconds(peak)
    if useful >= devices / 2:
        return None
    tokens = math.ceil(plan.busy_factor(peak) * recipe.training.batch_tokens / 5000) * 5000
    return (
        f"{devices} GPUs: by the plan's model an update of {recipe.training.batch_tokens:,} tokens keeps about "
        f"{useful:.1f} of them busy; training.batch_tokens={tokens} would keep all busy, or use about "
        f"{max(1, round(useful))} GPUs"
    )


def _bytes(count: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


UNKNOWN = "–"


def summary(state: RunState, out: Path, ending: str, following: str) -> list[str]:
    """The last lines of `nmt train`: how the run in `out` ended, its best checkpoint, its cost, and what to do next."""
    found, _ = survey(out)
    bundle = best(found) or found[-1]
    scored = "" if bundle.dev_score is None else f"dev {bundle.task.label} {bundle.dev_score:.2f}, "
    rows = {
        "checkpoint": f"{scored}update {bundle.step:,}: {bundle.path}",
        "training cost": f"{state.flops:.2e} FLOPs counted exactly, {state.tokens:,} target tokens",
        "by the paper": _estimate(state),
        "devices": ", ".join(state.devices),
        "run": str(out),
        **({"report": str(page)} if (page := out / PAGE).exists() else {}),
        "next": following,
    }
    return [f"finished: {ending}", *(f"  {name:14} {text}" for name, text in rows.items())]


def _estimate(state: RunState) -> str:
    """The cost of training as section 6.1 of the paper estimates it."""
    if state.estimated_flops is None:
        return "not known"
    sustained = state.estimated_flops / state.device_seconds / 1e12
    seconds = f"{state.device_seconds:,.0f} device seconds"
    return f"{state.estimated_flops:.2e} FLOPs: {seconds} × {sustained:.3g} TFLOP/s in fp32"


@dataclass(frozen=True)
class RunSummary:
    """Dev score and cost of a run: a row of the table."""

    path: Path
    bundle: Bundle
    """The bundle that a command would use"""
    updates: int
    score: float | None
    """Of the bundle on the development set, as in training"""
    signature: str | None
    cost: dict[str, Any]
    """Of the whole run; see `COST`. Empty where the bundle does not have it"""

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        score = {"metric": self.bundle.task.metric, "score": self.score, "signature": self.signature}
        cost = {name: self.cost.get(name) for name in COST}
        return {"model": str(self.path), "bundle": str(self.bundle.path), "dev": score, "updates": self.updates, **cost}

    def cells(self) -> list[str]:
        """A text for each column of `HEADER`."""
        cost = {name: value for name, value in self.cost.items() if value is not None}
        return [
            str(self.path),
            UNKNOWN if self.score is None else f"{self.bundle.task.label} {self.score:.2f}",
            f"{cost['estimated_flops']:.1e}" if "estimated_flops" in cost else UNKNOWN,
            f"{cost['flops']:.1e}" if "flops" in cost else UNKNOWN,
            clock(cost["seconds"]) if "seconds" in cost else UNKNOWN,
            f"{cost['tokens']:,}" if "tokens" in cost else UNKNOWN,
            f"{self.updates:,}",
            ", ".join(cost.get("devices", ())) or UNKNOWN,
        ]


HEADER = ["model", "dev score", "FLOPs by the paper", "FLOPs counted", "time", "target tokens", "updates", "devices"]


def summarise(path: Path, device: torch.device, console: Console) -> RunSummary:
    """Reads the summary of a run from its directory or one of its bundles.

    A bundle without a dev score is scored here if its data is prepared. Raises UserError where there is no such model.
    """
    bundle, note = resolve(path)
    console.say(note)
    newest = next(reversed(survey(path)[0]), bundle)
    score, signature = bundle.dev_score, bundle.info.get("signature")
    if score is None:
        try:
            validation = Validation.of(bundle)
        except UserError as error:
            console.say(f"no dev score: {error.message}")
        else:
            dev = validation(bundle.model(device))
            score, signature = dev.score, dev.signature
    return RunSummary(path, bundle, newest.step, score, signature, newest.cost)


def table(runs: Sequence[RunSummary]) -> str:
    """The columns of Table 2, aligned, and below them how the dev scores were computed."""
    rows = [HEADER, *(run.cells() for run in runs)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADER))]
    lines = []
    for row in rows:
        model, *figures, devices = row
        cells = [model.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(figures, widths[1:], strict=False))]
        lines.append("  ".join([*cells, devices]))
    signatures = {f"dev {run.bundle.task.label}: {run.signature}": None for run in runs if run.signature}
    return "\n".join(map(printable, (*lines, *signatures)))
