"""The report page of one or more runs: a single HTML file that works offline.

A section consists of a function that turns runs into plain values, and a Jinja template for them. The page contains its
scripts and styles; its security policy allows no others.

During training, `nmt/training/report_process.py` runs this module as a child to refresh a run's page.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from nmt.report import charts, compared, sections
from nmt.report.record import RunRecord, labels, read_run
from nmt.system.console import clock
from nmt.system.errors import UserError, counted
from nmt.system.files import whole_file
from nmt.training.directory import PAGE

TEMPLATES = Path(__file__).parent / "templates"
NICENESS = 10
JINJA = jinja2.Environment(
    loader=jinja2.FileSystemLoader(TEMPLATES),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
JINJA.policies["json.dumps_kwargs"] = {"separators": (",", ":")}  # the default sorts keys


SECTIONS: dict[str, tuple[str, Callable[[Sequence[RunRecord]], Mapping[str, Any] | None]]] = {
    "curves": ("Curves", charts.content),
    "sentences": ("Dev sentences", sections.packed_sentences),
    "compared": ("Where the outputs differ", compared.content),
    "recipe": ("Recipe and cost", sections.recipes_and_costs),
}
"""By name, which is the anchor and the stem of NAME.html, NAME.css and NAME.js: a section's title, and what returns the
template's `content`; None omits the section"""


def write_page(records: Sequence[RunRecord], path: Path) -> None:
    """Write a page about at least one run; an existing page at `path` is replaced atomically.

    Raise UserError if `path` cannot be written.
    """
    shown = {}
    for name, (title, content_of) in SECTIONS.items():
        content = content_of(records)
        if content is not None:
            shown[name] = (title, content)
    parts = ["colours", "page", "brackets", "words", *shown]
    html = render("page.html", parts, overview=overview(records), sections=shown, written=datetime.now(UTC))
    with whole_file(path) as stream:
        stream.write(html.encode())


def render(template: str, parts: Sequence[str], before: Sequence[str] = (), allowed: str = "", **values: Any) -> str:
    """Render a template with `values` and with the styles and scripts of `parts`; the page can run no other scripts.

    Scripts `before` come first. `allowed` continues the sources of scripts in its security policy.
    """
    styles = _read_parts(parts, ".css")
    scripts = [*before, *_read_parts(parts, ".js")]
    sources = " ".join([*map(_policy_source, scripts), allowed])
    policy = f"default-src 'none'; script-src {sources}; style-src 'unsafe-inline'; img-src data: blob:; font-src data:"
    return JINJA.get_template(template).render(styles=styles, scripts=scripts, policy=policy, **values)


def _read_parts(parts: Sequence[str], suffix: str) -> list[str]:
    """Return the text of each part that has a file with this suffix."""
    texts = []
    for part in parts:
        path = TEMPLATES / f"{part}{suffix}"
        if path.exists():
            texts.append(path.read_text("utf-8"))
    return texts


def _policy_source(script: str) -> str:
    """Return the expression by which a security policy allows exactly this script."""
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def attempt(out: Path) -> str | None:
    """Write the report.html of the run in a directory; return an error message, or None on success."""
    try:
        write_page([read_run(out)], out / PAGE)
    except UserError as error:
        return f"{error.message}; {error.hint}"
    except Exception as error:  # a bug in the report must not end the training
        return f"{type(error).__name__}: {error}"[:200]
    return None


RECENT = 20  # number of log lines from which to estimate the time left
UNKNOWN = "–"
RELOAD = 30  # seconds after which the page of a run that is under way loads itself anew


def overview(records: Sequence[RunRecord]) -> Mapping[str, Any]:
    """Return the values for the overview, the top of the page."""
    names = labels(records)
    runs = list(map(_run, records, names))
    is_under_way = "Under way" in [run["progress"] for run in runs]
    return {
        "title": names[0] if len(names) == 1 else f"{len(names)} runs compared",
        "runs": runs,
        "signatures": _signatures(records),
        "reload": RELOAD if is_under_way else None,
    }


def _signatures(records: Sequence[RunRecord]) -> list[str]:
    """Describe how the dev scores were computed, without repetition."""
    found: list[str] = []
    for record in records:
        for name, signature in record.signatures.items():
            label = record.task.labels.get(name, name)
            text = f"Dev {label}: {signature}"
            if text not in found:
                found.append(text)
    return found


def _run(record: RunRecord, name: str) -> Mapping[str, Any]:
    """Return a run's values for the overview."""
    training = record.recipe.training
    parameters = record.about.parameters
    best = _best(record)
    taken = _latest(record, "seconds")
    budget = 60 * (training.minutes or math.inf)  # seconds
    is_finished = record.about.finished is not None or record.step >= training.updates
    if is_finished:
        progress = "Finished"
        share = 1.0
    else:
        progress = "Under way" if record.step else "Not yet begun"
        share = min(1.0, max(record.step / training.updates, (taken or 0.0) / budget))
    goal = f"of {training.updates:,}"
    if budget < math.inf:
        goal = f"in {clock(taken or 0.0)} of {clock(budget)}"
    return {
        "name": name,
        "record": record,
        "model": _model(record),
        "parameters": None if parameters is None else short(parameters),
        "goal": goal,
        "share": share,
        "progress": progress,
        "headline": _headline(record, best),
        "facts": _facts(record, taken, is_finished),
        "cells": _cells(record, best, taken),
    }


