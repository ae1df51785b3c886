"""What a run will cost, as `nmt train --plan` estimates it, and what runs have cost, as `nmt score --runs` lists it.

A plan needs no data and no training: without prepared data, it assumes mean lengths and, for a parser, tree symbols.
Parameters and FLOPs are exact for these. Memory includes the activations kept for the backward pass
(benchmarks/memory.py). Time assumes half the matrix-multiplication throughput measured on the device.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nmt.checkpoint.reading import Bundle, survey
from nmt.compute.choice import device_name, factors_rounded, for_training, fp32_multiplier, product_dtype
from nmt.data.corpus import Ids
from nmt.data.data_report import mean_lengths, training_pairs
from nmt.data.folders import directory, look_up
from nmt.exchange.resolve import initial_bundle, resolve
from nmt.model.transformer import Transformer, parameter_groups
from nmt.parsing.linearization import load_tokenizer
from nmt.recipe import Model, Recipe, Training
from nmt.system.console import Console, clock, figure
from nmt.system.errors import UserError, printable
from nmt.training.batches import cpu_device_tokens
from nmt.training.optimizer import count_moments
from nmt.training.run_files import COST
from nmt.training.validation import Validation

# Source and target lengths assumed without prepared data: roughly the means of WMT14 English-German, and of the
# Treebank's section 23 (23.5 words and 18.3 constituents per sentence).
ASSUMED_LENGTHS = {"translate": (28.0, 28.0), "parse": (28.0, 60.0)}
ASSUMED_SYMBOLS = 57  # brackets of 26 labels, as in the Treebank and GUM, XX, and 4 special symbols
UPDATING = 0.85  # of training.minutes; the rest goes to validation
EFFICIENCY = 0.5  # training throughput relative to matrix multiplications; assumed, not measured, on GPUs


@dataclass(frozen=True)
class Plan:
    """Estimated size and cost of a run."""

    parameters: dict[str, int]  # counts by part of the model
    micro_batches: int  # approximate maximum per update and device
    sentences: float  # per update, limited by the longer side
    flops_per_update: float  # forward and backward; a multiply-add counts as two
    saved_bytes: float  # of a checkpoint's weights and moments
    memory_bytes: float  # weights, gradients, moments, activations and a chunk of logits, per GPU or of all CPU ranks
    vocabularies: tuple[int, int]  # sizes of source and target vocabulary
    lengths: tuple[float, float]  # mean source and target length in subwords or tree symbols
    assumed: bool  # whether lengths and tree symbols are assumed rather than taken from prepared data
    pairs: int | None  # for training, if prepared


def make_plan(recipe: Recipe, device: torch.device, devices: int = 1) -> Plan:
    """Estimate what training the recipe on `devices` devices requires."""
    initial = initial_bundle(recipe)
    # The folder of the data or, if it is not up to date, that of the same name
    current = look_up(recipe, initial.path if initial else None)[0]
    prepared = current or directory(recipe)
    lengths = mean_lengths(prepared)
    source, target = lengths or ASSUMED_LENGTHS[recipe.task.name]
    vocabulary = symbols = recipe.tokenizer.vocab_size
    if recipe.tokenizer.new_languages:  # whose subwords are counted once data is prepared, and at most these before
        added = recipe.tokenizer.new_vocab_size
        vocabulary = symbols = len(load_tokenizer(current).source) if current else vocabulary + added
    if recipe.task.has_trees:
        symbols = len(load_tokenizer(prepared).target) if lengths else ASSUMED_SYMBOLS
    with torch.device("meta"):  # shapes only, no memory
        model = Transformer(recipe.model, vocabulary, symbols, ([False] * vocabulary, [False] * symbols))
    parameters = parameter_groups(model)
    longer = max(source, target) + 1
    tokens = recipe.training.batch_tokens
    share = math.ceil(tokens / devices)
    at_most = cpu_device_tokens(devices) if device.type == "cpu" else share
    micro = min(recipe.training.device_tokens or at_most, share)
    activations = 4.0 * micro * kept_per_token(recipe.model, (source + 1) / longer, (target + 1) / longer)
    pair = np.array([source]), np.array([target])
    ranks = devices if device.type == "cpu" else 1  # that share weights and moments, and exchange gradients
    rows = for_training(device, torch.float32).chunk_rows(symbols)
    trained = sum(size for part, size in parameters.items() if part not in recipe.training.freeze)
    saved = 4.0 * (sum(parameters.values()) + count_moments(model, recipe.training))
    return Plan(
        parameters=parameters,
        micro_batches=math.ceil(share / micro),
        sentences=tokens / longer,
        flops_per_update=training_flops(recipe.model, symbols, *pair) * tokens / longer,
        memory_bytes=saved + 4.0 * (2 * ranks - 1) * trained + ranks * (activations + 4.0 * symbols * rows),
        saved_bytes=saved,
        vocabularies=(vocabulary, symbols),
        lengths=(source, target),
        assumed=lengths is None,
        pairs=training_pairs(prepared),
    )


def kept_per_token(model: Model, source: float = 1.0, target: float = 1.0) -> float:
    """Estimate the number of activation values saved for backward by `source` source and `target` target tokens.

    The numbers may be fractions; benchmarks/memory.py checks the estimate.
    """
    inner = model.d_ff if model.activation == "relu" else 2 * model.d_ff  # other activations also keep their input
    own, cross = 11 * model.d_model + inner, 5 * model.d_model  # per layer
    encoder, decoder = source * model.layers * own, target * model.decoder_depth * (own + cross)
    return encoder + decoder + (source + target) * 7 * model.d_model


def plan_run(recipe: Recipe, device: torch.device, devices: int = 1) -> str:
    """Format a run's plan as a table."""
    plan, training = make_plan(recipe, device, devices), recipe.training
    dtype = product_dtype(training.precision, device, recipe.model.d_model)
    peak, on_cpu = measured_flops(device, dtype), device.type == "cpu"
    by = "" if not on_cpu else " in bf16" if dtype == torch.bfloat16 else f" by {fp32_multiplier()}"
    at_work = 1 if on_cpu else devices  # workers share the CPU
    seconds = plan.flops_per_update / (EFFICIENCY * peak * at_work)
    several, each = ("processes", " in each process") if on_cpu else ("devices", " on each device")
    on = f"{devices} {several}, {device.type}" if devices > 1 else str(device)
    size = sum(plan.parameters.values())
    vocabulary, tokens, lengths = _sides(recipe, plan)
    assumed = " (assumed)" if plan.assumed else ""
    updates = training.updates
    if training.minutes is not None:
        updates = min(updates, max(1, int(UPDATING * 60 * training.minutes / seconds)))
    fitting = f", of which {updates:,} fit into training.minutes" if updates < training.updates else ""
    rows = {
        "vocabulary": vocabulary,
        "parameters": f"{size:,}{assumed if recipe.task.has_trees else ''}",
        **{f"  {name}": f"{count:,}" for name, count in plan.parameters.items()},
        "tokens per update": tokens,
        "sentences per update": f"about {plan.sentences:,.0f}, at {lengths}{assumed}",
        "micro-batches": f"about {plan.micro_batches} per update" + (each if devices > 1 else ""),
        "memory": f"about {_bytes(plan.memory_bytes)}{'' if on_cpu else ' per device'}, plus PyTorch itself",
        "disk": _disk(training, updates, updates * seconds, plan.saved_bytes),
        "FLOPs": f"{plan.flops_per_update:.2e} per update, {plan.flops_per_update * updates:.2e} for "
        f"{updates:,} updates",
        "time": f"about {clock(seconds * updates)}, {seconds:,.3g} s per update on {on}{fitting}, "
        f"at {EFFICIENCY:.0%} of the {peak / 1e9:,.0f} GFLOP/s measured just now{by}",
    }
    if plan.pairs:
        rows["epochs"] = f"about {updates * plan.sentences / plan.pairs:.3g} of {plan.pairs:,} pairs"
    if updates < 2 * training.warmup:
        shorter = f"try a fifth, {updates // 5:,}, or train longer"
        rows["warning"] = f"training.warmup is {training.warmup:,} of {updates:,} updates: {shorter}"
    width = max(map(len, rows))
    return "\n".join([f"plan of {recipe.name}", *(f"{name:<{width}}  {text}" for name, text in rows.items())])


