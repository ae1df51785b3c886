"""Selection by dev scores: how many checkpoints to average, and how a model splits lines."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmt.checkpoint.reading import AVERAGED, MANIFEST, Bundle, best, checkpoints, load_weights
from nmt.checkpoint.writing import Mean, add_info, average, averageable, save_bundle
from nmt.model.transformer import Transformer
from nmt.recipe import Recipe
from nmt.system.console import Console, figure
from nmt.system.errors import UserError
from nmt.system.files import remove_directory
from nmt.training.budget import Budget
from nmt.training.run_files import RunState
from nmt.training.validation import Validation, find_prepared

LINES_TO_COMPARE, SIGNIFICANT = 20, 0.05  # minimum lines and maximum p-value that decide how lines are split
LAST_TENTH = 0.9  # of the fall of a learning rate to zero
SCORED = ("scores", "signatures", "interval")  # keys of bundle.json
UNLIMITED = Budget(None, lambda: 0.0)


def average_newest(
    directory: Path, out: Path | None, device: torch.device, console: Console, budget: Budget = UNLIMITED
) -> Bundle:
    """Average a run's newest `training.average_last` checkpoints.

    Once the learning rate has fallen almost to zero, the last checkpoint is usually the best, and older ones may do
    harm. Then average only as many as help on the development set or, if its scores are not here, the newest alone.
    """
    newest = averageable(directory, out)[0][-1]
    recipe, is_here = newest.recipe, False
    if recipe.training.falls:
        with suppress(UserError):
            is_here = bool(newest.scores) and find_prepared(newest, directory).exists()
        if is_here:
            return average_by_score(directory, out, device, console, recipe.training.average_last, budget)
        if not from_before_the_end([newest]):
            console.say("the learning rate has fallen: without dev scores, the newest checkpoint is kept alone")
            return average(directory, 1, out, console=console)
    return average(directory, out=out, console=console)


def from_before_the_end(checkpoints: Sequence[Bundle]) -> list[Bundle]:
    """Return those of a run's checkpoints, oldest first, that are from before the last tenth of a falling rate."""
    training = checkpoints[-1].recipe.training
    if not training.falls:
        return []

    def fallen(checkpoint: Bundle) -> float:
        by_updates, by_minutes = (checkpoint.step - training.warmup) / (training.updates - training.warmup), 0.0
        with suppress(UserError):
            by_minutes = RunState.of(checkpoint).fallen
        return max(by_updates, by_minutes)

    return [checkpoint for checkpoint in checkpoints if fallen(checkpoint) < LAST_TENTH]


def average_by_score(
    directory: Path,
    out: Path | None,
    device: torch.device,
    console: Console,
    most: int | None = None,
    budget: Budget = UNLIMITED,
) -> Bundle:
    """Average a run's newest 1, 2, 3, 5, 8, … and all checkpoints, and write the average with the best dev score.

    With `most`, average at most that many, take the scores of the newest checkpoint from training, and try no larger
    number once one has not scored better or the `budget` leaves no time. The score is the task's metric of outputs
    searched as in training. Ties go to the lower perplexity, then to the smaller number. Each checkpoint is read once.
    bundle.json holds the scores and, as `curve`, those of every number tried. Raise UserError if there are no
    checkpoints, if they are from different runs, or if their data is not prepared here.
    """
    found, path = averageable(directory, out)
    found = found[-(most or len(found)) :]
    newest, task = found[-1], found[-1].task
    validation, mean = Validation.of(newest), Mean(newest)
    for note in validation.notes:
        console.say(note)
    names = {key: f"dev {label}" for key, label in task.labels.items()}
    console.say("  ".join(["averaged", *names.values(), "updates"]))
    tried: dict[int, dict[str, Any]] = {}  # what bundle.json tells of scores, by number of checkpoints averaged
    sizes, chosen, best_weights = numbers_to_try(len(found)), 0, dict[str, Tensor]()

    def rank(count: int) -> tuple[float, float]:
        scores = tried[count]["scores"]
        return task.rank(scores[task.metric]), -scores["perplexity"]

    known = _scores_of(newest) if most and "interval" in newest.written else None
    score = partial(_info, validation, budget=budget, console=console)
    with console.progress("scoring", len(sizes), "averages") as advance:
        for count, oldest, weights, info in _averages(found, sizes, mean, device, known, score):
            if not chosen:
                chosen, best_weights = count, weights
            if info is None:
                break
            tried[count] = info
            cells = (f"{info['scores'][key]:{len(name)}.2f}" for key, name in names.items())
            console.say("  ".join([f"{count:8}", *cells, f"{oldest.step:,} to {newest.step:,}"]))
            if rank(count) > rank(chosen):
                chosen, best_weights = count, weights
            advance(1, f"best dev {task.label} {tried[chosen]['scores'][task.metric]:.2f} of {chosen}")
            if most and chosen != count:
                break
    curve = [{"last": count, **info["scores"]} for count, info in tried.items()]
    return mean.save(path, best_weights, chosen, curve=curve, **tried.get(chosen, {}))


