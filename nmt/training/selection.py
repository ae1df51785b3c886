"""Selection by dev scores: how many checkpoints to average, and how a model splits lines."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmt.checkpoint.reading import AVERAGED, MANIFEST, Bundle, best, checkpoints, load_weights
from nmt.checkpoint.writing import Mean, add_info, average, plan_average, save_copy
from nmt.metrics.significance import SIGNIFICANT
from nmt.model.transformer import Transformer
from nmt.recipe import Recipe
from nmt.system.console import Console, figure
from nmt.system.errors import UserError, counted
from nmt.system.files import remove_directory
from nmt.training.budget import Budget
from nmt.training.lexicon import add_lexicon
from nmt.training.run_state import RunState
from nmt.training.validation import Validation, find_prepared

LINES_TO_COMPARE = 20  # minimum lines that decide how lines are split
LINES_TO_CHANGE = 200  # maximum lines that are translated in capitals, with typos and so on
WAYS = 5.0  # what all that costs, in validations of these lines: capitals take longer, but there is no perplexity
LITTLE = 0.03  # share of the minutes that it may take, since it does not make the model better
LAST_TENTH = 0.9  # of the fall of a learning rate to zero
SCORED = ("scores", "signatures", "interval", "confidence")  # keys of bundle.json
UNLIMITED = Budget(None, lambda: 0.0)


def write_default_average(
    directory: Path, out: Path | None, device: torch.device, console: Console, budget: Budget = UNLIMITED
) -> Bundle:
    """Average a run's newest `training.average_last` checkpoints.

    Once the learning rate has fallen almost to zero, the last checkpoint is usually the best, and older ones may do
    harm. Then average only as many as help on the development set or, if its scores are not here, the newest alone.
    """
    found, _ = plan_average(directory, out)
    newest = found[-1]
    if newest.recipe.training.falls:
        is_here = False
        with suppress(UserError):
            is_here = bool(newest.scores) and find_prepared(newest, directory).exists()
        if is_here:
            most = newest.recipe.training.average_last
            return write_best_average(directory, out, device, console, most, budget)
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
        by_updates = (checkpoint.step - training.warmup) / (training.updates - training.warmup)
        with suppress(UserError):
            return max(by_updates, RunState.of(checkpoint).fallen)
        return by_updates

    return [checkpoint for checkpoint in checkpoints if fallen(checkpoint) < LAST_TENTH]


def write_best_average(
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
    found, path = plan_average(directory, out)
    if most:
        found = found[-most:]
    newest = found[-1]
    task = newest.task
    validation = Validation.of(newest)
    mean = Mean(newest)
    for note in validation.notes:
        console.say(note)
    names = {key: f"dev {label}" for key, label in task.labels.items()}
    console.say("  ".join(["averaged", *names.values(), "updates"]))
    tried: dict[int, dict[str, Any]] = {}  # what bundle.json tells of scores, by number of checkpoints averaged
    counts = numbers_to_try(len(found))
    chosen = 0
    best_weights = dict[str, Tensor]()

    def rank(count: int) -> tuple[float, float]:
        scores = tried[count]["scores"]
        return task.rank(scores[task.metric]), -scores["perplexity"]

    with console.progress("scoring", len(counts), "averages") as advance:
        model = newest.model(device)
        for count, oldest in enumerate(reversed(found), 1):
            mean.add(oldest)
            if count not in counts:
                continue
            weights = mean.weights()
            if not chosen:  # the first counts even if there is no time to score it
                chosen = count
                best_weights = weights
            if most and count == 1 and newest.written.keys() >= set(SCORED):
                info: dict[str, Any] | None = _scores_of(newest)
            else:
                load_weights(model, weights, oldest.path)
                what = "averages of more are" if tried else "the average is"
                info = _info(validation, model, budget, console, what)
            if info is None:
                break
            tried[count] = info
            cells = [f"{info['scores'][key]:{len(name)}.2f}" for key, name in names.items()]
            console.say("  ".join([f"{count:8}", *cells, f"{oldest.step:,} to {newest.step:,}"]))
            if rank(count) > rank(chosen):
                chosen = count
                best_weights = weights
            best_score = tried[chosen]["scores"][task.metric]
            advance(1, f"best dev {task.label} {best_score:.2f} of {chosen}")
            if most and chosen != count:
                break
    curve = [{"last": count, **info["scores"]} for count, info in tried.items()]
    return mean.save(path, best_weights, chosen, curve=curve, **tried.get(chosen, {}))


def _scores_of(checkpoint: Bundle) -> dict[str, Any]:
    """Return what bundle.json tells of the scores of a checkpoint; of a run's last one, with an interval."""
    return {key: checkpoint.written[key] for key in SCORED if key in checkpoint.written}


