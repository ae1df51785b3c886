"""Starts runs: a process for each device, and in each the recipe, data, model and trainer of a new or resumed run."""

from __future__ import annotations

import hashlib
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import torch
from torch import Tensor, nn

from nmt.checkpoint.reading import MANIFEST, MOST, Bundle, checkpoint_folders, load_weights, new_model
from nmt.checkpoint.writing import Checkpoints
from nmt.data.corpus import Corpus
from nmt.data.epochs import EpochPlans, Mixture
from nmt.data.prepare import directory, fingerprint_of, measure_lengths, set_sizes
from nmt.exchange.resolve import initial_bundle, with_model_of
from nmt.model.transformer import Transformer
from nmt.parsing.linearization import load_tokenizer
from nmt.recipe import Recipe, Training
from nmt.system.console import Console
from nmt.system.device import World, available_memory
from nmt.system.errors import TRY_AGAIN, GroupError, Interrupted, UserError
from nmt.system.files import wait_for
from nmt.text.lines import read_lines
from nmt.text.sentences import TrainedLengths
from nmt.text.tokenizer import Tokenizer
from nmt.text.vocabulary import Vocabulary
from nmt.training.arithmetic import measured_flops, product_dtype, set_precision
from nmt.training.distributed import STOPS, Group
from nmt.training.loss import Objective, compile_parts
from nmt.training.optimizer import Optimizer
from nmt.training.plan import too_many_gpus
from nmt.training.progress import Reporting
from nmt.training.state import RunState, Start, open_directory, restore, restore_state
from nmt.training.trainer import Run, Trainer
from nmt.training.validation import Validation

GIB = 2**30


def train(
    recipe: Recipe,
    out: Path,
    console: Console,
    device: torch.device,
    threads: int,
    world: World,
    base: Recipe | None = None,
) -> None:
    """Trains into `out`, or resumes the run that `out` holds, as one process of a group.

    `base` is the recipe that `recipe` extends, if it extends one. Raises UserError, Interrupted once everything is
    saved, or GroupError where the other processes are gone.
    """
    patience = recipe.training.timeout_minutes
    with ExitStack() as held, Group(world, patience) as group:
        found = group.first(lambda: open_directory(recipe, out, console, threads, held).to_json())
        start = Start.from_json(out, found)
        if start.checkpoint is not None:
            wait_for(start.checkpoint.path / MANIFEST, 60 * patience, group.check)
        group.connect(device)
        recipe = with_model_of(recipe, start.checkpoint or initial_bundle(recipe))
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
    tokenizer, data = load_tokenizer(prepared), str(fingerprint_of(prepared))
    model = _untrained(recipe, tokenizer, device, group)
    optimizer, state = Optimizer(model, recipe.model.d_model, settings), RunState(step=0, epoch=0, offset=0)
    if checkpoint is not None:
        state = restore(checkpoint, recipe, tokenizer, model, optimizer, console)
    elif (initial := initial_bundle(recipe)) is not None:
        if settings.init_state:
            before = restore_state(initial, model, optimizer)
            state = RunState(before.step, epoch=0, offset=0, skipped=before.skipped)  # of other data
        else:
            load_weights(model, initial.weights(), initial.path)
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
        size = sum(parameter.numel() for parameter in new_model(recipe, tokenizer).parameters())
    check_memory(size, settings, device, group.local_size if device.type == "cpu" else 1)
    model = new_model(recipe, tokenizer).to(device)
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


RESTARTS = 3  # in a row, of a group in which a worker died before there was another checkpoint
OUTLIVED = (128 + signal.SIGTERM, -signal.SIGTERM)  # ends of workers that are sent SIGTERM since another has ended
TO_SAVE = 300  # seconds that workers have to save a checkpoint after a signal; PyTorch gives them 30


def count_workers(device: str, devices: int | None) -> int:
    """Number of workers on this host that `--device` and `--devices` ask for; by default one per visible GPU."""
    on_gpu = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
    if devices is None:
        return max(1, torch.cuda.device_count()) if on_gpu and ":" not in device else 1
    if devices > 1 and ":" in device:
        raise UserError(f"--devices {devices}: --device {device} is one device", "use --device cuda, or no --devices")
    if on_gpu and devices > torch.cuda.device_count():
        raise UserError(
            f"--devices {devices}: this machine has {torch.cuda.device_count()} CUDA devices",
            f"use --devices {torch.cuda.device_count()}" if torch.cuda.device_count() else "use --device cpu",
        )
    return devices


def launch(workers: int, arguments: Sequence[str], out: Path, console: Console) -> None:
    """Runs `nmt ARGUMENTS`, which trains into `out`, as several workers on this host, by PyTorch's elastic launcher.

    When a worker dies, or the others give it up, the group is restarted and resumes from its last checkpoint. Restarts
    are counted anew whenever there is another one. Raises Interrupted after a signal, which the workers receive too,
    and GroupError where a restart would not help; the workers have said why.
    """
    restart, newest = 0, checkpoint_folders(out)[-1:]
    while ends := _run_group(workers, arguments):
        codes = {code for code in ends.values() if code not in OUTLIVED} or {max(ends.values())}
        stops = [number for number in STOPS if 128 + number in codes]
        if any(code > 0 and code != TRY_AGAIN and code - 128 not in stops for code in codes):
            raise GroupError("", retry=False)
        if stops:
            raise Interrupted("", stops[0])  # a signal that only the workers received
        before, newest = newest, checkpoint_folders(out)[-1:]
        restart = 1 if newest > before else restart + 1
        died = _describe(ends)
        if restart > RESTARTS:
            raise UserError(
                f"{died}, after {RESTARTS} restarts without another checkpoint",
                "if memory ran out, lower training.device_tokens; then run the same command again, which resumes",
            )
        console.say(f"{died}: restart {restart} of {RESTARTS}, from the last checkpoint")


