"""Start of a run: one process per device, each with the model and data of a new or resumed run."""

from __future__ import annotations

import hashlib
import logging
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import torch
from torch import Tensor

from nmt.checkpoint.reading import MANIFEST, Bundle, checkpoint_folders, load_weights, new_model
from nmt.compute.choice import set_precision
from nmt.data.augment import Augmenter
from nmt.data.corpus import Corpus
from nmt.data.data_report import read_report
from nmt.data.epochs import remove_plans
from nmt.data.folders import directory, fingerprints, fingerprints_of, look_up
from nmt.data.prepare import prepare
from nmt.exchange.resolve import initial_bundle, other_directions, unused_tokenizer, with_model_of
from nmt.model.transformer import Transformer, part_of
from nmt.parsing.linearization import load_tokenizer
from nmt.recipe import Recipe, Training
from nmt.system import clock
from nmt.system.console import Console
from nmt.system.device import GIB, available_memory
from nmt.system.errors import TRY_AGAIN, GroupError, Interrupted, UserError
from nmt.system.files import set_aside
from nmt.system.launchers import BY_NMT
from nmt.system.processes import STOPS, command, safe_path, wait_for
from nmt.text.tokenizer import Tokenizer
from nmt.text.vocabulary import BOS, EOS, SPACE_MARK, Vocabulary
from nmt.training.batches import use_packing
from nmt.training.budget import Budget
from nmt.training.changes import ELSEWHERE, changes
from nmt.training.directory import find_checkpoints, lock_directory
from nmt.training.distributed import Group, content
from nmt.training.first_embeddings import begin_with_pairs
from nmt.training.learner import Learner
from nmt.training.optimizer import count_moments
from nmt.training.run import Run
from nmt.training.run_state import BestScore, RunState, incomplete
from nmt.training.word_vectors import begin_with_vectors, check_dimensions


def train(
    recipe: Recipe, out: Path, console: Console, group: Group, threads: int, base: Recipe | None, held: ExitStack
) -> Budget:
    """Start the run in `out` or resume it, as one process of a group that it has entered; `held` keeps its locks.

    `base` is the recipe that `recipe` extends, if any. Return what is left of training.minutes. Raise UserError,
    Interrupted once everything is saved, or GroupError if other processes are lost.
    """
    # Rank 0 decides: on a shared file system, other hosts may see an outdated directory for a while.
    name, info, best_score, data = group.first(lambda: _open(recipe, out, console, threads, held))
    checkpoint = Bundle(out / name, info) if name else None
    if checkpoint is not None:
        wait_for(checkpoint.path / MANIFEST, 60 * recipe.training.timeout_minutes, group.check)
    group.connect()
    console = console if group.leads else Console(quiet=True)
    recipe = with_model_of(recipe, checkpoint or initial_bundle(recipe))
    learner = make_learner(recipe, Path(data), group, console, checkpoint)
    return Run(recipe, out, learner, group, console, checkpoint, BestScore(**best_score), base).train()


def _open(
    recipe: Recipe, out: Path, console: Console, threads: int, held: ExitStack
) -> tuple[str | None, dict[str, Any], dict[str, Any], str]:
    """Lock the directory, check that its run can continue with this recipe, and prepare the data.

    Return the checkpoint to resume from, if any, by name and bundle.json, the best score so far, and the folder of the
    data, which stays until `held` closes, as does the lock.
    """
    lock_directory(out, directory(recipe), held, console.say)
    remove_plans(out)  # which an interruption may have damaged, before other ranks map them
    found, damaged = find_checkpoints(out)
    resumed = found[0] if found else None
    origin: Bundle | None = None
    if resumed is None:
        check_dimensions(recipe)
        origin = initial_bundle(recipe)
        if origin is not None:
            for note in (*other_directions(recipe, origin), *unused_tokenizer(recipe, origin)):
                console.say(note)
    elif resumed.recipe.training.init_from:
        origin = resumed  # a resumed run needs only its own checkpoint, not the bundle of training.init_from
    recipe = with_model_of(recipe, origin)
    if origin and recipe.data.augment.is_on and origin.tokenizer().lossy:
        problem = f"data.augment: changes text, some of which the vocabulary of {origin.path} would lose"
        raise UserError(problem, "remove data.augment, or start without training.init_from")
    of_origin = origin.tokenizer() if origin else None
    data: dict[str, str] = {}
    if resumed is not None:
        _, inputs = look_up(recipe, of_origin)
        data = fingerprints(inputs)
        for line in changes(resumed, recipe, data):
            console.say(line)
    was_there = directory(recipe).exists()
    prepared = prepare(recipe, console, threads, of_origin, held)
    if prepared.is_new:
        reason = "was out of date, and " if was_there else ""
        console.say(f"data: {prepared.path} {reason}is prepared now")
    for path, problem in damaged.items():
        console.say(f"damaged checkpoint: {problem}; kept as {set_aside(path)}")
    best_score = asdict(BestScore.of(found, data))
    if resumed is None:
        return None, {}, best_score, str(prepared.path)
    return resumed.path.name, resumed.written, best_score, str(prepared.path)


