"""What the directory of a run tells about it: recipe, figures, dev scores and outputs, data, cost.

A report is made from this alone, so it can be made of a run that goes on, has ended, or was copied from elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, FiniteFloat, TypeAdapter, ValidationError

from nmt import recipe as recipes
from nmt.bundle import AVERAGED, MANIFEST, Bundle, survey
from nmt.errors import UserError
from nmt.files import read_json
from nmt.recipe import Recipe
from nmt.report.figures import read_figures
from nmt.training.progress import ABOUT, METRICS
from nmt.training.samples import SAMPLES, DevOutputs, read_samples, spread

__all__ = ["DevOutputs", "RunRecord", "read_run"]

MOST_SHOWN, MOST_BYTES = 20, 3_500_000  # checkpoints whose outputs are read, and the size of these outputs
LENGTHS = "sentences by length in subwords, up to"
Count = Annotated[int, Field(strict=True, ge=0, lt=2**63)]


class _Split(BaseModel, extra="allow", strict=True):
    """What report.json has of a split; everything without a name here is a count or a mean."""

    __pydantic_extra__: dict[str, Count | FiniteFloat]
    read: Count
    kept: Count
    kept_by_set: list[Count] = Field([], alias="kept by set")
    lengths: dict[Annotated[str, Field(pattern="^[0-9]{1,9}$")], Count] = Field({}, alias=LENGTHS)


@dataclass(frozen=True)
class RunRecord:
    """All that is known of a run; what is not known is empty or None."""

    path: Path
    recipe: Recipe
    base: Mapping[str, Any]
    """Of the keys in which the recipe differs from the one that it extends, or from the defaults: the value there, as a
    plain one, by `section.key`"""
    base_name: str | None
    """The name of the recipe that it extends"""
    parameters: int | None
    logged: Mapping[str, NDArray[np.float64]]
    """Figures of the training log, each (logged steps,): step, epoch, seconds, tokens, loss, perplexity, learning_rate,
    gradient_norm, tokens_per_second, padding and more; NaN where a figure was not finite"""
    validated: Mapping[str, NDArray[np.float64]]
    """Figures of the checkpoints with dev scores, each (checkpoints,): step, seconds, tokens, score, perplexity"""
    signature: str | None
    """How the dev score was computed"""
    sources: Sequence[str]
    """Sentences of the development set that outputs are kept of"""
    references: Sequence[str]
    dev_outputs: Sequence[DevOutputs]
    """By step; of a long run as many as the page can hold: the first, the best, the last and some between them"""
    data: Mapping[str, Any]
    """report.json of the prepared data"""
    cost: Mapping[str, Any]
    """See `nmt.training.cost.COST`"""
    averages: Sequence[tuple[int, float]]
    """Number of averaged checkpoints and the dev score of their average"""

    @property
    def step(self) -> int:
        """The last update that is logged; 0 before the first."""
        return int(self.logged["step"][-1]) if len(self.logged["step"]) else 0


def read_run(path: Path) -> RunRecord:
    """Read the run in a directory, perhaps one that is going on; raises UserError where there is none.

    Checkpoints and lines that are damaged are left out.
    """
    found, _ = survey(path)
    recipe = _recipe(path, found)
    kind, about = recipe.kind, _about(path)
    before = _base(about)
    logged, validated = read_figures(path / METRICS, kind.metric)
    signatures = [str(bundle.info["signature"]) for bundle in found if "signature" in bundle.info]
    scored = zip(map(kind.rank, validated["score"]), validated["step"], strict=True)
    finest = int(max(scored, default=(0, 0))[1])
    sources, references, outputs = read_samples(path / SAMPLES, lambda sizes: choose(sizes, finest))
    return RunRecord(
        path=path,
        recipe=recipe,
        base=_changed(before or recipes.without_settings(recipe), recipe),
        base_name=before.name if before is not None else None,
        parameters=_checked(Count, about.get("parameters")),
        logged=logged,
        validated=validated,
        signature=signatures[-1] if signatures else None,
        sources=sources,
        references=references,
        dev_outputs=outputs,
        data=_data(about),
        cost=found[-1].cost if found else {},
        averages=_averages(path, found),
    )


def choose(sizes: Mapping[int, int], finest: int) -> list[int]:
    """Choose the steps whose outputs are read, from the sizes in bytes of what each checkpoint wrote.

    Without a limit they are all; of too many the first, the best, `finest`, the last, and others at even distances.
    """
    steps = sorted(sizes)
    room = max(3, min(MOST_SHOWN, MOST_BYTES * len(sizes) // max(1, sum(sizes.values()))))
    if len(steps) <= room:
        return steps
    always = {steps[0], finest, steps[-1]} & sizes.keys()
    others = [step for step in steps if step not in always]
    return sorted({*always, *spread(others, room - len(always))})


def _recipe(path: Path, found: Sequence[Bundle]) -> Recipe:
    """Read the resolved recipe of a run with these checkpoints; raises UserError where there is none."""
    kept = path / "recipe.yaml"
    if found or (path / METRICS).exists() or (path / ABOUT).exists():
        return recipes.load_resolved(kept) if kept.exists() or not found else found[-1].recipe
    what = "is a bundle and no run" if os.path.lexists(path / MANIFEST) else "holds no run"
    raise UserError(
        f"{path}: {what if path.is_dir() else 'no such directory'}",
        "name the directory of a run; nmt train RECIPE writes one to ckpts/",
    )


def _about(path: Path) -> Mapping[str, Any]:
    """Read a run's run.json; empty for a run of an earlier version."""
    try:
        about = read_json(path / ABOUT)
    except UserError:
        return {}
    return about if isinstance(about, dict) else {}


def _checked(kind: Any, value: object) -> Any:
    """The value if it is of this kind, None if it is not."""
    with suppress(ValidationError):
        return TypeAdapter(kind).validate_python(value)
    return None


def _data(about: Mapping[str, Any]) -> dict[str, Any]:
    """What was read, kept and dropped of each split of the data, without splits that are damaged."""
    data = about.get("data")
    splits = data.items() if isinstance(data, dict) else ()
    return {split: figures for split, figures in splits if _checked(_Split, figures) is not None}


def _base(about: Mapping[str, Any]) -> Recipe | None:
    """The recipe that the run's recipe extends, if it extends one."""
    with suppress(UserError):
        return recipes.validated(about["base"], ABOUT) if about.get("base") is not None else None
    return None


def _changed(before: Recipe, recipe: Recipe) -> dict[str, Any]:
    """The values before, as plain ones, of the keys that a recipe changes."""
    old, new = before.model_dump(mode="json"), recipe.model_dump(mode="json")
    keys = [(section, key) for section, values in old.items() if isinstance(values, dict) for key in values]
    return {f"{section}.{key}": old[section][key] for section, key in keys if old[section][key] != new[section][key]}


def _averages(path: Path, found: Sequence[Bundle]) -> list[tuple[int, float]]:
    """The dev score of every number of checkpoints that `nmt average --last auto` tried, if it was run on this run."""
    try:
        average = Bundle.read(path / AVERAGED)
    except UserError:
        return []
    curve = average.info.get("curve")
    if not isinstance(curve, list) or (found and average.info["run"] != found[-1].info["run"]):
        return []
    points = [(point.get("last"), point.get(average.kind.metric)) for point in curve if isinstance(point, dict)]
    return [(last, score) for last, score in points if isinstance(last, int) and isinstance(score, float)]