def _averages(
    found: Sequence[Bundle],
    sizes: Sequence[int],
    mean: Mean,
    device: torch.device,
    known: dict[str, Any] | None,
    score: Callable[[Transformer], dict[str, Any] | None],
) -> Iterator[tuple[int, Bundle, dict[str, Tensor], dict[str, Any] | None]]:
    """Yield averages of as many of the newest checkpoints as `sizes` say, smallest first.

    Each is its number of checkpoints, the oldest of these, the weights, and what bundle.json tells of its scores, by
    `score`; of the newest checkpoint alone, that may be `known`.
    """
    model = found[-1].model(device)
    for count, bundle in enumerate(reversed(found), 1):
        mean.add(bundle)
        if count in sizes:
            weights = mean.weights()
            info = known if count == 1 else None
            if info is None:
                load_weights(model, weights, bundle.path)
                info = score(model)
            yield count, bundle, weights, info


def _scores_of(checkpoint: Bundle) -> dict[str, Any]:
    """Return what bundle.json tells of the scores of a checkpoint; of a run's last one, with an interval."""
    return {key: checkpoint.written[key] for key in SCORED if key in checkpoint.written}


def _info(validation: Validation, model: Transformer, *, budget: Budget, console: Console) -> dict[str, Any] | None:
    """Score a model; return what bundle.json tells of its scores, or say why there is no time for them."""
    pace = budget.last_pace()
    dev = validation(model) if pace is None else validation.within(model, pace)
    info = None if dev is None else validation.info(dev)
    if pace is not None:
        budget.scored(pace, info is not None)
        if info is None:
            console.say(f"the average is not scored: {pace.reason}")
    return info


def score_average(average: Bundle, run: Path, device: torch.device, console: Console) -> Bundle:
    """Score an average of a run on its development set unless that is done, and choose how it splits lines.

    Leave it as it is if the development set is not here.
    """
    if not average.recipe.data.valid:
        return average
    try:
        validation = Validation.of(average, run)
    except UserError as error:
        console.say(f"  the average is not scored: {error.message}")
        return average
    if average.dev_score is None:
        with console.progress("scoring", 1, "average") as advance:
            average = _scored(average, validation, device)
            advance(1)
    return choose_split(average, validation, device, console)


def _scored(average: Bundle, validation: Validation, device: torch.device) -> Bundle:
    add_info(average.path, validation.info(validation(average.model(device))))
    return Bundle.read(average.path)


def compare_with_one(average: Bundle, run: Path, device: torch.device, console: Console) -> None:
    """Say whether one checkpoint of a run is better than an average of several of them, and what makes it the model.

    The newest one is scored unless that is done. Without the development set, say only which checkpoints are from too
    early in the training.
    """
    found, steps, task = checkpoints(run), average.info.steps, average.task
    newest, top = found[-1], best(found)
    if steps == [newest.step] or "curve" in average.written:
        return
    out = ["--out", str(average.path)] if average.path != run / AVERAGED else []

    def alone(option: str) -> str:
        return shlex.join(["nmt", "average", str(run), option, "1", *out])

    early = [checkpoint.step for checkpoint in from_before_the_end(found)]
    if averaged := [f"{step:,}" for step in early if step in steps]:
        listed = " to ".join(dict.fromkeys((averaged[0], averaged[-1])))
        console.say(f"  from before the last tenth of the falling learning rate: {listed}")
    if average.dev_score is None:
        if averaged and newest.step not in early:
            console.say(f"  the newest checkpoint alone is usually better then: {alone('--last')}")
        return
    score = newest.dev_score
    if score is None:
        with console.progress("scoring", 1, "checkpoint") as advance:
            score = Validation.of(newest, run)(newest.model(device)).scores[task.metric]
            advance(1)
    singles = [("newest", newest.step, score, "--last")]
    if top is not None and top.step != newest.step:
        singles.append(("best", top.step, top.scores[task.metric], "--best"))
    for name, step, own, option in singles:
        is_better = task.rank(own) > task.rank(average.dev_score)
        if is_better or name == "newest":
            said = f"  the {name} checkpoint alone, update {step:,}: dev {task.label} {figure(own)}"
            console.say(f"{said}, which is better: {alone(option)}" if is_better else said)