def _info(
    validation: Validation, model: Transformer, budget: Budget, console: Console, what: str = "the average is"
) -> dict[str, Any] | None:
    """Score a model; return what bundle.json tells of its scores, or say why there is no time for them."""
    pace = budget.last_pace()
    if pace is None:
        return validation.info(validation(model))
    dev = validation.within(model, pace)
    info = None if dev is None else validation.info(dev)
    budget.scored(pace, info is not None)
    if info is None:
        console.say(f"{what} not scored: {pace.reason}")
    return info


def _info_of_copy(
    checkpoint: Bundle, validation: Validation, device: torch.device, console: Console, budget: Budget
) -> dict[str, Any]:
    """Return what bundle.json tells of the scores of a checkpoint as a model to translate with.

    Training gives an interval and a confidence to the last one alone; others are scored again if the budget allows.
    """
    scores = _scores_of(checkpoint)
    if not checkpoint.scores or scores.keys() >= set(SCORED):
        return scores
    return _info(validation, checkpoint.model(device), budget, console, "its confidence is") or scores


def score_and_choose_split(average: Bundle, run: Path, device: torch.device, console: Console) -> Bundle:
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
    """Say whether one checkpoint of a run is better than an average of several, and which command makes it the model.

    The newest one is scored unless that is done. Without the development set, say only which checkpoints are from too
    early in the training.
    """
    found = checkpoints(run)
    steps = average.info.steps
    task = average.task
    newest = found[-1]
    top = best(found)
    if steps == [newest.step] or "curve" in average.written:
        return

    def alone(option: str) -> str:
        command = ["nmt", "average", str(run), option, "1"]
        if average.path != run / AVERAGED:
            command += ["--out", str(average.path)]
        return shlex.join(command)

    early = [checkpoint.step for checkpoint in from_before_the_end(found)]
    averaged = [step for step in early if step in steps]
    if averaged:
        listed = f"{averaged[0]:,}"
        if len(averaged) > 1:
            listed += f" to {averaged[-1]:,}"
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
        said = f"  the {name} checkpoint alone, update {step:,}: dev {task.label} {figure(own)}"
        if is_better:
            console.say(f"{said}, which is better: {alone(option)}")
        elif name == "newest":
            console.say(said)


def lines_to_compare(validation: Validation, recipe: Recipe) -> list[int]:
    """Return the dev lines that tell how a translator is to split lines; none if these are too few, or if that is set.

    Not splitting at all is no candidate: lines longer than those of the development set would lose their ends.
    """
    if recipe.task.name != "translate" or recipe.decoding.split != "auto":
        return []
    rows = validation.unlike_splits()
    if len(rows) < LINES_TO_COMPARE:
        return []
    return rows


def cost_of_splits(validation: Validation, recipe: Recipe) -> float:
    """Return how long `choose_split` takes, in validations: some lines both ways, then all lines by the better one."""
    rows = lines_to_compare(validation, recipe)
    if not rows:
        return 0.0
    return 1.0 + 2.0 * len(rows) / len(validation.sources)


def choose_split(
    average: Bundle, validation: Validation, device: torch.device, console: Console, budget: Budget = UNLIMITED
) -> Bundle:
    """Make splitting at every sentence a translator's default if that has a significantly better dev score than auto.

    Leave a recipe alone that asks for another way than auto, and a model that has learnt too little to tell.
    """
    recipe = average.recipe
    if average.is_poor:
        return average
    rows = lines_to_compare(validation, recipe)
    if not rows:
        return average
    if not budget.fits(cost_of_splits(validation, recipe) * (budget.scoring or 0.0)):
        console.say("  decoding.split is not chosen by dev scores: training.minutes leaves no time for it")
        return average
    comparison = validation.compare_splits(average.model(device), rows)
    at_sentences = comparison.system.score
    by_auto = comparison.baseline.score
    is_better = at_sentences > by_auto and comparison.p_value < SIGNIFICANT
    console.say(
        f"  {len(rows):,} dev lines with several sentences: {recipe.task.label} {at_sentences:.2f} if split at "
        f"every sentence, {by_auto:.2f} by auto (p = {comparison.p_value:.3f}); "
        f"decoding.split: {'sentences' if is_better else 'auto'}"
    )
    if not is_better:
        return average
    decoding = recipe.decoding.model_copy(update={"split": "sentences"})
    recipe = recipe.model_copy(update={"decoding": decoding})
    average = save_copy(average, average.path, recipe=recipe)
    return _scored(average, validation.with_split("sentences"), device)