def _disk(training: Training, updates: int, seconds: float, size: float) -> str:
    """Describe the space for the checkpoints of a run, each of `size` bytes; the last update writes one as well."""
    about, intervals = "", updates / (training.checkpoint_updates or updates)
    if training.checkpoint_minutes is not None and not training.checkpoint_updates:
        about, intervals = "about ", seconds / (60 * training.checkpoint_minutes)
    written, most = max(1, math.ceil(intervals)), training.keep_last + 1
    if written < most:
        return f"{_bytes(size)} per checkpoint, {_bytes(written * size)} for {about}{written}"
    kept = f"the newest {training.keep_last} and the best of {about}{written:,} are kept"
    return f"{_bytes(size)} per checkpoint, {_bytes(most * size)} at most: {kept}"


def _sides(recipe: Recipe, plan: Plan) -> tuple[str, str, str]:
    """Describe vocabulary, tokens per update and sentence lengths in the task's terms."""
    (subwords, symbols), (source, target) = plan.vocabularies, plan.lengths
    vocabulary = f"{subwords:,} subwords" + ("" if recipe.tokenizer.shared else " per side")
    most = recipe.training.batch_tokens
    tokens = f"{most:,} source and {most:,} target at most"
    if recipe.task.has_trees:
        vocabulary = f"{subwords:,} subwords in, {symbols:,} tree symbols out{' (assumed)' if plan.assumed else ''}"
        return vocabulary, tokens, f"{source:g} subwords in and {target:g} tree symbols out"
    return vocabulary, tokens, f"{source:g} subwords in and {target:g} out"