def lines_to_compare(validation: Validation, recipe: Recipe) -> list[int]:
    """Return the dev lines that tell how a translator is to split lines; none if these are too few, or if that is set.

    Not splitting at all is no candidate: lines longer than those of the development set would lose their ends.
    """
    if recipe.task.name != "translate" or recipe.decoding.split != "auto":
        return []
    rows = validation.unlike_splits()
    return rows if len(rows) >= LINES_TO_COMPARE else []


def cost_of_splits(validation: Validation, recipe: Recipe) -> float:
    """Return how long `choose_split` takes, in validations: both ways, and once more all lines by the better one."""
    rows = lines_to_compare(validation, recipe)
    return 1.0 + 2.0 * len(rows) / len(validation.sources) if rows else 0.0


def choose_split(
    average: Bundle, validation: Validation, device: torch.device, console: Console, budget: Budget = UNLIMITED
) -> Bundle:
    """Make splitting at every sentence a translator's default if that has a significantly better dev score than auto.

    Leave a recipe alone that asks for another way than auto, and a model that has learnt too little to tell.
    """
    recipe = average.recipe
    rows = [] if average.is_poor else lines_to_compare(validation, recipe)
    if not rows:
        return average
    if not budget.fits(cost_of_splits(validation, recipe) * (budget.scoring or 0.0)):
        console.say("  decoding.split is not chosen by dev scores: training.minutes leaves no time for it")
        return average
    one = validation.compare_splits(average.model(device), rows)
    better = one.system.score > one.baseline.score and one.p_value < SIGNIFICANT
    console.say(
        f"  {len(rows):,} dev lines with several sentences: {recipe.task.label} {one.system.score:.2f} if split at "
        f"every sentence, {one.baseline.score:.2f} by auto (p = {one.p_value:.3f}); "
        f"decoding.split: {'sentences' if better else 'auto'}"
    )
    if not better:
        return average
    recipe = recipe.model_copy(update={"decoding": recipe.decoding.model_copy(update={"split": "sentences"})})
    info = {key: value for key, value in average.written.items() if key not in ("format", "task", "lossy", "hashes")}
    save_bundle(average.path, average.weights(), recipe, average.tokenizer(), info)
    return _scored(Bundle.read(average.path), validation.with_split("sentences"), device)


def average_and_score(directory: Path, device: torch.device, console: Console, budget: Budget = UNLIMITED) -> None:
    """Average the newest checkpoints of a run, score the average, and choose how it splits lines, unless that is done.

    If the average is worse than the best checkpoint, that one takes its place. What the budget leaves no time for is
    left out, and said.
    """
    found, path = checkpoints(directory), directory / AVERAGED
    newest, top = found[-1], best(found)
    if (path / MANIFEST).exists():
        there = Bundle.read(path)
        is_same = (there.info.run, there.step) == (newest.info.run, newest.step)
        if is_same and there.is_scored_on(newest.info.dev_set) and (there.dev_score is not None or top is None):
            return
    command = shlex.join(["nmt", "average", str(directory)])
    later = f"not averaged: training.minutes leaves no time for it; later: {command}"
    if not budget.fits(budget.saving):
        console.say(later)
        return
    result = average_newest(directory, None, device, console, budget)
    steps = result.info.steps
    averaged = f"averaged {len(steps)} checkpoint{'s' if len(steps) > 1 else ''}"
    said = f"{averaged}: {path}"
    if newest.recipe.data.valid:
        validation = Validation.of(result)
        if not result.scores:
            info: dict[str, Any] | None = _scores_of(newest)
            if steps != [newest.step]:
                info = _info(validation, result.model(device), budget=budget, console=console)
            if info is None:  # it may be worse than a checkpoint
                remove_directory(path)
                console.say(later)
                return
            add_info(path, info)
            result = Bundle.read(path)
        if result.scores and top is not None and best([top, result]) is top:  # of equals, the latest
            console.say(f"{averaged}, {result.described_score}: worse than the best of them")
            said = f"copied {top.path}: {path}"
            average(directory, best=1)
            add_info(path, _scores_of(top))
            result = Bundle.read(path)
        if result.scores:
            said += f", {choose_split(result, validation, device, console, budget).described_score}"
    console.say(said)
    console.say(f"next: {newest.task.command} --model {directory}")


def numbers_to_try(most: int) -> list[int]:
    """Return the Fibonacci numbers 1, 2, 3, 5, 8, … below `most`, followed by `most`."""
    numbers = [1, 2]
    while numbers[-1] < most:
        numbers.append(sum(numbers[-2:]))
    return [number for number in numbers if number < most] + [most]
