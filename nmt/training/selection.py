"""Selection by dev scores: how many checkpoints to average, and how a model splits lines."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import torch

from nmt.checkpoint.reading import AVERAGED, MANIFEST, Bundle, best, checkpoints, load_weights
from nmt.checkpoint.writing import Mean, add_info, average, averageable, save_bundle
from nmt.system.console import Console
from nmt.system.errors import UserError
from nmt.training.validation import DevScores, Validation, find_prepared

LINES_TO_COMPARE, SIGNIFICANT = 20, 0.05  # minimum lines and maximum p-value that decide how lines are split


def average_newest(directory: Path, out: Path | None, device: torch.device, console: Console) -> Bundle:
    """Average a run's newest `decoding.average_last` checkpoints.

    Where the learning rate is to fall to zero, the last checkpoint is the best and older ones may do harm: then average
    only as many as help on the development set, if that is here.
    """
    newest = averageable(directory, out)[0][-1]
    recipe, is_here = newest.recipe, False
    with suppress(UserError):
        is_here = recipe.training.falls and bool(newest.scores) and find_prepared(newest, directory).exists()
    if is_here:
        return average_by_score(directory, out, device, console, recipe.decoding.average_last)
    return average(directory, out=out, console=console)


def average_by_score(
    directory: Path, out: Path | None, device: torch.device, console: Console, most: int | None = None
) -> Bundle:
    """Average a run's newest 1, 2, 3, 5, 8, … and all checkpoints, and write the average with the best dev score.

    With `most`, average at most that many, and try no larger number once one has not scored better. The score is the
    task's metric of outputs searched as in training. Ties go to the lower perplexity,
    then to the smaller number. Each checkpoint is read once. bundle.json holds the scores and, as `curve`, those of
    every number tried. Raise UserError if there are no checkpoints, if they are from different runs, or if their data
    is not prepared here.
    """
    found, path = averageable(directory, out)
    found = found[-(most or len(found)) :]
    newest, task = found[-1], found[-1].task
    validation, mean, model = Validation.of(newest), Mean(newest), newest.model(device)
    for note in validation.notes:
        console.say(note)
    names = {key: f"dev {label}" for key, label in task.labels.items()}
    console.say("  ".join(["averaged", *names.values(), "updates"]))
    tried: dict[int, DevScores] = {}  # by number of checkpoints averaged
    sizes, chosen = numbers_to_try(len(found)), 0

    def rank(dev: DevScores) -> tuple[float, float]:
        return task.rank(dev.scores[task.metric]), -dev.scores["perplexity"]

    with console.progress("scoring", len(sizes), "averages") as advance:
        for count, bundle in enumerate(reversed(found), 1):
            mean.add(bundle)
            if count not in sizes:
                continue
            weights = mean.weights()
            load_weights(model, weights, bundle.path)
            dev = tried[count] = validation(model)
            cells = (f"{dev.scores[key]:{len(name)}.2f}" for key, name in names.items())
            console.say("  ".join([f"{count:8}", *cells, f"{bundle.step:,} to {newest.step:,}"]))
            if not chosen or rank(dev) > rank(tried[chosen]):
                chosen, best_weights = count, weights
            advance(1, f"best dev {task.label} {tried[chosen].scores[task.metric]:.2f} of {chosen}")
            if most and chosen != count:
                break
    curve = [{"last": count, **dev.scores} for count, dev in tried.items()]
    return mean.save(path, best_weights, chosen, curve=curve, **validation.info(tried[chosen]))


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


def choose_split(average: Bundle, validation: Validation, device: torch.device, console: Console) -> Bundle:
    """Make splitting at every sentence a translator's default if that has a significantly better dev score than auto.

    Leave a recipe alone that asks for another way than auto, and a model that has learnt too little to tell. Not
    splitting at all is no candidate: lines longer than those of the development set would lose their ends.
    """
    recipe = average.recipe
    if recipe.task.name != "translate" or recipe.decoding.split != "auto" or average.is_poor:
        return average
    if len(rows := validation.unlike_splits()) < LINES_TO_COMPARE:
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
    info = {key: value for key, value in average.info.items() if key not in ("format", "task", "lossy", "hashes")}
    save_bundle(average.path, average.weights(), recipe, average.tokenizer(), info)
    return _scored(Bundle.read(average.path), validation.with_split("sentences"), device)


def average_and_score(directory: Path, device: torch.device, console: Console) -> None:
    """Average the newest checkpoints of a run, score the average, and choose how it splits lines, unless that is done.

    If the average is worse than the best checkpoint, that one takes its place.
    """
    found, path = checkpoints(directory), directory / AVERAGED
    newest, top = found[-1], best(found)
    if (path / MANIFEST).exists():
        there = Bundle.read(path)
        is_same = (there.info["run"], there.step) == (newest.info["run"], newest.step)
        if is_same and there.is_scored_on(newest.info) and (there.dev_score is not None or top is None):
            return
    result = average_newest(directory, None, device, console)
    count = len(result.info["steps"])
    averaged = f"averaged {count} checkpoint{'s' if count > 1 else ''}"
    said = f"{averaged}: {path}"
    if top is not None:
        validation = Validation.of(result)
        result = result if result.scores else _scored(result, validation, device)
        if best([top, result]) is top:  # of equals, the latest
            console.say(f"{averaged}, {result.described_score}: worse than the best of them")
            said = f"copied {top.path}: {path}"
            result = _scored(average(directory, best=1), validation, device)
        said += f", {choose_split(result, validation, device, console).described_score}"
    console.say(said)
    console.say(f"next: {newest.task.command} --model {directory}")


def numbers_to_try(most: int) -> list[int]:
    """Return the Fibonacci numbers 1, 2, 3, 5, 8, … below `most`, followed by `most`."""
    numbers = [1, 2]
    while numbers[-1] < most:
        numbers.append(sum(numbers[-2:]))
    return [number for number in numbers if number < most] + [most]
