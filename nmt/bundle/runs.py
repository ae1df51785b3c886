"""The checkpoints of a run: which are there, which of them a command uses, and their averages."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from nmt.bundle import hub
from nmt.bundle.folder import CHECKPOINT, MANIFEST, POSITION, Bundle, save_bundle
from nmt.bundle.marian import MarianBundle, is_marian
from nmt.console import Console
from nmt.errors import UserError
from nmt.files import OutOfResources, check_replaceable, remove_directory
from nmt.recipe import Recipe, validated
from nmt.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

AVERAGED = "averaged"
MAY_CHANGE = {"dropout", "attention_dropout", "feed_forward_dropout", "attention_window", "max_positions"}
"""Keys of `model` that need not be those of the bundle that training starts from."""


def checkpoint_path(directory: Path, step: int) -> Path:
    """Return the path of the checkpoint of a step."""
    return directory / f"step-{step:08d}"


def checkpoint_folders(directory: Path) -> list[Path]:
    """Return the folders of a run that are named like checkpoints, oldest first; some may be damaged."""
    found = (path for path in directory.glob("step-*/") if CHECKPOINT.fullmatch(path.name))
    return sorted(found, key=lambda path: int(path.name.removeprefix("step-")))


def survey(directory: Path) -> tuple[list[Bundle], list[UserError]]:
    """Return the checkpoints of a run, oldest first, and an error for each folder that cannot be read as one."""
    found, wrong = [], []
    for path in checkpoint_folders(directory):
        try:
            found.append(Bundle.read(path))
        except UserError as error:
            wrong.append(error)
    return found, wrong


def checkpoints(directory: Path) -> list[Bundle]:
    """Return the checkpoints of a run, oldest first; raises UserError naming the first that cannot be read."""
    found, wrong = survey(directory)
    if wrong:
        raise wrong[0]
    return found


def ranked(bundles: Sequence[Bundle]) -> list[Bundle]:
    """Return the bundles that have a dev score, the best last, and of equals the latest last."""
    scored = [(b.kind.rank(score), b.step, b) for b in bundles if (score := b.dev_score) is not None]
    return [bundle for _, _, bundle in sorted(scored, key=lambda entry: entry[:2])]


def best(bundles: Sequence[Bundle]) -> Bundle | None:
    """Return the bundle with the best dev score, of equals the latest; None if none has a score."""
    return next(reversed(ranked(bundles)), None)


def prune(directory: Path, keep_last: int) -> None:
    """Remove old checkpoints: the newest `keep_last` and the best stay."""
    found, _ = survey(directory)  # damaged ones stay, since they may be worth repairing
    keep = {bundle.path for bundle in (*found[-keep_last:], best(found)) if bundle}
    for bundle in found:
        if bundle.path not in keep:
            remove_directory(bundle.path)


def resolve(path: Path) -> tuple[Bundle, str]:
    """Find the bundle that a directory stands for; returns it with a sentence that says which and why.

    A bundle stands for itself. A run's directory stands for its average if no checkpoint is newer, else for the best
    checkpoint by dev score, else for the newest. Damaged checkpoints are skipped, and the sentence says so.
    The path may also be a folder with a Marian model of transformers, or a name of the hub, hf:ORG/NAME. Raises
    UserError if there is no bundle.
    """
    found, note = _resolve(path)
    return found, note + ("; its tokenizer cannot spell every character" if found.lossy else "")


def _resolve(path: Path) -> tuple[Bundle, str]:
    if os.path.lexists(path / MANIFEST):
        return Bundle.read(path), f"model: {path}"
    folder = hub.fetch(path) if hub.is_name(path) else path
    if is_marian(folder):
        commit = f", commit {folder.name[:12]}" if folder != path else ""
        return MarianBundle.read(folder), f"model: {path}{commit} (of transformers)"
    if not path.is_dir():
        raise UserError(
            f"{path}: no such model",
            "name a bundle or a run's directory; nmt train RECIPE writes one to ckpts/",
        )
    found, wrong = survey(path)
    if unsure := [error for error in wrong if isinstance(error, OutOfResources)]:
        raise unsure[0]
    note = "".join(f"; skipped: {error.message}" for error in wrong)
    if os.path.lexists(path / AVERAGED / MANIFEST):
        average = Bundle.read(path / AVERAGED)
        same_run = not found or average.info["run"] == found[-1].info["run"]
        if same_run and (not found or average.step >= found[-1].step):
            steps = average.info.get("steps", [])
            return average, f"model: {average.path} (average of {len(steps)} checkpoints){note}"
        reason = "is older than the newest checkpoint" if same_run else "is of another run than the checkpoints"
        note += f"; {average.path} is not used, since it {reason}: nmt average {path} renews it"
    if not found:
        if wrong:
            raise wrong[0]
        raise UserError(f"{path}: holds neither a bundle nor checkpoints", f"write some: nmt train RECIPE --out {path}")
    chosen = best(found)
    if chosen is None:
        return found[-1], f"model: {found[-1].path} (newest checkpoint){note}"
    return chosen, f"model: {chosen.path} (best dev {chosen.kind.label}, {chosen.dev_score:.2f}){note}"


def common_tokenizer(bundles: Sequence[Bundle]) -> Tokenizer:
    """Return the tokenizer of models that work together; raises UserError naming two whose tokenizers differ."""
    first, *others = bundles
    tokenizer = first.tokenizer()
    for other in others:
        if not other.tokenizer().equals(tokenizer):
            raise UserError(
                f"{first.path} and {other.path} have different tokenizers",
                "use models that were trained on the same prepared data, or one of them alone",
            )
    return tokenizer


def average(
    directory: Path,
    last: int | None = None,
    out: Path | None = None,
    best: int | None = None,
    console: Console | None = None,
) -> Bundle:
    """Average the newest `last` checkpoints of a run, or the `best` by dev score, into a bundle.

    The bundle is `out`, by default DIRECTORY/averaged. By default, `last` is the recipe's decoding.average_last. If
    there are fewer checkpoints, all are averaged. `console` shows the progress of reading them. Raises UserError if
    there are none, or if they are of different runs.
    """
    found, path = averageable(directory, out)
    chosen = ranked(found)[-best:] if best else found[-(last or found[-1].recipe.decoding.average_last) :]
    if not chosen:
        raise UserError(
            f"{directory}: none of its checkpoints has a dev score",
            "use --last N, which averages the newest; only runs with data.valid have dev scores",
        )
    mean = Mean(found[-1])
    with (console or Console(quiet=True)).progress("averaging", len(chosen), "checkpoints") as advance:
        for bundle in reversed(chosen):
            mean.add(bundle)
            advance(1)
    return mean.save(path, mean.weights())


def averageable(directory: Path, out: Path | None) -> tuple[list[Bundle], Path]:
    """Return the checkpoints of a run, oldest first, and the path of their average.

    Raises UserError if there are none, or if the average would replace something else than a bundle.
    """
    found = checkpoints(directory)
    if not found:
        there = "holds no checkpoints" if directory.is_dir() else "no such directory"
        raise UserError(f"{directory}: {there}", f"write some: nmt train RECIPE --out {directory}")
    path = out or directory / AVERAGED
    if (path / POSITION).exists():
        raise UserError(
            f"--out {path}: is a checkpoint, and its training state would be lost", "name another directory"
        )
    check_replaceable(path, MANIFEST)
    return found, path


class Mean:
    """The mean in fp32 of checkpoints that are added one by one; each is read once.

    The last bits of a sum depend on the order, so every caller adds the newest checkpoint first.
    """

    def __init__(self, newest: Bundle) -> None:
        """Begin the mean for the run whose newest checkpoint this is."""
        self.newest = newest
        self.steps: list[int] = []
        self._sums: dict[str, Tensor] = {}

    def add(self, bundle: Bundle) -> None:
        """Add a checkpoint; raises UserError if it is of another run, or its weights have other shapes."""
        newest = self.newest
        if bundle.info["run"] != newest.info["run"]:
            raise UserError(
                f"{bundle.path} and {newest.path} are of different runs, {bundle.info['run']} and {newest.info['run']}",
                f"move the checkpoints of one run out of {newest.path.parent}",
            )
        weights = {name: tensor.float() for name, tensor in bundle.weights().items()}
        sums = self._sums or {name: weight.new_zeros(weight.shape) for name, weight in weights.items()}
        for name in sorted(sums.keys() | weights.keys()):
            if name not in sums or name not in weights or sums[name].shape != weights[name].shape:
                raise UserError(
                    f"{bundle.path}: weight {name} is missing or of another shape than in {newest.path}",
                    f"move {bundle.path} away, and average the others",
                )
            sums[name] += weights[name]
        self._sums = sums
        self.steps.append(bundle.step)

    def weights(self) -> dict[str, Tensor]:
        """Return the mean of the checkpoints that were added so far, as a copy."""
        return {name: total / len(self.steps) for name, total in self._sums.items()}

    def save(self, path: Path, weights: Mapping[str, Tensor], count: int | None = None, **more: Any) -> Bundle:
        """Write `weights`, the mean of the first `count` checkpoints, by default of all; `more` is for bundle.json."""
        about = self.newest.info
        info: dict[str, Any] = {key: about[key] for key in ("run", "step", "data", "lengths", "cost") if key in about}
        info |= {"steps": sorted(self.steps[:count]), **more}
        save_bundle(path, weights, self.newest.recipe, self.newest.tokenizer(), info)
        return Bundle.read(path)


def initial_bundle(recipe: Recipe) -> Bundle | None:
    """Return the bundle that training.init_from names, if it names one; with training.init_state a checkpoint.

    Raises UserError if it is for another task, if it lacks a training state that it needs, or if the recipe gives a key
    of `model` another value than it has.
    """
    if recipe.training.init_from is None:
        return None
    path = Path(recipe.training.init_from)
    of_run, _ = survey(path) if recipe.training.init_state else ([], [])
    found = of_run[-1] if of_run else resolve(path)[0]
    found.check_task(recipe.task)
    if recipe.training.init_state and not (found.path / POSITION).exists():
        raise UserError(
            f"training.init_state: {found.path} is not a checkpoint and has no training state",
            "name a checkpoint, such as ckpts/step-00010000, or remove training.init_state",
        )
    before, given = found.recipe.model, recipe.model
    for key in sorted(given.model_fields_set - MAY_CHANGE):
        if (value := getattr(given, key)) != getattr(before, key):
            raise UserError(
                f"training.init_from: {found.path} has model.{key} {getattr(before, key)}, but the recipe has {value}",
                f"remove model.{key} from the recipe, whose model is then that of training.init_from, or "
                f"--set model.{key}={_plain(getattr(before, key))}",
            )
    return found


def _plain(value: object) -> str:
    """Show a value as `--set` takes it."""
    return value if isinstance(value, str) else json.dumps(value)


def with_model_of(recipe: Recipe, origin: Bundle | None) -> Recipe:
    """Return a recipe with the tokenizer of `origin`, and with its model except for the keys that the recipe gives."""
    if origin is None or recipe.training.init_from is None:
        return recipe
    values, before = recipe.model_dump(), origin.recipe
    given = {key: getattr(recipe.model, key) for key in recipe.model.model_fields_set}
    values |= {"model": {**before.model.model_dump(), **given}, "tokenizer": before.tokenizer.model_dump()}
    return validated(values, recipe.name)


def mix(models: Sequence[Bundle], shares: Sequence[float], out: Path) -> Bundle:
    """Write the mean of models, each with its share, as a bundle whose recipe and history are those of the last one.

    The shares are at least 0 and are divided by their sum, which is above 0. Raises UserError if the models are for
    different tasks, or differ in their tokenizers or in the shape of their weights.
    """
    check_replaceable(out, MANIFEST)
    last, total = models[-1], sum(shares)
    for model in models[:-1]:
        _check_same_shape(model, last)
    tokenizer = common_tokenizer(models)
    sums: dict[str, Tensor] = {}
    for model, share in zip(models, shares, strict=True):
        for name, weight in model.weights().items():
            if name in sums:
                sums[name].add_(weight.float(), alpha=share / total)
            else:
                sums[name] = weight.float() * (share / total)
    about = last.info
    info: dict[str, Any] = {key: about[key] for key in ("step", "data", "lengths", "cost") if key in about}
    parts = [(model.info["run"], model.step, share) for model, share in zip(models, shares, strict=True)]
    mixed = [{"run": run, "step": step, "weight": share / total} for run, step, share in parts]
    save_bundle(out, sums, last.recipe, tokenizer, {**info, "run": uuid4().hex[:12], "mixed": mixed})
    return Bundle.read(out)


def _check_same_shape(model: Bundle, other: Bundle) -> None:
    model.check_task(other.info["task"])
    ours, theirs = model.recipe.model, other.recipe.model
    for key in type(ours).model_fields:
        if key not in MAY_CHANGE and (value := getattr(ours, key)) != (its := getattr(theirs, key)):
            raise UserError(
                f"{model.path} and {other.path} differ in model.{key}: {value} and {its}",
                "average models of which one was trained from the other, by training.init_from",
            )
