"""What a run will cost, as `nmt train --plan` estimates it.

A plan needs no data and no training: without prepared data, it assumes mean lengths and, for a parser, tree symbols.
Parameters and FLOPs are exact for these. Memory includes the activations kept for the backward pass
(benchmarks/memory.py). Time assumes half the matrix-multiplication throughput measured on the device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from nmt.compute.choice import ROUNDED, for_training, fp32_multiplier, training_precision
from nmt.data.corpus import TARGET_WORDS
from nmt.data.data_report import mean_lengths, training_figures
from nmt.data.folders import directory, look_up
from nmt.exchange.resolve import initial_bundle
from nmt.model.transformer import Transformer, parameter_groups
from nmt.parsing.linearization import load_tokenizer
from nmt.recipe import Model, Recipe, Training
from nmt.system.console import clock
from nmt.system.errors import counted
from nmt.training.batches import cpu_device_tokens
from nmt.training.flops import measured_flops, training_flops
from nmt.training.forecast import Amount, forecast_before, known_curves, tells
from nmt.training.optimizer import count_moments

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
    words: int | None  # in the targets of these, if counted


def make_plan(recipe: Recipe, device: torch.device, devices: int = 1) -> Plan:
    """Estimate what training the recipe on `devices` devices requires."""
    training = recipe.training
    on_cpu = device.type == "cpu"
    initial = initial_bundle(recipe)
    # The folder of the data or, if it is not up to date, that of the same name
    current, _ = look_up(recipe, initial.tokenizer() if initial else None)
    prepared = current or directory(recipe)
    figures = training_figures(prepared)
    lengths = mean_lengths(prepared)
    source, target = lengths or ASSUMED_LENGTHS[recipe.task.name]
    vocabulary = recipe.tokenizer.vocab_size
    if recipe.tokenizer.new_languages and current:
        vocabulary = len(load_tokenizer(current).source)
    elif recipe.tokenizer.new_languages:  # whose subwords are counted once data is prepared, and at most these before
        vocabulary += recipe.tokenizer.new_vocab_size
    symbols = vocabulary
    if recipe.task.has_trees:
        symbols = len(load_tokenizer(prepared).target) if lengths else ASSUMED_SYMBOLS
    with torch.device("meta"):  # shapes only, no memory
        starts = [False] * vocabulary, [False] * symbols  # for positions: words; any values will do
        model = Transformer(recipe.model, vocabulary, symbols, starts)
    parameters = parameter_groups(model)

    share = math.ceil(training.batch_tokens / devices)
    at_most = cpu_device_tokens(devices) if on_cpu else share
    micro = min(training.device_tokens or at_most, share)
    longer = max(source, target) + 1
    sentences = training.batch_tokens / longer
    flops = training_flops(recipe.model, symbols, np.array([source]), np.array([target]))

    activations = 4.0 * micro * kept_per_token(recipe.model, (source + 1) / longer, (target + 1) / longer)
    logits = 4.0 * symbols * for_training(device, torch.float32).chunk_rows(symbols)
    saved = 4.0 * (sum(parameters.values()) + count_moments(model, training))
    trained = sum(size for part, size in parameters.items() if part not in training.freeze)
    ranks = devices if on_cpu else 1  # that share weights and moments
    # Each rank has gradients, and all but one have a second copy, to exchange them.
    gradients = 4.0 * (2 * ranks - 1) * trained
    return Plan(
        parameters=parameters,
        micro_batches=math.ceil(share / micro),
        sentences=sentences,
        flops_per_update=flops * training.batch_tokens / longer,
        memory_bytes=saved + gradients + ranks * (activations + logits),
        saved_bytes=saved,
        vocabularies=(vocabulary, symbols),
        lengths=(source, target),
        assumed=lengths is None,
        pairs=figures.get("kept"),
        words=figures.get(TARGET_WORDS),
    )


def kept_per_token(model: Model, source: float = 1.0, target: float = 1.0) -> float:
    """Estimate the number of activation values saved for backward by `source` source and `target` target tokens.

    The numbers may be fractions; benchmarks/memory.py checks the estimate.
    """
    inner = model.d_ff if model.activation == "relu" else 2 * model.d_ff  # other activations also keep their input
    own = 11 * model.d_model + inner  # per layer, as `cross` is
    cross = 5 * model.d_model
    encoder = source * model.layers * own
    decoder = target * model.decoder_depth * (own + cross)
    return encoder + decoder + (source + target) * 7 * model.d_model


def plan_run(recipe: Recipe, device: torch.device, devices: int = 1) -> str:
    """Format a run's plan as a table."""
    plan = make_plan(recipe, device, devices)
    training = recipe.training
    seconds, measured = _update_seconds(plan, recipe, device, devices)
    updates = training.updates
    if training.minutes is not None:
        fitting = int(UPDATING * 60 * training.minutes / seconds)
        updates = min(updates, max(1, fitting))
    on_cpu = device.type == "cpu"
    each = ""
    on = str(device)
    if devices > 1 and on_cpu:
        each = " in each process"
        on = f"{devices} processes, {device.type}"
    elif devices > 1:
        each = " on each device"
        on = f"{devices} devices, {device.type}"

    rows = _sizes(plan, recipe)
    rows["micro-batches"] = f"about {plan.micro_batches} per update{each}"
    per_device = "" if on_cpu else " per device"
    rows["memory"] = f"about {_bytes(plan.memory_bytes)}{per_device}, plus PyTorch itself"
    rows["disk"] = _disk(training, updates, updates * seconds, plan.saved_bytes)
    total = f"{plan.flops_per_update * updates:.2e} for {counted(updates, 'update')}"
    rows["FLOPs"] = f"{plan.flops_per_update:.2e} per update, {total}"
    rows["time"] = f"about {clock(seconds * updates)}, {seconds:,.3g} s per update on {on}"
    if updates < training.updates:
        rows["time"] += f", of which {updates:,} fit into training.minutes"
    rows["time"] += f", at {EFFICIENCY:.0%} of {measured}"
    if plan.pairs:
        rows["epochs"] = f"about {updates * plan.sentences / plan.pairs:.3g} of {plan.pairs:,} pairs"
    if tells(recipe) and (plan.words or not plan.pairs):  # data that an older nmt has prepared has no words counted
        target = plan.lengths[1]
        rows["dev chrF2"] = _prospect(plan, updates * plan.sentences * (target + 1))
    if not training.is_timed and updates < 2 * training.warmup:
        shorter = f"try a tenth, {max(1, updates // 10):,}, or train longer"
        rows["warning"] = f"training.warmup is {training.warmup:,} of {counted(updates, 'update')}: {shorter}"
    width = max(map(len, rows))
    return "\n".join([f"plan of {recipe.name}", *(f"{name:<{width}}  {text}" for name, text in rows.items())])


