"""The weighted mean of models of one shape, such as of a model before and after it was trained on other data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from nmt.bundle.reading import MANIFEST, Bundle
from nmt.bundle.runs import MAY_CHANGE, common_tokenizer
from nmt.bundle.writing import save_bundle
from nmt.errors import UserError
from nmt.files import check_replaceable

if TYPE_CHECKING:
    from torch import Tensor


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
