"""`nmt train`: puts recipe, data, model and loop together, and starts or resumes a run in a directory."""

from __future__ import annotations

import hashlib
import os
import shlex
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch

from nmt import bundle as bundles
from nmt.bundle import Bundle
from nmt.console import Console, clock
from nmt.data.corpus import Corpus
from nmt.data.epochs import EpochPlan, Mixture
from nmt.data.prepare import directory, fingerprint_of, measure_lengths, set_sizes
from nmt.errors import Interrupted
from nmt.files import wait_for
from nmt.model.transformer import Transformer
from nmt.place import Place
from nmt.recipe import Recipe
from nmt.text.sentences import TrainedLengths
from nmt.text.tokenizer import Tokenizer
from nmt.training.checkpoints import Checkpoints
from nmt.training.cost import cost_of, summary
from nmt.training.distributed import Group
from nmt.training.embeddings import use_embeddings
from nmt.training.epochs import Epochs
from nmt.training.flops import measured_flops
from nmt.training.graphs import compile_parts
from nmt.training.loop import Loop
from nmt.training.loss import Objective
from nmt.training.memory import check_memory
from nmt.training.optimizer import Optimizer
from nmt.training.plan import too_many_gpus
from nmt.training.precision import product_dtype, set_precision
from nmt.training.progress import METRICS, Progress, show_progress
from nmt.training.reporting import Reporting
from nmt.training.resume import BestScore, Start, open_directory, restore, restore_state
from nmt.training.state import RunState
from nmt.training.validation import Validation


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
        set_up(recipe, out, console, device, group, start, base).go_on()


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
        compile_parts(objective, console)
    return Run(
        recipe=recipe,
        out=out,
        console=console,
        group=group,
        id=checkpoint.info["run"] if checkpoint else uuid4().hex[:12],
        data=data,
        lengths=_lengths(recipe, corpus, tokenizer, checkpoint) if group.leads else None,
        state=state,
        best=start.best,
        unscored=checkpoint.path if checkpoint and checkpoint.info.get("unscored") and recipe.data.valid else None,
        model=model,
        epochs=Epochs(out, data, corpus, mixture, settings, group),
        validation=validation,
        reporting=Reporting(out, recipe, base, state, validation, console) if group.leads else None,
        checkpoints=Checkpoints(out, recipe, tokenizer, console),
        loop=Loop(objective, optimizer, corpus, settings, group, device, console),
    )


def _untrained(recipe: Recipe, tokenizer: Tokenizer, device: torch.device, group: Group) -> Transformer:
    """A model with random weights on its device; raises UserError where it cannot be trained there."""
    settings = recipe.training
    torch.manual_seed(settings.seed)
    with torch.device("meta"):  # shapes without memory
        size = _size(bundles.new_model(recipe, tokenizer))
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


def _size(model: Transformer) -> int:
    """Number of parameters."""
    return sum(parameter.numel() for parameter in model.parameters())


def _identity(state: RunState, data: str, model: Transformer) -> str:
    """Where this rank begins, for comparison: its place in the plan, its data and a hash of its weights."""
    weights = hashlib.sha256()
    for parameter in model.parameters():
        weights.update(parameter.detach().cpu().flatten().view(torch.uint8).numpy().data)
    return (
        f"update {state.step:,} (epoch {state.epoch}, {state.offset:,} updates into it), data {data[:8]}, "
        f"weights {weights.hexdigest()[:8]}"
    )