def make_learner(recipe: Recipe, prepared: Path, group: Group, console: Console, checkpoint: Bundle | None) -> Learner:
    """Return the learner of `prepared` data, with weights of `checkpoint`, training.init_from or a random start.

    Raise UserError if memory is too small, if the checkpoint or bundle does not match, or if the ranks differ. What
    is computed here, random weights and means, may differ by rounding: DistributedDataParallel sends that of rank 0.
    """
    settings = recipe.training
    tokenizer = load_tokenizer(prepared)
    model = _untrained(recipe, tokenizer, group)
    learner = Learner(model, Corpus(prepared / "train.arrow"), settings, group.device)
    if recipe.data.augment.is_on:
        sizes = read_report(prepared)["train"]["kept by set"]
        learner.augmenter = Augmenter(recipe, learner.corpus, tokenizer, sizes)
    loaded: Mapping[str, Tensor] = {}
    initial = initial_bundle(recipe) if checkpoint is None else None
    if checkpoint is not None:
        learner.state = resume(learner, checkpoint, recipe, tokenizer, console)
        loaded = dict(model.named_parameters())
    elif initial is not None:
        loaded = initial.weights()
        load_weights(model, with_new_rows(loaded, initial.tokenizer(), tokenizer), initial.path)
        console.say(f"weights: from {initial.path}")
    else:
        if settings.embeddings == "pairs" and not recipe.task.has_trees:
            count = begin_with_pairs(model, learner.corpus)
            console.say(f"embeddings: {count:,} subwords begin with vectors by the training pairs")
        loaded = begin_with_vectors(model, tokenizer, settings, console.say)
        learner.optimizer.note_given(loaded)
    if tokenizer.older is not None:
        learner.objective.limit(tokenizer.sizes(), symbols_first=tokenizer.forced)
    if tokenizer.forced and "embeddings" not in settings.freeze:
        keep_expressible(model)
    if group.size > 1:
        check_ranks(learner, group, recipe, fingerprints_of(prepared)["data"], loaded)
    return learner


def check_ranks(learner: Learner, group: Group, recipe: Recipe, data: str, loaded: Mapping[str, Tensor]) -> None:
    """Raise UserError if the ranks differ in position, settings, `data`, or the weights that they have loaded."""
    state = learner.state
    check = group.check_same
    position = f"update {state.step:,} (epoch {state.epoch}, {state.offset:,} updates into it)"
    weights = hashlib.sha256()
    for name in sorted(loaded):
        weights.update(content(loaded[name]))
    hint = "run the same command again once all hosts see the same files in --out and data/"
    check(position, f"data {data[:8]}", f"loaded weights {weights.hexdigest()[:8]}", hint=hint)
    hint = "give all ranks the same recipe and the same --set"
    settings = [f"model.{key}={value}" for key, value in recipe.model]
    settings += [f"training.{key}={value}" for key, value in recipe.training]
    settings += [f"data.augment.{key}={value}" for key, value in recipe.data.augment]
    check(*settings, hint=hint)
    is_packed = use_packing(learner.model.config, recipe.training, group.device)  # a GPU may be too old for it
    check(f"sentences are {'packed' if is_packed else 'padded'}", hint="--set training.packing=false")


