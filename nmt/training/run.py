"""`nmt train`: puts recipe, data, model and loop together, and starts or resumes a run in a directory."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch

from nmt import bundle as bundles
from nmt.bundle import Bundle
from nmt.console import Console
from nmt.data.corpus import Corpus
from nmt.data.epochs import EpochPlan, Mixture, plan_epoch, stored_plan
from nmt.data.prepare import directory, fingerprint, prepare, set_sizes
from nmt.errors import GroupError, Interrupted, UserError
from nmt.files import exclusive, read_json, remedy, set_aside, wait_for
from nmt.recipe import Recipe
from nmt.text.tokenizer import Tokenizer
from nmt.training.checkpoints import Checkpoints
from nmt.training.cost import cost_of, describe_cost
from nmt.training.distributed import Group, Place
from nmt.training.embeddings import use_embeddings
from nmt.training.loop import AHEAD, Loop, Position
from nmt.training.loss import Objective
from nmt.training.memory import check_memory
from nmt.training.optimizer import Optimizer
from nmt.training.precision import compile_layers, set_precision
from nmt.training.progress import METRICS, Progress, clock, forget_after, show_progress
from nmt.training.resume import Start, check_directory, clear_leftovers, find_start, position_of
from nmt.training.validation import DevScores, Validation

# Keys of training that shape the first update and no later one.
ONLY_AT_START = ("init_from", "source_embeddings", "target_embeddings")


def train(recipe: Recipe, out: Path, console: Console, device: torch.device, threads: int, place: Place) -> None:
    """Trains into `out`, or goes on with the run that `out` holds, as one process of a group.

    Raises UserError, Interrupted once all is saved, or GroupError where the others are gone.
    """
    group, together = Group(place, recipe.training.timeout_minutes), False
    with ExitStack() as held:
        try:
            found = group.first(lambda: _open(recipe, out, console, threads, held).to_json())
            start = Start.from_json(out, found)
            if start.checkpoint is not None:
                there = start.checkpoint.path / "bundle.json"
                wait_for(there, 60 * recipe.training.timeout_minutes, group.check)
            group.connect(device)
            Run(recipe, out, console, device, group, start).go_on()
            together = True
        except Interrupted:
            together = True
            raise
        except GroupError:
            raise
        except Exception as error:
            if group.fail():
                raise
            raise GroupError("", retry=False) from error  # another rank has said it
        finally:
            group.close(together)


def _open(recipe: Recipe, out: Path, console: Console, threads: int, held: ExitStack) -> Start:
    """Locks the directory, checks that the run in it, if any, can go on with this recipe, and prepares the data.

    Damaged checkpoints are kept under other names. Gives where the run begins or goes on.
    """
    if Path(os.path.realpath(out)).is_relative_to(os.path.realpath(directory(recipe))):
        raise UserError(
            f"--out {out}: is inside the prepared data, which is replaced as a whole", "name another directory"
        )
    check_directory(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {out}: cannot be created: {error.strerror}", "name another directory") from None
    held.enter_context(exclusive(out / ".lock", str(out)))
    clear_leftovers(out)
    start, damaged = find_start(out)
    resumed = start.checkpoint
    # A resumed run needs its own checkpoint and nothing of the bundle that it once started from.
    origin = (resumed or bundles.initial_bundle(recipe)) if recipe.training.init_from else None
    tokenizer_from = origin.path if origin else None
    if resumed is not None:
        _check_same_run(resumed, recipe, fingerprint(recipe, tokenizer_from))
        for line in _changes(resumed.recipe, recipe):
            console.say(line)
    if prepare(recipe, console, threads, tokenizer_from):
        console.say(f"data: {directory(recipe)} was missing or out of date, and is prepared now")
    for path, problem in damaged.items():
        console.say(f"damaged checkpoint: {problem}; kept as {set_aside(path)}")
    return start


class Run:
    """One run in its directory: a model, where it stands, and how it is saved."""

    def __init__(
        self,
        recipe: Recipe,
        out: Path,
        console: Console,
        device: torch.device,
        group: Group,
        start: Start,
    ) -> None:
        self.recipe, self.out, self.console, self.device, self.group = recipe, out, console, device, group
        settings = recipe.training
        self.prepared = directory(recipe)
        self.tokenizer = Tokenizer.load(self.prepared)
        torch.manual_seed(settings.seed)
        with torch.device("meta"):  # shapes without memory
            size = sum(weight.numel() for weight in bundles.new_model(recipe, self.tokenizer).parameters())
        check_memory(size, settings, device, group.local_size if device.type == "cpu" else 1)
        self.model = bundles.new_model(recipe, self.tokenizer).to(device)
        set_precision(self.model, settings.precision, device)
        self.optimizer = Optimizer(self.model, recipe.model.d_model, settings)
        self.position = Position()
        self.id = uuid4().hex[:12]
        self.kind = bundles.KINDS[recipe.task]
        self.best_score, self.without_improvement = start.best_score, start.without_improvement
        self.unscored: Path | None = None
        self.data = str(read_json(self.prepared / "fingerprint.json")["fingerprint"])
        if start.checkpoint is not None:
            self._restore(start.checkpoint)
        elif (initial := bundles.initial_bundle(recipe)) is not None:
            bundles.load_weights(self.model, initial.weights(), initial.path)
            console.say(f"weights: from {initial.path}")
        use_embeddings(self.model, self.tokenizer, settings, console, fresh=start.checkpoint is None)
        if group.size > 1:
            group.check_same(self._state())  # before DistributedDataParallel makes the weights those of rank 0
        if settings.compile or (settings.compile is None and device.type == "cuda"):
            compile_layers(self.model)
        self.corpus = Corpus(self.prepared / "train.arrow")
        self.mixture = Mixture(set_sizes(self.prepared), [dataset.weight for dataset in recipe.data.train])
        self.validation = self._validation()
        self.checkpoints = Checkpoints(out, recipe, self.tokenizer, console)
        objective = Objective(self.model, settings.label_smoothing)
        self.loop = Loop(objective, self.optimizer, self.corpus, settings, group, device, console)

    def go_on(self) -> None:
        """Trains from where the run stands to its end."""
        settings, at = self.recipe.training, self.position
        before = at.step
        if self.unscored is not None or not self.is_done(at):
            if self.group.leads:
                forget_after(self.out / METRICS, at.step)
                (self.out / "recipe.yaml").write_text(self.recipe.to_yaml(), encoding="utf-8")
            self.console.say(self._opening())
            try:
                self._train()
            except Interrupted as stop:
                raise Interrupted(
                    f"{stop.message} in {self.out}; to resume, run the same command again", stop.signal_number
                ) from None
        if at.step < settings.updates:
            done = f"no better dev {self.kind.label} for {self.without_improvement} checkpoints"
            more = f"--set training.patience={2 * self.without_improvement}"
        else:
            done = f"{at.step:,} of {settings.updates:,} updates in {clock(at.seconds)}"
            more = f"--set training.updates={2 * settings.updates}"
        if self.group.leads:
            self._forget_plans()
            if at.step > before:  # that of the last validation comes on top
                bundles.add_info(bundles.checkpoint_path(self.out, at.step), {"cost": cost_of(at)})
        self.console.say(f"training cost: {describe_cost(at)}")
        self.console.say(
            f"finished: {done}; " + (f"next: nmt average {self.out}" if at.step > before else f"to continue: {more}")
        )

    def _train(self) -> None:
        metrics = self.out / METRICS if self.group.leads else Path(os.devnull)
        board = self.out / "tensorboard" if self.group.leads and self.recipe.training.tensorboard else None
        at = self.position
        with show_progress(self.console, metrics, at.step, self.recipe.training.updates, board) as shown:
            try:
                if self.unscored is not None:  # killed between a checkpoint and its scores
                    self._score(self.unscored, shown)
                if not self.is_done(at):
                    self.loop.run(at, shown, self)
            finally:
                self.checkpoints.wait()

    def is_done(self, position: Position) -> bool:
        """Whether all updates are done, or the dev score has not improved for `training.patience` checkpoints."""
        self.checkpoints.check()
        patience = self.recipe.training.patience
        out_of_patience = patience is not None and self.without_improvement >= patience
        return position.step >= self.recipe.training.updates or out_of_patience

    def plan(self, epoch: int) -> EpochPlan:
        """The plan of an epoch; made by rank 0 and mapped from the run's directory by all."""
        settings = self.recipe.training
        shaping = [self.data, self.mixture.weights, settings.batch_tokens, settings.seed, epoch]
        key = hashlib.sha256(json.dumps(shaping).encode()).hexdigest()[:12]
        folder = self.out / f".epoch-{epoch}-{key}"

        def make() -> EpochPlan:
            self._forget_plans(range(epoch - AHEAD, epoch))  # other ranks may be so many updates behind
            lengths = self.corpus.source_lengths, self.corpus.target_lengths
            return plan_epoch(*lengths, settings.batch_tokens, settings.seed, epoch, self.mixture)

        return stored_plan(folder, make if self.group.leads else None, 60 * settings.timeout_minutes, self.group.check)

    def _forget_plans(self, keep: Collection[int] = ()) -> None:
        """Removes the plans of all epochs but some."""
        for old in self.out.glob(".epoch-*"):
            if int(old.name.split("-")[1]) not in keep:
                shutil.rmtree(old, ignore_errors=True)

    def save(self, position: Position, progress: Progress, *, validate: bool) -> None:
        """Writes the checkpoint of a position in the background, then scores it if told to; see `loop.Hooks`."""
        validate = validate and self.validation is not None
        path = bundles.checkpoint_path(self.out, position.step)
        if self.group.leads:
            info: dict[str, Any] = {"run": self.id, "step": position.step, "data": self.data}
            info |= {"cost": cost_of(position), "unscored": validate}
            training = self.optimizer.state(), position.to_json()

            def written(step: int = position.step) -> None:
                if not validate:  # else it is said with its scores
                    progress.checkpoint({"step": step}, path)

            self.checkpoints.write(path, dict(self.model.named_parameters()), training, info, written)
        if validate:
            self._score(path, progress)

    def _score(self, path: Path, progress: Progress) -> None:
        """Scores the model as it is, whose checkpoint is `path`, on the development set."""
        assert self.validation is not None
        dev: DevScores = self.validation(self.model)
        is_best = self.best_score is None or self.kind.rank(dev.score) > self.kind.rank(self.best_score)
        self.best_score = dev.score if is_best else self.best_score
        self.without_improvement = 0 if is_best else self.without_improvement + 1
        if self.group.leads:
            scores = {self.kind.metric: dev.score, "perplexity": dev.perplexity}
            info: dict[str, Any] = {"scores": scores, "signature": dev.signature}
            info |= {"without_improvement": self.without_improvement, "unscored": False}
            figures = {"step": self.position.step, **{f"valid_{name}": score for name, score in scores.items()}}
            said = "  ".join(f"dev {name} {figure:.2f}" for name, figure in dev.shown(self.kind.label).items())
            said += "  best so far" if is_best else ""
            self.checkpoints.add(path, info, lambda: progress.checkpoint(figures, path, said))

    def _restore(self, checkpoint: Bundle) -> None:
        if not self.tokenizer.equals(checkpoint.tokenizer()):
            raise UserError(
                f"{self.prepared}: has another tokenizer than the run's checkpoint {checkpoint.path}",
                "train into another directory: --out OTHER",
            )
        bundles.load_weights(self.model, checkpoint.weights(), checkpoint.path)
        self.position = at = position_of(checkpoint)
        try:
            self.optimizer.load(checkpoint.moments(), at.step - at.skipped)
        except (KeyError, ValueError) as error:
            raise UserError(
                f"{checkpoint.path}: its training state is not complete: {error}",
                remedy(checkpoint.path / bundles.POSITION),
            ) from None
        self.id = checkpoint.info["run"]
        self.unscored = checkpoint.path if checkpoint.info.get("unscored") and self.recipe.data.valid else None
        before, now = checkpoint.recipe.training, self.recipe.training
        if before.device_tokens != now.device_tokens:
            at.device_tokens = 0
        weights = [[dataset.weight for dataset in recipe.data.train] for recipe in (checkpoint.recipe, self.recipe)]
        if (before.batch_tokens, before.seed, weights[0]) != (now.batch_tokens, now.seed, weights[1]):
            at.epoch, at.offset = at.epoch + 1, 0  # that epoch is now cut otherwise
            self.console.say(f"batches differ from before: continuing with epoch {at.epoch}")

    def _state(self) -> str:
        """Where this rank begins, for comparison: its place in the plan, its data and a hash of its weights."""
        at, weights = self.position, hashlib.sha256()
        for parameter in self.model.parameters():
            weights.update(parameter.detach().cpu().flatten().view(torch.uint8).numpy().data)
        return (
            f"update {at.step:,} (epoch {at.epoch}, {at.offset:,} updates into it), data {self.data[:8]}, "
            f"weights {weights.hexdigest()[:8]}"
        )

    def _validation(self) -> Validation | None:
        corpus = Corpus(self.prepared / "valid.arrow")
        return Validation(corpus, self.tokenizer, self.recipe, self.group) if len(corpus) else None

    def _opening(self) -> str:
        size = sum(parameter.numel() for parameter in self.model.parameters())
        begin = f"resuming at update {self.position.step:,}" if self.position.step else "starting"
        devices = f"{self.group.size} devices, {self.device.type}" if self.group.size > 1 else str(self.device)
        return (
            f"{begin}: {size / 1e6:.2f} M parameters, {len(self.corpus):,} {self.recipe.data.unit}, "
            f"{self.recipe.training.updates:,} updates of {self.recipe.training.batch_tokens:,} tokens, "
            f"on {devices}, into {self.out}"
        )