@dataclass
class Run:
    """One run in its directory: a model, how far it has come, and how it is saved."""

    recipe: Recipe
    out: Path
    console: Console
    group: Group
    id: str
    data: str
    """Fingerprint of the prepared data"""
    lengths: TrainedLengths | None
    """Of the training pairs of a translator; None on ranks that write no checkpoints"""
    state: RunState
    best: BestScore
    unscored: Path | None
    """The checkpoint that the run resumes from, if it was killed before that was scored"""
    model: Transformer
    epochs: Epochs
    validation: Validation | None
    """None without a development set"""
    reporting: Reporting | None
    """None on ranks other than the first"""
    checkpoints: Checkpoints
    loop: Loop

    def go_on(self) -> None:
        """Trains from where the run stands to its end, and reports how it ended and what it cost."""
        state, before = self.state, self.state.step
        if self.unscored is not None or not self.is_done(state):
            if self.reporting is not None:
                self.reporting.begin(_size(self.model), scored=self.unscored is None)
            for line in self._opening():
                self.console.say(line)
            with self.reporting or nullcontext():
                self._go_on(before)
        if self.group.leads:
            self.epochs.forget()
            for line in summary(state, self.out, *self._ending(trained=state.step > before)):
                self.console.say(line)

    def _go_on(self, before: int) -> None:
        """Trains; the checkpoint at the end of what is after update `before` gets the cost of the whole."""
        try:
            self._train()
        except Interrupted as stop:
            raise Interrupted(
                f"{stop.message} in {self.out}; to resume, run the same command again", stop.signal_number
            ) from None
        if self.group.leads and self.state.step > before:  # the time of the last validation is not in it yet
            path = bundles.checkpoint_path(self.out, self.state.step)
            bundles.add_info(path, {"cost": cost_of(self.state)})

    def _opening(self) -> tuple[str, str]:
        begin = "starting"
        if self.state.step:
            is_new = (self.state.epoch, self.state.offset) == (0, 0)  # by training.init_state
            begin = f"{'going on from' if is_new else 'resuming at'} update {self.state.step:,}"
        device = self.loop.device
        devices = f"{self.group.size} devices, {device.type}" if self.group.size > 1 else str(device)
        size, pairs = _size(self.model) / 1e6, f"{len(self.loop.corpus):,} {self.recipe.kind.unit}"
        training = self.recipe.training
        return (
            f"{begin}: {size:.2f} M parameters, {pairs}, on {devices}, into {self.out}",
            f"  {training.updates:,} updates of {training.batch_tokens:,} tokens",
        )

    def _ending(self, trained: bool) -> tuple[str, str]:
        """Why the run is finished, and what to do next."""
        updates, checkpoints = self.recipe.training.updates, self.best.without_improvement
        done = f"{self.state.step:,} of {updates:,} updates in {clock(self.state.seconds)}"
        more = f"--set training.updates={2 * self.state.step}"  # more than `updates`, even if that was lowered
        if self.state.step < updates:
            done = f"no better dev {self.recipe.kind.label} for {checkpoints} checkpoints; {done}"
            more = f"--set training.patience={2 * checkpoints}"
        return done, shlex.join(["nmt", "average", str(self.out)]) if trained else f"to continue: {more}"

    def _train(self) -> None:
        leads, state = self.group.leads, self.state
        if leads:
            bundles.prune(self.out, self.recipe.training.keep_last)  # which a run that was killed may have left to do
        metrics = self.out / METRICS if leads else Path(os.devnull)
        board = self.out / "tensorboard" if leads and self.recipe.training.tensorboard else None
        with show_progress(self.console, metrics, state.step, self.recipe.training.updates, board) as shown:
            try:
                if self.unscored is not None:
                    self._score(self.unscored, shown)
                if not self.is_done(state):
                    self.loop.run(state, shown, self)
            finally:
                self.checkpoints.wait()

    # --- what the loop asks for, see `loop.Hooks` --------------------------------------------------------------

    def is_done(self, state: RunState) -> bool:
        """Whether all updates are done, or the dev score has not improved for `training.patience` checkpoints."""
        settings = self.recipe.training
        out_of_patience = settings.patience is not None and self.best.without_improvement >= settings.patience
        return state.step >= settings.updates or out_of_patience

    def check(self) -> None:
        """Raises the error of a checkpoint that could not be written, and sees to the report."""
        self.checkpoints.check()
        if self.reporting is not None:
            self.reporting.check()

    def plan(self, epoch: int) -> EpochPlan:
        """The plan of an epoch."""
        return self.epochs.plan(epoch)

    def save(self, state: RunState, progress: Progress, *, validate: bool) -> None:
        """Writes the checkpoint of a state in the background, then scores it if told to."""
        validate = validate and self.validation is not None
        path, step = bundles.checkpoint_path(self.out, state.step), state.step
        if self.reporting is not None:
            info: dict[str, Any] = {"run": self.id, "step": step, "data": self.data}
            info |= {"cost": cost_of(state), "unscored": validate}
            info |= {} if self.lengths is None else {"lengths": self.lengths.model_dump()}
            training = self.loop.optimizer.state(), asdict(state)
            figures = {} if validate else {"step": step, **self.reporting.figures()}

            def written() -> None:
                if not validate:  # otherwise it is reported with its scores
                    progress.record(figures)
                    progress.checkpoint(step, path)

            self.checkpoints.write(path, dict(self.model.named_parameters()), training, info, written)
        if validate:
            self._score(path, progress)

    def _score(self, path: Path, progress: Progress) -> None:
        """Scores the model, whose checkpoint is `path`, on the development set."""
        assert self.validation is not None
        with progress.validating():
            kind, dev = self.recipe.kind, self.validation(self.model)
        is_best, reporting = self.best.add(dev.score, kind), self.reporting
        if reporting is not None:
            examples = reporting.keep(dev.hypotheses)
            scores = dev.by_name(kind.metric)
            info: dict[str, Any] = {"scores": scores, "signature": dev.signature}
            info |= {"without_improvement": self.best.without_improvement, "unscored": False}
            step = self.state.step
            # Before the checkpoint has its scores, so that a run that is killed in between does it again.
            progress.record({"step": step, **reporting.figures(), **{f"valid_{name}": scores[name] for name in scores}})
            said = "  ".join(f"dev {name} {figure:.2f}" for name, figure in dev.shown(kind.label).items())
            said += "  best" if is_best else ""

            def added() -> None:
                progress.checkpoint(step, path, said, examples)
                reporting.refresh()

            self.checkpoints.add(path, info, added)
