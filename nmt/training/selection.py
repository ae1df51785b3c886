"""Models compared by dev score: averages of checkpoints, ways of splitting lines, and runs beside one another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nmt.checkpoint.averaging import Mean, average, averageable
from nmt.checkpoint.reading import AVERAGED, MANIFEST, Bundle, best, checkpoints, load_weights, survey
from nmt.checkpoint.writing import add_info, save_bundle
from nmt.exchange.resolve import resolve
from nmt.system.console import Console, clock, figure
from nmt.system.errors import UserError, printable
from nmt.training.run_files import COST
from nmt.training.validation import DevScores, Validation

LINES_TO_COMPARE, SIGNIFICANT = 20, 0.05  # minimum lines and maximum p-value that decide how lines are split


def average_by_score(directory: Path, out: Path | None, device: torch.device, console: Console) -> Bundle:
    """Average a run's newest 1, 2, 3, 5, 8, … and all checkpoints, and write the average with the best dev score.

    The score is the task's metric of outputs searched as in training, or a language model's perplexity. Ties go to the
    lower perplexity, then to the smaller number. Each checkpoint is read once. bundle.json holds the scores and, as
    `curve`, those of every number tried. Raise UserError if there are no checkpoints, if they are from different runs,
    or if their data is not prepared here.
    """
    found, path = averageable(directory, out)
    newest, task = found[-1], found[-1].task
    validation, mean, model = Validation.of(newest), Mean(newest), newest.model(device)
    for note in validation.notes:
        console.say(note)
    names = {key: f"dev {label}" for key, label in task.labels.items()}
    console.say("  ".join(["averaged", *names.values(), "updates"]))
    tried: dict[int, DevScores] = {}  # by number of checkpoints averaged
    sizes = numbers_to_try(len(found))
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
            ranks = {n: (task.rank(of.scores[task.metric]), -of.scores["perplexity"]) for n, of in tried.items()}
            last = max(ranks, key=ranks.__getitem__)
            if last == count:
                best_weights = weights
            advance(1, f"best dev {task.label} {tried[last].scores[task.metric]:.2f} of {last}")
    curve = [{"last": count, **dev.scores} for count, dev in tried.items()]
    return mean.save(path, best_weights, last, curve=curve, **validation.info(tried[last]))


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
    result = average(directory, console=console)
    averaged = f"averaged {len(result.info['steps'])} checkpoints"
    said = f"{averaged}: {path}"
    if top is not None and top.dev_score is not None:
        validation = Validation.of(result)
        result = _scored(result, validation, device)
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


# --- the table of `nmt score --runs` -----------------------------------------------------------------------

UNKNOWN = "–"
COSTS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "FLOPs by the paper": ("estimated_flops", "{:.1e}".format),
    "FLOPs counted": ("flops", "{:.1e}".format),
    "time": ("seconds", clock),
    "target tokens": ("tokens", "{:,}".format),
}


@dataclass(frozen=True)
class RunSummary:
    """Dev score and cost of a run: one row of the table."""

    path: Path
    bundle: Bundle  # bundle that commands use by default
    updates: int
    score: float | None  # the bundle's dev score, computed as in training
    signature: str | None
    cost: dict[str, Any]  # of the whole run, keyed by `COST`; empty if the bundle lacks it

    def as_dict(self) -> dict[str, Any]:
        """Return the values for --json."""
        score = {"metric": self.bundle.task.metric, "score": self.score, "signature": self.signature}
        cost = {name: self.cost.get(name) for name in COST}
        return {"model": str(self.path), "bundle": str(self.bundle.path), "dev": score, "updates": self.updates, **cost}

    def cells(self) -> dict[str, str]:
        """Return the row's cells, keyed by column heading."""
        costs = {
            heading: UNKNOWN if (value := self.cost.get(key)) is None else write(value)
            for heading, (key, write) in COSTS.items()
        }
        return {
            "model": str(self.path),
            "dev score": UNKNOWN if self.score is None else f"{self.bundle.task.label} {figure(self.score)}",
            **costs,
            "updates": f"{self.updates:,}",
            "devices": ", ".join(self.cost.get("devices", ())) or UNKNOWN,
        }


def summarise(path: Path, device: torch.device, console: Console) -> RunSummary:
    """Summarise a run, given its directory or one of its bundles.

    Score a bundle without a dev score now, if its data is prepared. Raise UserError if `path` holds no model.
    """
    bundle, note = resolve(path)
    console.say(note)
    newest = next(reversed(survey(path)[0]), bundle)
    score, signature = bundle.dev_score, bundle.signatures.get(bundle.task.metric)
    if score is None:
        try:
            validation = Validation.of(bundle)
        except UserError as error:
            console.say(f"no dev score: {error.message}")
        else:
            dev = validation(bundle.model(device))
            score, signature = dev.scores[bundle.task.metric], dev.signatures[bundle.task.metric]
    return RunSummary(path, bundle, newest.step, score, signature, newest.cost)


def table(runs: Sequence[RunSummary], width: int = 0) -> str:
    """Format runs as a table with the columns of the paper's Table 2, followed by their dev scores' signatures.

    If a row is wider than `width`, unless that is 0, models and devices get lines of their own, and so do the figures
    if that is not enough.
    """
    cells = [run.cells() for run in runs]
    rows = [list(cells[0]), *(list(row.values()) for row in cells)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines, stacked = [], list[str]()
    for model, *figures, devices in rows:
        aligned = [cell.rjust(width) for cell, width in zip(figures, widths[1:-1], strict=True)]
        lines.append("  ".join([model.ljust(widths[0]), *aligned, devices]))
        stacked += [f"{model}, on {devices}", "  " + "  ".join(aligned)]
    if 0 < width < max(map(len, lines)):
        lines = stacked[1:]
    if 0 < width < len(stacked[1]):
        heads = max(map(len, rows[0]))
        lines = []
        for model, *figures, devices in rows[1:]:
            named = zip(rows[0][1:-1], figures, strict=True)
            lines += [f"{model}, on {devices}", *(f"  {name:{heads}}  {cell}" for name, cell in named)]
    signatures = {f"dev {run.bundle.task.label}: {run.signature}": None for run in runs if run.signature}
    return "\n".join(map(printable, (*lines, *signatures)))