def cost_of_robustness(validation: Validation, recipe: Recipe, budget: Budget) -> float:
    """Return how long `measure_robustness` takes, in validations; 0 if it is left out."""
    lines = len(validation.sources)
    cost = WAYS * min(lines, LINES_TO_CHANGE) / lines
    if recipe.task.name != "translate" or cost * (budget.scoring or 0.0) > LITTLE * budget.total:
        return 0.0
    return cost


def measure_robustness(directory: Path, device: torch.device, console: Console, budget: Budget = UNLIMITED) -> None:
    """Add to the average of a run's checkpoints how it scores on dev lines in capitals, with typos and so on.

    Leave alone a parser, a model that has learnt too little, and one that has no dev score. Say so if the budget leaves
    no time, of which it may take a `LITTLE`.
    """
    path = directory / AVERAGED
    if not (path / MANIFEST).exists():
        return
    bundle = Bundle.read(path)
    if bundle.task.has_trees or not bundle.scores or bundle.is_poor or bundle.info.robustness:
        return
    with suppress(UserError):  # the development set is not here
        validation = Validation.of(bundle)
        cost = cost_of_robustness(validation, bundle.recipe, budget)
        if not cost or not budget.fits(cost * (budget.scoring or 0.0)):
            console.say("  capitals and typos are not tried for the report: training.minutes leaves no time for it")
            return
        with console.progress("scoring", 1, "average on changed lines") as advance:
            add_info(path, {"robustness": validation.robustness(bundle.model(device), LINES_TO_CHANGE)})
            advance(1)


def write_final_average(
    directory: Path, device: torch.device, console: Console, budget: Budget = UNLIMITED
) -> Bundle | None:
    """Average the newest checkpoints of a run, score the average, and choose how it splits lines.

    Return the average, or None if it was there or there is none. If the average is worse than the best checkpoint, that
    one takes its place. What the budget leaves no time for is left out, and said.
    """
    found = checkpoints(directory)
    path = directory / AVERAGED
    newest = found[-1]
    top = best(found)
    if (path / MANIFEST).exists():
        there = Bundle.read(path)
        is_same = (there.info.run, there.step) == (newest.info.run, newest.step)
        if is_same and there.is_scored_on(newest.info.dev_set) and (there.dev_score is not None or top is None):
            return None
    command = shlex.join(["nmt", "average", str(directory)])
    later = f"not averaged: training.minutes leaves no time for it; later: {command}"
    if not budget.fits(budget.saving):
        console.say(later)
        return None
    result = write_default_average(directory, None, device, console, budget)
    steps = result.info.steps
    averaged = f"averaged {counted(len(steps), 'checkpoint')}"
    said = f"{averaged}: {path}"
    if newest.recipe.data.valid:
        validation = Validation.of(result)
        if not result.scores:
            if steps == [newest.step]:
                info: dict[str, Any] | None = _info_of_copy(newest, validation, device, console, budget)
            else:
                info = _info(validation, result.model(device), budget, console)
            if info is None:  # it may be worse than a checkpoint
                remove_directory(path)
                console.say(later)
                return None
            add_info(path, info)
            result = Bundle.read(path)
        if result.scores and top is not None and best([top, result]) is top:  # of equals, the latest
            console.say(f"{averaged}, {result.described_score}: worse than the best of them")
            said = f"copied {top.path}: {path}"
            average(directory, best=1)
            add_info(path, _info_of_copy(top, validation, device, console, budget))
            result = Bundle.read(path)
        if result.scores:
            said += f", {choose_split(result, validation, device, console, budget).described_score}"
    console.say(said)
    return add_lexicon(Bundle.read(path), directory, console, budget)


def numbers_to_try(most: int) -> list[int]:
    """Return the Fibonacci numbers 1, 2, 3, 5, 8, … below `most`, followed by `most`."""
    numbers = []
    number = 1
    following = 2
    while number < most:
        numbers.append(number)
        number, following = following, number + following
    return [*numbers, most]
