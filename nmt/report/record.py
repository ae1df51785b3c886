"""Read a run's directory: recipe, metrics, dev scores and outputs, data, cost.

Reports need nothing else, so the run may be in progress, finished, or copied from another machine.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError

from nmt import recipe as recipes
from nmt.checkpoint.reading import AVERAGED, MANIFEST, Bundle, survey
from nmt.recipe import Recipe, Task
from nmt.system.console import BEYOND, Console
from nmt.system.errors import UserError
from nmt.system.files import read_json
from nmt.training.dev_outputs import SAMPLES, DevOutputs, read_samples, spread
from nmt.training.directory import ABOUT
from nmt.training.log import LOG, read_lines

if TYPE_CHECKING:
    from nmt.training.summary import RunSummary

Column = NDArray[np.float64]
LOGGED = ("step", "epoch", "seconds", "tokens", "loss", "perplexity", "learning_rate", "gradient_norm",
          "tokens_per_second", "mfu", "padding")  # fmt: skip
"""Training metrics shown on pages"""
MOST_SHOWN, MOST_BYTES = 20, 3_500_000  # maximum checkpoints with outputs on the page, and bytes of these outputs
Count = Annotated[int, Field(strict=True, ge=0, lt=2**63)]


class Split(BaseModel):
    """A split in report.json."""

    kept: Count


class About(BaseModel):
    """Contents of run.json, see `nmt.training.directory.about_run`."""

    version: str | None = None
    """Version of nmt that trained last"""
    command: str | None = None
    finished: Count | None = None
    """Last update, once training has ended"""
    parameters: Count | None = None
    base: dict[str, Any] | None = None
    data: dict[str, Split] = {}


@dataclass(frozen=True)
class RunRecord:
    """Everything known about a run; unknown values are empty or None."""

    path: Path
    recipe: Recipe
    validated: Mapping[str, Column]
    """Metrics of checkpoints with dev scores, each (checkpoints,): step, seconds, tokens, score (it ranks), others"""
    logged: Mapping[str, Column] = field(default_factory=lambda: dict.fromkeys(LOGGED, np.zeros(0)))
    """Metrics of logged updates, named as in `LOGGED`, each (logged steps,); NaN where missing or not finite"""
    base: Mapping[str, Any] = field(default_factory=dict)
    """Base recipe's values, or the defaults, of keys whose value differs in the run's recipe, by `section.key`"""
    base_name: str | None = None
    about: About = field(default_factory=About)
    average: Bundle | None = None
    """Average of the run's newest checkpoint and others, which `nmt translate` uses"""
    signatures: Mapping[str, str] = field(default_factory=dict)
    """How the dev scores were computed, by name"""
    sources: Sequence[str] = ()
    """Sentences of the development set for which outputs are stored"""
    references: Sequence[str] = ()
    unseen: Sequence[int] = ()
    """Of each source, the number of words that training has not seen"""
    dev_outputs: Sequence[DevOutputs] = ()
    """Ordered by step; for a long run, as many as fit the page: the first, best, last and some between"""
    cost: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `nmt.training.run_state.COST`"""
    averages: Sequence[tuple[int, float]] = ()
    """Number of averaged checkpoints, and the average's dev score"""

    @property
    def task(self) -> Task:
        """The recipe's task"""
        return self.recipe.task

    @property
    def step(self) -> int:
        """Last logged update; 0 before the first"""
        steps = self.logged["step"]
        return int(steps[-1]) if len(steps) else 0


def labels(records: Sequence[RunRecord]) -> list[str]:
    """Return a name for each run, unique on the page."""
    names = [record.recipe.name for record in records]
    unique = []
    for name, record in zip(names, records, strict=True):
        unique.append(name if names.count(name) == 1 else str(record.path))
    return unique


def read_run(path: Path) -> RunRecord:
    """Read the run in a directory, finished or not; raise UserError if there is none.

    Damaged checkpoints and lines are skipped.
    """
    found, _ = survey(path)
    recipe = _recipe(path, found)
    about = _about(path)
    base = _base(about)
    average = _read_average(path, found)
    in_use = average
    if average and found and average.step < found[-1].step:  # `nmt translate` takes a checkpoint instead
        in_use = None
    logged, validated = read_figures(path / LOG, recipe.task)
    ranks = map(recipe.task.rank, validated["score"])
    _, best = max(zip(ranks, validated["step"], strict=True), default=(0, 0))
    sources, references, outputs = read_samples(path / SAMPLES, lambda sizes: choose(sizes, int(best)))
    return RunRecord(
        path=path,
        recipe=recipe,
        validated=validated,
        logged=logged,
        base=_changed(plain(base or recipes.without_settings(recipe)), plain(recipe)),
        base_name=base.name if base else None,
        about=about,
        average=in_use,
        signatures=_newest_signatures(found),
        sources=sources,
        references=references,
        dev_outputs=outputs,
        cost=found[-1].cost if found else {},
        averages=_tried(average, recipe.task),
    )


def _about(path: Path) -> About:
    """Read a run's run.json; return an empty one if it is missing or damaged."""
    with suppress(UserError, ValidationError):
        return About.model_validate(read_json(path / ABOUT))
    return About()


def _base(about: About) -> Recipe | None:
    """Return the recipe from which a run's recipe differs; None if that is unknown."""
    with suppress(UserError):
        if about.base:
            return recipes.validated(about.base, ABOUT)
    return None


