"""The report page of one or more runs: a single HTML file that works offline.

A section consists of a function that turns runs into plain values, and a Jinja template for them. The page contains its
scripts and styles; its security policy allows no others.

During training, `nmt/training/progress.py` runs this module as a child to refresh a run's page.
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

from nmt.report import charts, sections
from nmt.report.record import RunRecord, labels, read_run
from nmt.system.console import clock
from nmt.system.errors import UserError
from nmt.system.files import whole_file
from nmt.training.run_files import PAGE

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
    "recipe": ("Recipe and cost", sections.recipes_and_costs),
}
"""By name, which is the anchor and the stem of NAME.html, NAME.css and NAME.js: a section's title, and what returns the
template's `content`; None omits the section"""


def write_page(records: Sequence[RunRecord], path: Path) -> None:
    """Write a page about at least one run; an existing page at `path` is replaced atomically.

    Raise UserError if `path` cannot be written.
    """
    contents = {name: (title, content(records)) for name, (title, content) in SECTIONS.items()}
    shown = {name: section for name, section in contents.items() if section[1] is not None}
    parts = ["colours", "page", "brackets", "words", *shown]
    html = render("page.html", parts, overview=overview(records), sections=shown, written=datetime.now(UTC))
    with whole_file(path) as stream:
        stream.write(html.encode())


def render(template: str, parts: Sequence[str], **values: Any) -> str:
    """Render a template with `values` and with the styles and scripts of `parts`; the page can run no other scripts."""
    paths = ([(TEMPLATES / part).with_suffix(suffix) for part in parts] for suffix in (".css", ".js"))
    styles, scripts = ([path.read_text("utf-8") for path in each if path.exists()] for each in paths)
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    policy = f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; font-src data:"
    return JINJA.get_template(template).render(styles=styles, scripts=scripts, policy=policy, **values)


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
    runs = [_run(record, name) for record, name in zip(records, names, strict=True)]
    signatures = dict.fromkeys(f"Dev {r.task.labels.get(n, n)}: {s}" for r in records for n, s in r.signatures.items())
    return {
        "title": names[0] if len(names) == 1 else f"{len(names)} runs compared",
        "runs": runs,
        "signatures": signatures,
        "reload": RELOAD if any(run["progress"] == "Under way" for run in runs) else None,
    }


def _run(record: RunRecord, name: str) -> Mapping[str, Any]:
    """Return a run's values for the overview."""
    recipe, about, cost = record.recipe, record.about, record.cost
    best, left = _best(record), seconds_left(record)
    taken, tokens = (_latest(record, name) for name in ("seconds", "tokens"))
    updates, budget = recipe.training.updates, 60 * (recipe.training.minutes or math.inf)
    finished = about.finished is not None or record.step >= updates
    share = max(record.step / updates, (taken or 0.0) / budget)
    examples = about.data["train"].kept if "train" in about.data else None
    facts = {
        "Time taken": None if taken is None else clock(taken),
        "Time left": None if finished or not left else f"about {clock(left)}",
        "Trained on": None if examples is None else f"{examples:,} pairs",
        "Target tokens seen": None if tokens is None else short(tokens),
        "FLOPs": None if cost.get("flops") is None else f"{cost['flops']:.2g}",
        "Devices": ", ".join(cost.get("devices", ())),
        "Seed": str(recipe.training.seed),
        "Version": about.version and f"nmt {about.version}",
    }
    return {
        "name": name,
        "record": record,
        "model": _model(record),
        "parameters": None if about.parameters is None else short(about.parameters),
        "goal": f"of {updates:,}" if budget == math.inf else f"in {clock(taken or 0.0)} of {clock(budget)}",
        "share": 1.0 if finished else min(1.0, share),
        "progress": "Finished" if finished else "Under way" if record.step else "Not yet begun",
        "headline": _headline(record, best),
        "facts": {term: text for term, text in facts.items() if text},
        "cells": _cells(record, best, taken),
    }