def _check_same_run(checkpoint: Bundle, recipe: Recipe, data: str) -> None:
    """Refuses to go on with another model, tokenizer or other data than the run began with."""
    for section in ("model", "tokenizer"):
        before, now = getattr(checkpoint.recipe, section), getattr(recipe, section)
        for key in type(now).model_fields:
            if getattr(before, key) != getattr(now, key):
                raise UserError(
                    f"{section}.{key}: is {getattr(now, key)!r}, but the run in {checkpoint.path.parent} was started "
                    f"with {getattr(before, key)!r}",
                    "train into another directory: --out OTHER",
                )
    if checkpoint.info["data"] != data:
        raise UserError(
            f"data: the run in {checkpoint.path.parent} was started with other files, limits or tokenizer",
            "train into another directory: --out OTHER",
        )


def _changes(before: Recipe, now: Recipe) -> list[str]:
    """Lines that announce which settings differ from the run's last checkpoint and apply from now on."""
    lines = []
    for section in ("training", "decoding"):
        old, new = getattr(before, section), getattr(now, section)
        for key in type(new).model_fields:
            if getattr(old, key) != getattr(new, key) and key not in ONLY_AT_START:
                lines.append(f"changed: {section}.{key} from {getattr(old, key)} to {getattr(new, key)}")
    return lines