def _bytes(count: float) -> str:
    """Format a byte count with a decimal unit."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


# --- FLOPs: of updates, counted, and of devices, known or measured ---------------------------------------

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
    encoder = source * (2 * half + feed_forward) + width * float((lengths[0] ** 2).sum())
    own = target * (2 * half + feed_forward) + width * float((lengths[1] * (lengths[1] + 1)).sum() / 2)
    cross = half * (target + source) + width * float((lengths[0] * lengths[1]).sum())
    softmax = target * model.d_model * vocabulary
    return 3.0 * 2.0 * (model.layers * encoder + model.decoder_depth * (own + cross) + softmax)


def measured_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Return the FLOP/s of training-sized matrix multiplications in `dtype`, measured over 0.2 s."""
    rows = 8192 if device.type == "cuda" else 1024
    x, weight = (torch.randn(size, 512, device=device, dtype=dtype) for size in (rows, 2048))
    linear = for_training(device, dtype).linear

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


# --- the table of runs ------------------------------------------------------------------------------------

UNKNOWN = "–"
COSTS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "FLOPs by the paper": ("estimated_flops", "{:.1e}".format),
    "FLOPs counted": ("flops", "{:.1e}".format),
    "time": ("seconds", clock),
    "target tokens": ("tokens", "{:,}".format),
}


@dataclass(frozen=True)
class RunSummary:
    """Dev score and cost of a run: one row of the table."""

    path: Path
    bundle: Bundle  # bundle that commands use by default
    updates: int
    score: float | None  # the bundle's dev score, computed as in training
    signature: str | None
    cost: dict[str, Any]  # of the whole run, keyed by `COST`; empty if the bundle lacks it

    def as_dict(self) -> dict[str, Any]:
        """Return the values for --json."""
        score = {"metric": self.bundle.task.metric, "score": self.score, "signature": self.signature}
        cost = {name: self.cost.get(name) for name in COST}
        return {"model": str(self.path), "bundle": str(self.bundle.path), "dev": score, "updates": self.updates, **cost}

    def cells(self) -> dict[str, str]:
        """Return the row's cells, keyed by column heading."""
        costs = {
            heading: UNKNOWN if (value := self.cost.get(key)) is None else write(value)
            for heading, (key, write) in COSTS.items()
        }
        return {
            "model": str(self.path),
            "dev score": UNKNOWN if self.score is None else f"{self.bundle.task.label} {figure(self.score)}",
            **costs,
            "updates": f"{self.updates:,}",
            "devices": ", ".join(self.cost.get("devices", ())) or UNKNOWN,
        }


def summarise(path: Path, device: torch.device, console: Console) -> RunSummary:
    """Summarise a run, given its directory or one of its bundles.

    Score a bundle without a dev score now, if its data is prepared. Raise UserError if `path` holds no model.
    """
    bundle, note = resolve(path)
    console.say(note)
    newest = next(reversed(survey(path)[0]), bundle)
    score, signature = bundle.dev_score, bundle.signatures.get(bundle.task.metric)
    if score is None:
        try:
            validation = Validation.of(bundle)
        except UserError as error:
            console.say(f"no dev score: {error.message}")
        else:
            dev = validation(bundle.model(device))
            score, signature = dev.scores[bundle.task.metric], dev.signatures[bundle.task.metric]
    return RunSummary(path, bundle, newest.step, score, signature, newest.cost)


def table(runs: Sequence[RunSummary], width: int = 0) -> str:
    """Format runs as a table with the columns of the paper's Table 2, followed by their dev scores' signatures.

    If a row is wider than `width`, unless that is 0, each run's figures get lines of their own.
    """
    cells = [run.cells() for run in runs]
    rows = [list(cells[0]), *(list(row.values()) for row in cells)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = list[str]()
    for model, *figures, devices in rows:
        aligned = "  ".join(cell.rjust(width) for cell, width in zip(figures, widths[1:-1], strict=True))
        lines.append(f"{model:{widths[0]}}  {aligned}  {devices}")
    if 0 < width < max(map(len, lines)):
        heads, lines = max(map(len, rows[0])), []
        for (_, model), *named in (row.items() for row in cells):
            lines += [model, *(f"  {name:{heads}}  {cell}" for name, cell in named)]
    signatures = {f"dev {run.bundle.task.label}: {run.signature}": None for run in runs if run.signature}
    return "\n".join(map(printable, (*lines, *signatures)))