def _changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return the earlier values of changed keys of sections."""
    return {key: value for key, value in before.items() if "." in key and value != now[key]}


def _newest_signatures(found: Sequence[Bundle]) -> Mapping[str, str]:
    """Return the signatures of the newest checkpoint that has some."""
    for bundle in reversed(found):
        if bundle.signatures:
            return bundle.signatures
    return {}


def _tried(average: Bundle | None, task: Task) -> list[tuple[int, float]]:
    """Return the averages that were compared to choose this one: how many checkpoints, and the dev score."""
    tried = []
    for point in average.info.curve if average else []:
        if {"last", task.metric} <= point.keys():
            tried.append((int(point["last"]), point[task.metric]))
    return tried


def read_summarised(run: RunSummary, console: Console, compares: bool) -> RunRecord:
    """Read a run for `nmt score --runs`; for a bundle, only recipe, dev score and cost are known.

    If the page `compares` runs, also count the words that training has not seen, where its data is here.
    """
    from nmt.training.unseen import unseen_words

    try:
        record = read_run(run.path)
        if compares and record.dev_outputs:
            with suppress(UserError):
                unseen = unseen_words(run.bundle, run.path, record.sources, console)
                return replace(record, unseen=unseen)
        return record
    except UserError as error:
        console.say(f"{error.message}: the page has its dev score and cost, but no curves")
    point = {
        "step": run.updates,
        "seconds": run.cost.get("seconds"),
        "tokens": run.cost.get("tokens"),
        "score": run.score,
        "perplexity": None,
    }
    validated = {name: np.array([value], dtype=np.float64) for name, value in point.items()}
    return RunRecord(run.path, run.bundle.recipe, validated, signatures=run.bundle.signatures, cost=run.cost)


def read_figures(path: Path, task: Task) -> tuple[dict[str, Column], dict[str, Column]]:
    """Read the metrics of logged updates, each (logged steps,), and of dev scores, each (checkpoints,), by name.

    Missing and non-finite values are NaN. Damaged lines are skipped, such as the last one of a killed process. If a
    step has several lines, the last one counts. Dev scores before `new_dev_set` are left out: they are not comparable.
    """
    names = (*LOGGED, *(f"valid_{name}" for name in task.labels), "new_dev_set")
    rows = []
    with suppress(OSError):
        for _, values in read_lines(path):
            with suppress(ValueError, TypeError):  # not numbers
                rows.append([math.nan if (value := values.get(name)) is None else float(value) for name in names])
    table = np.array(rows).reshape(-1, len(names))
    columns = dict(zip(names, np.where(np.abs(table) < BEYOND, table, np.nan).T, strict=True))
    dev = {name: columns[name] for name in ("step", "seconds", "tokens")}
    dev |= {name: columns[f"valid_{name}"] for name in (*task.others, "perplexity")}
    dev |= {"score": columns[f"valid_{task.metric}"]}
    is_scored = ~(np.isnan(dev["score"]) & np.isnan(dev["perplexity"]))
    is_scored[: max(np.flatnonzero(columns["new_dev_set"] == 1), default=0)] = False
    return _rows({name: columns[name] for name in LOGGED}, ~np.isnan(columns["learning_rate"])), _rows(dev, is_scored)


def _rows(columns: Mapping[str, Column], chosen: NDArray[np.bool_]) -> dict[str, Column]:
    """Return the chosen rows sorted by step; if a step has several, the last one."""
    # Newest first, since np.unique returns the first row of each step
    newest_first = np.flatnonzero(chosen & ~np.isnan(columns["step"]))[::-1]
    _, first = np.unique(columns["step"][newest_first], return_index=True)
    return {name: column[newest_first[first]] for name, column in columns.items()}


def choose(sizes: Mapping[int, int], best: int) -> list[int]:
    """Choose the steps whose outputs to read, given how many bytes each checkpoint wrote.

    If there are too many, keep the first, `best`, the last, and others at even distances.
    """
    steps = sorted(sizes)
    in_bytes = MOST_BYTES * len(sizes) // max(1, sum(sizes.values()))  # as many as fit if all were of mean size
    room = max(3, min(MOST_SHOWN, in_bytes))
    if len(steps) <= room:
        return steps
    always = {steps[0], best, steps[-1]} & sizes.keys()
    others = [step for step in steps if step not in always]
    return sorted({*always, *spread(others, room - len(always))})


def _recipe(path: Path, found: Sequence[Bundle]) -> Recipe:
    """Read the resolved recipe of a run; raise UserError if `path` holds no run."""
    kept = path / "recipe.yaml"
    if found and not kept.exists():
        return found[-1].recipe
    if found or (path / LOG).exists() or (path / ABOUT).exists():
        return recipes.load(kept, alone=True)
    if not path.is_dir():
        what = "no such directory"
    elif os.path.lexists(path / MANIFEST):
        what = "is a bundle and no run"
    else:
        what = "holds no run"
    raise UserError(f"{path}: {what}", "name the directory of a run; nmt train RECIPE writes one to ckpts/")


def plain(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe's values as plain types, keyed by `section.key`; data sets without their defaults."""
    found: dict[str, Any] = {}
    for section, values in recipe.model_dump(mode="json").items():
        if isinstance(values, dict):
            for key, value in values.items():
                found[f"{section}.{key}"] = value
        else:
            found[section] = values
    for split, sets in recipe.data.splits.items():
        found[f"data.{split}"] = [each.model_dump(mode="json", exclude_defaults=True) for each in sets]
    return found


def _read_average(path: Path, found: Sequence[Bundle]) -> Bundle | None:
    """Read the average of a run's checkpoints.

    Return None if there is none, or if it is of another run or scored on an earlier development set.
    """
    with suppress(UserError):
        average = Bundle.read(path / AVERAGED)
        newest = (found or [average])[-1]
        if average.info.run == newest.info.run and average.is_scored_on(newest.info.dev_set):
            return average
    return None
