"""Average a run's checkpoints, or the weights of several models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from nmt.checkpoint.reading import AVERAGED, MANIFEST, MAY_VARY, POSITION, Bundle, checkpoints, common_tokenizer, ranked
from nmt.checkpoint.writing import save_bundle
from nmt.system.console import Console
from nmt.system.errors import UserError
from nmt.system.files import check_replaceable

if TYPE_CHECKING:
    from torch import Tensor

KEPT = ("step", "data", "train_data", "dev_set", "lengths", "cost")  # of bundle.json, for an average


def average(
    directory: Path,
    last: int | None = None,
    out: Path | None = None,
    best: int | None = None,
    console: Console | None = None,
) -> Bundle:
    """Write the average of a run's newest `last` checkpoints, or its `best` by dev score, as a bundle.

    `out` defaults to DIRECTORY/averaged, `last` to the recipe's decoding.average_last. If there are fewer checkpoints,
    average all. `console` shows progress. Raise UserError if there are none, or if they are from different runs.
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
    """Return a run's checkpoints, oldest first, and the path for their average.

    Raise UserError if there are none, or if the average would replace anything but a bundle.
    """
    found = checkpoints(directory)
    if not found:
        there = "holds no checkpoints" if directory.is_dir() else "no such directory"
        raise UserError(f"{directory}: {there}", f"train a model: nmt train RECIPE --out {directory}")
    path = out or directory / AVERAGED
    if (path / POSITION).exists():
        raise UserError(
            f"--out {path}: is a checkpoint, and its training state would be lost", "name another directory"
        )
    check_replaceable(path, MANIFEST)
    return found, path


class Mean:
    """The running mean of a run's checkpoints, in fp32.

    The last bits of a sum depend on the order, so callers add the newest checkpoint first.
    """

    def __init__(self, newest: Bundle) -> None:
        """Start an empty mean; `newest` is the run's newest checkpoint."""
        self.newest = newest
        self.steps: list[int] = []
        self._sums: dict[str, Tensor] = {}

    def add(self, bundle: Bundle) -> None:
        """Add a checkpoint; raise UserError if it is from another run, or if the weights' shapes differ."""
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
        """Return a copy of the mean so far."""
        return {name: total / len(self.steps) for name, total in self._sums.items()}

    def save(self, path: Path, weights: Mapping[str, Tensor], count: int | None = None, **more: Any) -> Bundle:
        """Write `weights`, the mean of the first `count` checkpoints (default: all), with `more` in bundle.json."""
        about = self.newest.info
        info: dict[str, Any] = {key: about[key] for key in ("run", *KEPT) if key in about}
        info |= {"steps": sorted(self.steps[:count]), **more}
        save_bundle(path, weights, self.newest.recipe, self.newest.tokenizer(), info)
        return Bundle.read(path)


def mix(models: Sequence[Bundle], shares: Sequence[float], out: Path) -> Bundle:
    """Write the weighted mean of models as a bundle with the last model's recipe and history.

    The shares are non-negative and are normalised by their sum, which must be positive. Raise UserError if the models'
    tasks, tokenizers or weight shapes differ.
    """
    check_replaceable(out, MANIFEST)
    last, total = models[-1], sum(shares)
    parts = [(model, share / total) for model, share in zip(models, shares, strict=True)]
    for model in models[:-1]:
        model.check_task(last.info["task"])
        for key, value in model.recipe.model:
            if key not in MAY_VARY and value != (other := getattr(last.recipe.model, key)):
                raise UserError(
                    f"{model.path} and {last.path} differ in model.{key}: {value} and {other}",
                    "average models of which one was trained from the other, by training.init_from",
                )
    tokenizer = common_tokenizer(models)
    sums: dict[str, Tensor] = {}
    for model, share in parts:
        for name, weight in model.weights().items():
            if name in sums:
                sums[name].add_(weight.float(), alpha=share)
            else:
                sums[name] = weight.float() * share
    about = last.info
    info: dict[str, Any] = {key: about[key] for key in KEPT if key in about}
    mixed = [{"run": model.info["run"], "step": model.step, "weight": share} for model, share in parts]
    save_bundle(out, sums, last.recipe, tokenizer, {**info, "run": uuid4().hex[:12], "mixed": mixed})
    return Bundle.read(out)