def _headline(record: RunRecord, best: tuple[float, int] | None) -> tuple[float, str, str] | None:
    """Return the dev score of the model that `nmt translate` uses, its name and details; None without scores."""
    label, average = record.task.label, record.average
    if average is None or average.dev_score is None:
        return best and (best[0], f"best dev {label}, at update {best[1]:,}", "")
    steps, interval = average.info.steps, average.info.interval
    of = f"the average of {len(steps)} checkpoints" if len(steps) > 1 else f"update {steps[0]:,}"
    more = [f"95% interval {interval[0]:.2f} to {interval[1]:.2f}"] if interval else []
    more += [f"{name} {average.scores[key]:.2f}" for key, name in record.task.others.items() if key in average.scores]
    if best and steps != [best[1]]:
        more.append(f"best checkpoint: {best[0]:.2f}, update {best[1]:,}")
    return average.dev_score, f"dev {label} of {of}", "; ".join(more)


Cell = tuple[str, float | str]
"""Text and sort key"""


def _cells(record: RunRecord, best: tuple[float, int] | None, taken: float | None) -> dict[str, Cell]:
    """Return a run's cells in the table that compares runs, by column."""
    cost, task, average = record.cost, record.task, record.average
    averaged, single = average.dev_score if average else None, best[0] if best else None
    numbers: dict[str, tuple[float | None, Callable[[float], str]]] = {
        "Averaged model": (averaged, lambda score: f"{task.label} {score:.2f}"),
        "Best checkpoint": (single, lambda score: f"{task.label} {score:.2f}"),
        "Updates": (record.step or int(record.validated["step"].max(initial=0)), "{:,}".format),
        "Time": (taken, clock),
        "FLOPs counted": (cost.get("flops"), "{:.1e}".format),
        "FLOPs by the paper": (cost.get("estimated_flops"), "{:.1e}".format),
        "Target tokens": (cost.get("tokens"), short),
        "Parameters": (record.about.parameters, short),
    }
    texts = {"Model": _model(record), "Devices": ", ".join(cost.get("devices", ())) or UNKNOWN}
    cells = {name: (UNKNOWN, -1.0) if n is None else (write(n), n) for name, (n, write) in numbers.items()}
    return cells | {name: (text, text) for name, text in texts.items()}


def _model(record: RunRecord) -> str:
    """Describe the model's dimensions."""
    model = record.recipe.model
    layers = f"{model.layers} + {model.decoder_depth} layers"
    return f"{layers}, d_model {model.d_model:,}, d_ff {model.d_ff:,}, {model.heads} heads"


def _best(record: RunRecord) -> tuple[float, int] | None:
    """Return the best dev score, the latest in a tie, with its update; None if there is none."""
    scored = zip(record.validated["score"], record.validated["step"], strict=True)
    score, step = max(scored, key=lambda point: (record.task.rank(point[0]), point[1]), default=(math.nan, 0))
    return (float(score), int(step)) if math.isfinite(score) else None


def _latest(record: RunRecord, name: str) -> float | None:
    """Return the last logged `seconds` or `tokens`, or the newest checkpoint's; None if unknown."""
    logged = record.logged[name][-1] if record.step else np.nan
    return float(logged) if np.isfinite(logged) else record.cost.get(name)


def seconds_left(record: RunRecord) -> float | None:
    """Estimate the remaining time in seconds from the newest log lines; None if there are fewer than two.

    What is left of training.minutes includes averaging and scoring at the end.
    """
    known = np.isfinite(record.logged["seconds"])
    steps, seconds = (record.logged[name][known][-RECENT:] for name in ("step", "seconds"))
    if len(steps) < 2 or steps[-1] <= steps[0]:
        return None
    remaining = max(0, record.recipe.training.updates - record.step)
    in_time = max(0.0, 60 * (record.recipe.training.minutes or math.inf) - seconds[-1])
    return float(min(in_time, remaining * (seconds[-1] - seconds[0]) / (steps[-1] - steps[0])))


def short(number: float) -> str:
    """Format a number with three significant digits: 980, 7.55 million, 1.2 billion."""
    for size, name in ((1e9, "billion"), (1e6, "million")):
        if number >= size:
            return f"{number / size:.3g} {name}"
    return f"{number:,.0f}"


def main(out: Path) -> None:
    """Write the page at low priority; send the parent any error message as JSON."""
    os.nice(NICENESS)
    Connection(0).send_bytes(json.dumps(attempt(out)).encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