def resume(learner: Learner, checkpoint: Bundle, recipe: Recipe, tokenizer: Tokenizer, console: Console) -> RunState:
    """Load a run's checkpoint into its new learner; return the state to resume from.

    Raise UserError if the checkpoint has a different tokenizer or does not fit the model.
    """
    if not tokenizer.equals(checkpoint.tokenizer()):
        problem = f"has another tokenizer than the run's checkpoint {checkpoint.path}"
        raise UserError(f"{learner.corpus.path}: {problem}", ELSEWHERE)
    state = restore(learner, checkpoint)
    before = checkpoint.recipe
    if before.training.device_tokens != recipe.training.device_tokens:
        state.compute_on(state.place, 0)
    if _batching(before) != _batching(recipe):
        state.begin_epoch()  # the rest of this one would be split differently
        console.say(f"batches differ from before: continuing with epoch {state.epoch}")
    return state


def _batching(recipe: Recipe) -> tuple[object, ...]:
    """Return what determines how epochs are split into updates."""
    weights = [dataset.weight for dataset in recipe.data.train]
    return recipe.training.batch_tokens, recipe.training.seed, recipe.data.temperature, weights


def restore(learner: Learner, checkpoint: Bundle) -> RunState:
    """Load a checkpoint's weights and the optimizer's state; return its state.

    Raise UserError if the checkpoint does not fit the model or the optimizer, or its training state is incomplete.
    """
    before = checkpoint.recipe.training
    now = learner.settings
    if before.optimizer != now.optimizer:
        problem = f"training.optimizer: is {now.optimizer}, but {checkpoint.path} was trained with {before.optimizer}"
        hint = f"--set training.optimizer={before.optimizer}, or start from its weights alone: training.init_from"
        raise UserError(problem, hint)
    load_weights(learner.model, checkpoint.weights(), checkpoint.path)
    state = RunState.of(checkpoint)
    try:
        learner.optimizer.load(checkpoint.moments(), state.step - state.skipped, frozen=before.freeze)
    except (KeyError, ValueError) as error:
        raise incomplete(checkpoint, error) from None
    return state


def _untrained(recipe: Recipe, tokenizer: Tokenizer, group: Group) -> Transformer:
    """Return a randomly initialised model on its device; raise UserError if it cannot be trained there."""
    settings = recipe.training
    device = group.device
    torch.manual_seed(settings.seed)
    with torch.device("meta"):  # shapes only, no memory
        shapes = new_model(recipe, tokenizer)
    check_memory(shapes, settings, device, group.copies)
    model = new_model(recipe, tokenizer).to(device)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(part_of(name) not in settings.freeze)
    set_precision(model, settings.precision, device)
    return model


def check_memory(model: Transformer, settings: Training, device: torch.device, copies: float) -> None:
    """Raise UserError if training a model of this size exceeds the device's memory.

    Count `copies` of weights, gradients and moments, but not activations.
    """
    parameters = sum(parameter.numel() for parameter in model.parameters())
    numbers = 2 * parameters + count_moments(model, settings)
    bytes_each = 8 if settings.precision == "fp64" else 4
    needed = numbers * bytes_each * copies
    there = available_memory(device)
    if there is not None and needed > there:
        need = f"need {needed / GIB:,.1f} GiB for weights, gradients and moments"
        raise UserError(
            f"model: its {parameters:,} parameters {need}, but {there / GIB:,.1f} GiB are available ({device})",
            "lower model.d_model, model.d_ff, model.layers or tokenizer.vocab_size; nmt train --plan counts parameters",
        )


RESTARTS = 3  # maximum number of consecutive restarts without a new checkpoint
OUTLIVED = (128 + signal.SIGTERM, -signal.SIGTERM)  # exit codes of workers that got SIGTERM because another one ended
TO_SAVE = 300  # seconds for workers to save a checkpoint after a signal; PyTorch's default is 30