def _update_seconds(plan: Plan, recipe: Recipe, device: torch.device, devices: int) -> tuple[float, str]:
    """Estimate the seconds of an update; return them, and say the speed of products from which they follow."""
    precision = training_precision(recipe.training.precision, device, recipe.model.d_model)
    peak = measured_flops(device, precision)
    measured = f"the {peak / 1e9:,.0f} GFLOP/s measured just now"
    at_work = devices
    if device.type == "cpu":
        at_work = 1  # workers share the CPU
        measured += f" in {precision}" if precision in ROUNDED else f" by {fp32_multiplier()}"
    return plan.flops_per_update / (EFFICIENCY * peak * at_work), measured


def _sizes(plan: Plan, recipe: Recipe) -> dict[str, str]:
    """Return the rows of a plan about the model and its updates, whatever trains it."""
    assumed = " (assumed)" if plan.assumed else ""
    subwords, symbols = plan.vocabularies
    source, target = plan.lengths
    vocabulary = f"{subwords:,} subwords" if recipe.tokenizer.shared else f"{subwords:,} subwords per side"
    lengths = f"{source:g} subwords in and {target:g} out"
    size = f"{sum(plan.parameters.values()):,}"
    if recipe.task.has_trees:
        vocabulary = f"{subwords:,} subwords in, {symbols:,} tree symbols out{assumed}"
        lengths = f"{source:g} subwords in and {target:g} tree symbols out"
        size += assumed

    rows = {"vocabulary": vocabulary, "parameters": size}
    for part, count in plan.parameters.items():
        rows[f"  {part}"] = f"{count:,}"
    tokens = recipe.training.batch_tokens
    rows["tokens per update"] = f"{tokens:,} source and {tokens:,} target at most"
    rows["sentences per update"] = f"about {plan.sentences:,.0f}, at {lengths}{assumed}"
    return rows


def _prospect(plan: Plan, tokens: float) -> str:
    """Say which dev score to expect after so many target tokens, and what twice as many and twice the pairs add."""
    if not plan.words:
        return "forecast once nmt preprocess has prepared the data"
    curves = known_curves()
    amount = Amount(plan.words, tokens)
    found = forecast_before(amount, curves)
    longer = forecast_before(amount._replace(tokens=2 * tokens), curves)
    more = forecast_before(amount._replace(words=2 * amount.words), curves)
    gains = [f"{other.chrf - found.chrf:+.0f}" for other in (longer, more)]
    return f"{found}; {gains[0]} in twice the time, {gains[1]} with twice the pairs"


def _disk(training: Training, updates: int, seconds: float, size: float) -> str:
    """Describe the space for the checkpoints of a run, each of `size` bytes; the last update writes one as well."""
    about = ""
    intervals = updates / (training.checkpoint_updates or updates)
    if training.checkpoint_minutes is not None and not training.checkpoint_updates:
        about = "about "
        intervals = seconds / (60 * training.checkpoint_minutes)
    written = max(1, math.ceil(intervals))
    most = training.keep_last + 1
    if written < most:
        return f"{_bytes(size)} per checkpoint, {_bytes(written * size)} for {about}{written}"
    kept = f"the newest {training.keep_last} and the best of {about}{written:,} are kept"
    return f"{_bytes(size)} per checkpoint, {_bytes(most * size)} at most: {kept}"


def _bytes(count: float) -> str:
    """Format a byte count with a decimal unit."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