def _run_group(workers: int, arguments: Sequence[str]) -> dict[int, int]:
    """Runs the workers until they end; the exit codes of those that failed, by rank.

    Raises Interrupted after a signal to this process.
    """
    os.environ.setdefault("LOGLEVEL", "CRITICAL")  # PyTorch's own banners about workers that end, some read this
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(TO_SAVE))  # PyTorch 2.11 does not read it
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # without it PyTorch warns; workers set their threads themselves
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=workers,
        run_id=uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=0,  # PyTorch would also repeat what can only fail again
    )
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # under nohup, where PyTorch would handle it all the same
        config.signals_to_handle = "SIGTERM,SIGINT,SIGQUIT"
    try:
        with TemporaryDirectory() as logs:  # one that PyTorch chose would be left behind
            config.logs_specs = DefaultLogsSpecs(log_dir=logs)
            elastic_launch(config, sys.executable)("-m", "nmt", *arguments)
    except SignalException as stop:
        raise Interrupted("", int(stop.sigval)) from None
    except ChildFailedError as failed:
        return {rank: failure.exitcode for rank, failure in failed.failures.items()}
    return {}


def _describe(ends: Mapping[int, int]) -> str:
    """Which workers were killed. A SIGTERM is the launcher's own, sent to those that outlive another."""
    killed = {rank: signal.Signals(-code) for rank, code in ends.items() if code < 0 and -code != signal.SIGTERM}
    return ", ".join(f"rank {rank} was killed by {by.name}" for rank, by in killed.items()) or "the group broke"


def use_embeddings(model: Transformer, tokenizer: Tokenizer, settings: Training, console: Console, fresh: bool) -> None:
    """Copies the vectors of the recipe's files into the embeddings of a `fresh` model; freezes them if the recipe asks.

    A word of a file belongs to the subword of the same spelling, or else to the one that is the whole word with a space
    before it. The model multiplies embeddings by √d_model, so vectors are divided by that, and the layers see them as
    given. Other rows of a frozen matrix keep learning. Raises UserError on files that do not fit.
    """
    sides = (
        (settings.source_embeddings, model.source_embedding, tokenizer.source),
        (settings.target_embeddings, model.target_embedding, tokenizer.target),
    )
    for name, embedding, vocabulary in sides:
        if name is None or not (fresh or settings.freeze_embeddings):
            continue
        assert isinstance(vocabulary, Vocabulary), "recipes refuse vectors of a target that has no words"
        assert embedding is not None, "recipes refuse vectors of a source that is not there"
        rows, vectors = read_vectors(Path(name), vocabulary, model.config.d_model)
        if fresh:
            with torch.no_grad():
                embedding.weight[rows] = (vectors / model.config.d_model**0.5).to(embedding.weight)
            console.say(f"embeddings: {len(rows):,} of {len(vocabulary):,} subwords from {name}")
        if settings.freeze_embeddings:
            _hold(embedding, rows)


def _hold(embedding: nn.Embedding, rows: Tensor) -> None:
    free = torch.ones(embedding.num_embeddings, 1, device=embedding.weight.device)
    free[rows] = 0.0
    embedding.weight.register_hook(lambda gradient: gradient * free)


def read_vectors(path: Path, vocabulary: Vocabulary, d_model: int) -> tuple[Tensor, Tensor]:
    """Rows (n,) of the vocabulary and their vectors (n, d_model) in a file; raises UserError if it does not fit."""
    rows: dict[int, list[float]] = {}
    exact: set[int] = set()
    for number, line in enumerate(read_lines(path), 1):
        word, *cells = line.rstrip().split(" ")
        if number == 1 and len(cells) == 1:  # the header: words and dimensions
            continue
        if len(cells) != d_model:
            raise UserError(
                f"{path}:{number}: the vector has {len(cells)} numbers, but model.d_model is {d_model}",
                f"use word2vec's text format: a word and {d_model} numbers on each line, separated by spaces",
            )
        index, is_exact = vocabulary.find(word)
        if index is None or (index in exact and not is_exact):
            continue
        try:
            rows[index] = [float(cell) for cell in cells]
            if not all(abs(number) <= MOST for number in rows[index]):  # false for nan
                raise ValueError
        except ValueError:
            raise UserError(
                f"{path}:{number}: one of {' '.join(cells[:4])} … is not a number",
                f"give the word {d_model} numbers, separated by spaces",
            ) from None
        if is_exact:
            exact.add(index)
    if not rows:
        raise UserError(
            f"{path}: has no vector for any of the {len(vocabulary):,} subwords",
            "name vectors of this side's language, with words spelled as in the training data",
        )
    return torch.tensor(list(rows)), torch.tensor(list(rows.values()))
