"""Average the checkpoints of a run, or several models."""

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

    Raises UserError if there are none, or if the average would replace anything but a bundle.
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
    """The running mean of checkpoints in fp32.

    The last bits of a sum depend on the order, so every caller adds the newest checkpoint first.
    """

    def __init__(self, newest: Bundle) -> None:
        """Begin the mean for the run of this newest checkpoint."""
        self.newest = newest
        self.steps: list[int] = []
        self._sums: dict[str, Tensor] = {}

    def add(self, bundle: Bundle) -> None:
        """Add a checkpoint; raises UserError if it is of another run, or if its weights have other shapes."""
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
        """Write `weights`, the mean of the first `count` checkpoints or of all; `more` goes into bundle.json."""
        about = self.newest.info
        info: dict[str, Any] = {key: about[key] for key in ("run", "step", "data", "lengths", "cost") if key in about}
        info |= {"steps": sorted(self.steps[:count]), **more}
        save_bundle(path, weights, self.newest.recipe, self.newest.tokenizer(), info)
        return Bundle.read(path)


def mix(models: Sequence[Bundle], shares: Sequence[float], out: Path) -> Bundle:
    """Write the weighted mean of models as a bundle with the recipe and history of the last one.

    The shares are at least 0 and are normalised by their sum, which is above 0. Raises UserError if the models are for
    different tasks, or differ in their tokenizers or in the shape of their weights.
    """
    check_replaceable(out, MANIFEST)
    last, total = models[-1], sum(shares)
    for model in models[:-1]:
        model.check_task(last.info["task"])
        for key, value in model.recipe.model:
            if key not in MAY_VARY and value != (its := getattr(last.recipe.model, key)):
                raise UserError(
                    f"{model.path} and {last.path} differ in model.{key}: {value} and {its}",
                    "average models of which one was trained from the other, by training.init_from",
                )
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