def _facts(record: RunRecord, taken: float | None, is_finished: bool) -> dict[str, str]:
    """Return what is known of a run's time, data, cost and origin, by term."""
    about = record.about
    facts: dict[str, str] = {}
    if taken is not None:
        facts["Time taken"] = clock(taken)
    left = seconds_left(record)
    if left and not is_finished:
        facts["Time left"] = f"about {clock(left)}"
    if "train" in about.data:
        facts["Trained on"] = counted(about.data["train"].kept, "pair")
    tokens = _latest(record, "tokens")
    if tokens is not None:
        facts["Target tokens seen"] = short(tokens)
    flops = record.cost.get("flops")
    if flops is not None:
        facts["FLOPs"] = f"{flops:.2g}"
    devices = _devices(record)
    if devices:
        facts["Devices"] = devices
    facts["Seed"] = str(record.recipe.training.seed)
    if about.version:
        facts["Version"] = f"nmt {about.version}"
    return facts


def _headline(record: RunRecord, best: tuple[float, int] | None) -> tuple[float, str, str] | None:
    """Return the dev score of the model that `nmt translate` uses, its name and details; None without scores."""
    task = record.task
    average = record.average
    if average is None or average.dev_score is None:
        if best is None:
            return None
        score, step = best
        return score, f"best dev {task.label}, at update {step:,}", ""
    steps = average.info.steps
    of = f"the average of {len(steps)} checkpoints" if len(steps) > 1 else f"update {steps[0]:,}"
    details = []
    interval = average.info.interval
    if interval:
        details.append(f"95% interval {interval[0]:.2f} to {interval[1]:.2f}")
    for key, name in task.others.items():
        if key in average.scores:
            details.append(f"{name} {average.scores[key]:.2f}")
    if best and steps != [best[1]]:
        details.append(f"best checkpoint: {best[0]:.2f}, update {best[1]:,}")
    return average.dev_score, f"dev {task.label} of {of}", "; ".join(details)


Cell = tuple[str, float | str]
"""Text and sort key"""


def _cells(record: RunRecord, best: tuple[float, int] | None, taken: float | None) -> dict[str, Cell]:
    """Return a run's cells in the table that compares runs, by column."""
    cost = record.cost

    def scored(score: float) -> str:
        return f"{record.task.label} {score:.2f}"

    averaged = record.average.dev_score if record.average else None
    newest = int(record.validated["step"].max(initial=0))
    model = _model(record)
    devices = _devices(record) or UNKNOWN
    return {
        "Averaged model": _cell(averaged, scored),
        "Best checkpoint": _cell(best and best[0], scored),
        "Updates": _cell(record.step or newest, "{:,}".format),
        "Time": _cell(taken, clock),
        "FLOPs counted": _cell(cost.get("flops"), "{:.1e}".format),
        "FLOPs by the paper": _cell(cost.get("estimated_flops"), "{:.1e}".format),
        "Target tokens": _cell(cost.get("tokens"), short),
        "Parameters": _cell(record.about.parameters, short),
        "Model": (model, model),
        "Devices": (devices, devices),
    }


def _cell(number: float | None, write: Callable[[float], str]) -> Cell:
    """Return the cell of a number, by which it is sorted; None sorts before all others."""
    if number is None:
        return UNKNOWN, -1.0
    return write(number), number


def _model(record: RunRecord) -> str:
    """Describe the model's dimensions."""
    model = record.recipe.model
    layers = f"{model.layers} + {model.decoder_depth} layers"
    return f"{layers}, d_model {model.d_model:,}, d_ff {model.d_ff:,}, {model.heads} heads"


def _devices(record: RunRecord) -> str:
    """List the devices used; empty if unknown."""
    return ", ".join(record.cost.get("devices", ()))


def _best(record: RunRecord) -> tuple[float, int] | None:
    """Return the best dev score, the latest in a tie, with its update; None if there is none."""

    def rank(point: tuple[float, float]) -> tuple[float, float]:
        score, step = point
        return record.task.rank(score), step

    scored = zip(record.validated["score"], record.validated["step"], strict=True)
    score, step = max(scored, key=rank, default=(math.nan, 0))
    return (float(score), int(step)) if math.isfinite(score) else None


def _latest(record: RunRecord, name: str) -> float | None:
    """Return the last logged `seconds` or `tokens`, or the newest checkpoint's; None if unknown."""
    if record.step:
        logged = record.logged[name][-1]
        if np.isfinite(logged):
            return float(logged)
    return record.cost.get(name)


def seconds_left(record: RunRecord) -> float | None:
    """Estimate the remaining time in seconds from the newest log lines; None if there are fewer than two.

    What is left of training.minutes includes averaging and scoring at the end.
    """
    training = record.recipe.training
    known = np.isfinite(record.logged["seconds"])
    steps = record.logged["step"][known][-RECENT:]
    seconds = record.logged["seconds"][known][-RECENT:]
    if len(steps) < 2 or steps[-1] <= steps[0]:
        return None
    updates = max(0, training.updates - record.step)
    by_updates = updates * (seconds[-1] - seconds[0]) / (steps[-1] - steps[0])
    by_budget = max(0.0, 60 * (training.minutes or math.inf) - seconds[-1])
    return float(min(by_budget, by_updates))


def short(number: float) -> str:
    """Format a number with three significant digits: 980, 7.55 million, 1.2 billion."""
    for size, name in ((1e9, "billion"), (1e6, "million")):
        if number >= size:
            return f"{number / size:.3g} {name}"
    return f"{number:,.0f}"


def main(out: Path) -> None:
    """Write the page at low priority; send the parent any error message as JSON."""
    os.nice(NICENESS)
    problem = json.dumps(attempt(out))
    Connection(0).send_bytes(problem.encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