def launch(workers: int, arguments: Sequence[str], out: Path, console: Console) -> None:
    """Run `nmt ARGUMENTS`, which trains into `out`, as `workers` processes with PyTorch's elastic launcher.

    If a worker dies or the others time out, restart the group from its last checkpoint. Each new checkpoint resets the
    restart count. Raise Interrupted after a signal, which the workers receive too, and a silent GroupError if a restart
    would not help: the workers have reported the cause.
    """
    restart = 0
    newest = checkpoint_folders(out)[-1:]
    while True:
        ends = _run_group(workers, arguments)
        if not ends:
            return
        # Without workers that only another one's end has stopped, unless that holds for all
        codes = {code for code in ends.values() if code not in OUTLIVED} or {max(ends.values())}
        stops = [number for number in STOPS if 128 + number in codes]
        errors = {code for code in codes if code > 0} - {TRY_AGAIN} - {128 + number for number in stops}
        if errors:
            raise GroupError("", retry=False)
        if stops:
            raise Interrupted("", stops[0])  # only the workers received the signal
        before = newest
        newest = checkpoint_folders(out)[-1:]
        restart = 1 if newest > before else restart + 1
        killed = []
        for rank, code in ends.items():
            if code < 0 and -code != signal.SIGTERM:  # which the launcher itself sends to the surviving workers
                killed.append(f"rank {rank} was killed by {signal.Signals(-code).name}")
        died = ", ".join(killed) or "the group broke"
        if restart > RESTARTS:
            hint = "if memory ran out, lower training.device_tokens; then run the same command again, which resumes"
            raise UserError(f"{died}, after {RESTARTS} restarts without another checkpoint", hint)
        clock.begin(anew=True)  # what a run has spent is in its last checkpoint
        console.say(f"{died}: restart {restart} of {RESTARTS}, from the last checkpoint")


def _run_group(workers: int, arguments: Sequence[str]) -> dict[int, int]:
    """Run the workers to completion; return the exit codes of failed workers by rank.

    Raise Interrupted if this process receives a signal.
    """
    os.environ.setdefault("LOGLEVEL", "CRITICAL")  # silence PyTorch's banners about failed workers, here and below
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(TO_SAVE))  # PyTorch 2.11 ignores it
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # avoids PyTorch's warning; workers set their own threads
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    meeting: dict[str, Any] = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "local_addr": "localhost"}
    # No restarts: PyTorch would also restart after permanent errors.
    config = LaunchConfig(1, 1, workers, run_id=BY_NMT + uuid4().hex, max_restarts=0, **meeting)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # keep it ignored under nohup
        config.signals_to_handle = "SIGTERM,SIGINT,SIGQUIT"
    try:
        with TemporaryDirectory() as logs, safe_path():  # PyTorch would not delete its default folder
            config.logs_specs = DefaultLogsSpecs(log_dir=logs)
            python, *rest = command("nmt", *arguments)
            elastic_launch(config, python)(*rest)
    except SignalException as stop:
        raise Interrupted("", int(stop.sigval)) from None
    except ChildFailedError as failed:
        return {rank: failure.exitcode for rank, failure in failed.failures.items()}
    return {}


def with_new_rows(weights: dict[str, Tensor], before: Tokenizer, tokenizer: Tokenizer) -> dict[str, Tensor]:
    """Give the embeddings and output bias of a model rows for what `tokenizer` has added to the one `before`.

    A piece begins with the mean of the rows that spelled it, the symbol of a language with the mean of all languages'.
    """
    old = before.source
    new = tokenizer.source.listing()[len(old) :]
    if not new:
        return weights
    symbols = set(tokenizer.source.languages.values())
    languages = list(old.languages.values())
    spelled = []  # ids of each new piece
    for index, piece in enumerate(new, len(old)):
        spelled.append(languages if index in symbols else _spelling(old, piece))
    found = dict(weights)
    for name, rows in weights.items():
        if name == "output_bias" or name.endswith("_embedding.weight"):
            added = [rows[ids].float().mean(0, keepdim=True) for ids in spelled]
            found[name] = torch.cat([rows, *added])
    return found


def _spelling(old: Vocabulary, piece: str) -> list[int]:
    """Return the ids that spelled a new piece in an `old` vocabulary; those of all pieces if it drops the text."""
    ids = old.encode(piece.replace(SPACE_MARK, " ").strip(" "))  # of white space, only U+0020 is the mark's
    if not ids:
        return list(range(EOS + 1, len(old)))
    if piece.startswith(SPACE_MARK):
        return ids
    bare = [each for each in ids if old.pieces([each]) != [SPACE_MARK]]
    return bare or ids


def keep_expressible(model: Transformer) -> None:
    """Train a model of M2M-100's class so that it can be exported: it decodes from `</s>` and has no output bias.

    Our `<s>` begins as a copy of `</s>`; both get the sum of their gradients, so that they stay equal.
    """

    def tied(gradient: Tensor) -> Tensor:
        both = gradient[BOS] + gradient[EOS]
        changed = gradient.clone()
        changed[BOS] = changed[EOS] = both  # by no tensor of indices, which would come from the host
        return changed

    model.target_embedding.weight.register_hook(tied)
    if model.output_bias is not None:
        model.output_bias.register_hook(torch.zeros_like)
