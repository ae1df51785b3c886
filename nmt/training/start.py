"""Starts a run in a directory, or resumes the one that it holds: puts recipe, data, model and trainer together."""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import torch

from nmt import bundle as bundles
from nmt.bundle import Bundle
from nmt.console import Console
from nmt.data.corpus import Corpus
from nmt.data.epochs import EpochPlans, Mixture
from nmt.data.prepare import directory, fingerprint_of, measure_lengths, set_sizes
from nmt.device import Place, available_memory
from nmt.errors import UserError
from nmt.files import wait_for
from nmt.model.transformer import Transformer
from nmt.recipe import Recipe, Training
from nmt.text.sentences import TrainedLengths
from nmt.text.tokenizer import Tokenizer
from nmt.training.checkpoints import Checkpoints
from nmt.training.distributed import Group
from nmt.training.embeddings import use_embeddings
from nmt.training.flops import measured_flops
from nmt.training.loss import Objective, compile_parts
from nmt.training.optimizer import Optimizer
from nmt.training.plan import too_many_gpus
from nmt.training.precision import product_dtype, set_precision
from nmt.training.reporting import Reporting
from nmt.training.resume import Start, open_directory, restore, restore_state
from nmt.training.state import RunState
from nmt.training.trainer import Run, Trainer
from nmt.training.validation import Validation

GIB = 2**30


def train(
    recipe: Recipe,
    out: Path,
    console: Console,
    device: torch.device,
    threads: int,
    place: Place,
    base: Recipe | None = None,
) -> None:
    """Trains into `out`, or resumes the run that `out` holds, as one process of a group.

    `base` is the recipe that `recipe` extends, if it extends one. Raises UserError, Interrupted once everything is
    saved, or GroupError where the other processes are gone.
    """
    patience = recipe.training.timeout_minutes
    with ExitStack() as held, Group(place, patience) as group:
        found = group.first(lambda: open_directory(recipe, out, console, threads, held).to_json())
        start = Start.from_json(out, found)
        if start.checkpoint is not None:
            wait_for(start.checkpoint.path / bundles.MANIFEST, 60 * patience, group.check)
        group.connect(device)
        recipe = bundles.with_model_of(recipe, start.checkpoint or bundles.initial_bundle(recipe))
        if group.leads and group.size > 1 and device.type == "cuda":
            peak = measured_flops(device, product_dtype(recipe.training.precision, device))
            if (advice := too_many_gpus(recipe, group.size, peak)) is not None:
                console.say(advice)
        set_up(recipe, out, console, device, group, start, base).train()


def set_up(
    recipe: Recipe, out: Path, console: Console, device: torch.device, group: Group, start: Start, base: Recipe | None
) -> Run:
    """Builds a run on prepared data: with the weights of its checkpoint, of training.init_from, or random ones.

    Raises UserError where the model does not fit the memory, the checkpoint or the bundle, and where the ranks differ.
    """
    settings, prepared, checkpoint = recipe.training, directory(recipe), start.checkpoint
    tokenizer, data = Tokenizer.load(prepared), str(fingerprint_of(prepared))
    model = _untrained(recipe, tokenizer, device, group)
    optimizer, state = Optimizer(model, recipe.model.d_model, settings), RunState(step=0, epoch=0, offset=0)
    if checkpoint is not None:
        state = restore(checkpoint, recipe, tokenizer, model, optimizer, console)
    elif (initial := bundles.initial_bundle(recipe)) is not None:
        if settings.init_state:
            before = restore_state(initial, model, optimizer)
            state = RunState(before.step, epoch=0, offset=0, skipped=before.skipped)  # of other data
        else:
            bundles.load_weights(model, initial.weights(), initial.path)
        console.say(f"{'weights and moments' if settings.init_state else 'weights'}: from {initial.path}")
    use_embeddings(model, tokenizer, settings, console, fresh=checkpoint is None)
    if group.size > 1:
        group.check_same(_identity(state, data, model))  # before DistributedDataParallel copies the weights of rank 0
    corpus, dev = Corpus(prepared / "train.arrow"), Corpus(prepared / "valid.arrow")
    validation = Validation(dev, tokenizer, recipe, group) if len(dev) else None
    mixture = Mixture(set_sizes(prepared), [dataset.weight for dataset in recipe.data.train])
    objective = Objective(model, settings.label_smoothing)
    if settings.compile or (settings.compile is None and device.type == "cuda"):
        compile_parts(objective)
    return Run(
        recipe=recipe,
        out=out,
        trainer=Trainer(objective, optimizer, corpus, settings, group, device, console, state),
        epochs=EpochPlans(out, data, corpus, mixture, settings, group.leads, group.check),
        id=checkpoint.info["run"] if checkpoint else uuid4().hex[:12],
        data=data,
        lengths=_lengths(recipe, corpus, tokenizer, checkpoint) if group.leads else None,
        best=start.best,
        unscored=checkpoint.path if checkpoint and checkpoint.info.get("unscored") and recipe.data.valid else None,
        validation=validation,
        reporting=Reporting(out, recipe, base, state, validation, console) if group.leads else None,
        checkpoints=Checkpoints(out, recipe, tokenizer),
    )


def _untrained(recipe: Recipe, tokenizer: Tokenizer, device: torch.device, group: Group) -> Transformer:
    """A model with random weights on its device; raises UserError where it cannot be trained there."""
    settings = recipe.training
    torch.manual_seed(settings.seed)
    with torch.device("meta"):  # shapes without memory
        size = sum(parameter.numel() for parameter in bundles.new_model(recipe, tokenizer).parameters())
    check_memory(size, settings, device, group.local_size if device.type == "cpu" else 1)
    model = bundles.new_model(recipe, tokenizer).to(device)
    set_precision(model, settings.precision, device)
    return model


def _lengths(recipe: Recipe, corpus: Corpus, tokenizer: Tokenizer, checkpoint: Bundle | None) -> TrainedLengths | None:
    """What checkpoints record of the lengths of training pairs.

    The checkpoint that a run resumes from already has them, for its data is the same; those of earlier versions do not.
    """
    known = checkpoint.lengths if checkpoint is not None else None
    return known or measure_lengths(recipe, corpus, tokenizer)


def _identity(state: RunState, data: str, model: Transformer) -> str:
    """Where this rank begins, for comparison: its place in the plan, its data and a hash of its weights."""
    weights = hashlib.sha256()
    for parameter in model.parameters():
        weights.update(parameter.detach().cpu().flatten().view(torch.uint8).numpy().data)
    return (
        f"update {state.step:,} (epoch {state.epoch}, {state.offset:,} updates into it), data {data[:8]}, "
        f"weights {weights.hexdigest()[:8]}"
    )


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
