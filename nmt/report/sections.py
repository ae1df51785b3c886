"""The sections of a run's page beside its curves: dev sentences, recipe and cost."""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nmt.parsing.brackets import DELETED
from nmt.recipe.yaml_files import dump
from nmt.report.record import RunRecord, labels, plain
from nmt.system.console import clock
from nmt.training.robustness import LABELS, LINES, PLAIN, figures

# --- dev sentences ------------------------------------------------------------------------------------------------
# To keep the page small, an output shared by several checkpoints is stored once, and a sentence's outputs are adjacent,
# which helps deflate. The page inflates the outputs, and compares only those on display with the references.


def packed_sentences(records: Sequence[RunRecord]) -> Mapping[str, Any] | None:
    """Compress the distinct development sets and the outputs for `sentences.js`, and name the units it compares.

    Return None without outputs.
    """
    shown = [record for record in records if record.dev_outputs]
    if not shown:
        return None
    sets: dict[tuple[tuple[str, ...], tuple[str, ...]], int] = {}
    runs = []
    units = set()
    for name, record in zip(labels(shown), shown, strict=True):
        texts = (tuple(record.sources), tuple(record.references))
        number = sets.setdefault(texts, len(sets))
        runs.append({"set": number, "name": name, **_run(record)})
        units.add("constituents" if record.task.has_trees else "words")
    distinct = [{"sources": sources, "references": references} for sources, references in sets]
    values = {"sets": distinct, "runs": runs, "unscored": sorted(DELETED)}
    written = json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    packed = base64.b64encode(zlib.compress(written)).decode()
    return {"packed": packed, "parts": " or ".join(sorted(units))}


def _run(record: RunRecord) -> dict[str, Any]:
    task = record.task
    source = record.recipe.data.source
    target = record.recipe.data.target
    measure = "chrF"
    if task.has_trees:
        target = source
        measure = "F1"
    scored = zip(record.validated["step"], record.validated["score"], strict=True)
    dev_scores = {step: round(float(score), 2) for step, score in scored if math.isfinite(score)}
    steps = [checkpoint.step for checkpoint in record.dev_outputs]
    return {
        "languages": [source, target],
        "trees": task.has_trees,
        "metric": task.label,
        "measure": measure,
        "steps": steps,
        "devScores": [dev_scores.get(step) for step in steps],
        "sentences": [_sentence(record, number) for number in range(len(record.sources))],
    }


def _sentence(record: RunRecord, number: int) -> list[list[Any]]:
    """Return a sentence's distinct outputs, their scores, and the index of each checkpoint's output."""
    scores: dict[str, float] = {}
    for checkpoint in record.dev_outputs:
        scores.setdefault(checkpoint.outputs[number], round(checkpoint.scores[number], 1))
    distinct = list(scores)
    given = [distinct.index(checkpoint.outputs[number]) for checkpoint in record.dev_outputs]
    return [distinct, list(scores.values()), given]


# --- recipe and cost ----------------------------------------------------------------------------------------------


def recipes_and_costs(records: Sequence[RunRecord]) -> Mapping[str, Any]:
    """Return each run's recipe, changed keys, cost and averages, and the keys in which the recipes differ."""
    recipes = [plain(record.recipe) for record in records]
    runs = list(map(_recipe_and_cost, labels(records), records, recipes))
    return {"runs": runs, "differences": _differences(recipes)}


def _recipe_and_cost(name: str, record: RunRecord, recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's values; the best average is marked, in a tie the one of the fewest checkpoints."""
    tried = sorted(record.averages)
    best = max(tried, key=lambda average: record.task.rank(average[1]), default=None)
    return {
        "name": name,
        "base": record.base_name or "the defaults",
        "changes": [(key, _one_line(recipe[key]), _one_line(value)) for key, value in record.base.items()],
        "lines": list(_recipe_lines(recipe, record.base)),
        "cost": _cost_facts(record.cost),
        "label": record.task.label,
        "averages": [(*average, average == best) for average in tried],
        "robustness": _robustness(record),
    }


def _robustness(record: RunRecord) -> dict[str, Any]:
    """Return what the averaged model scores on dev lines as they are and changed, by label, and the number of lines."""
    scores = record.average.info.robustness if record.average else {}
    if not {LINES, PLAIN} <= scores.keys():
        return {}
    return {"lines": scores[LINES], "figures": {LABELS[name]: each for name, each in figures(scores).items()}}


def _differences(recipes: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    """Return the keys in which recipes differ, beside their names, each with all values."""
    differences = []
    for key in recipes[0]:
        values = [_one_line(recipe[key]) for recipe in recipes]
        if key != "name" and len(set(values)) > 1:
            differences.append((key, values))
    return differences


def _recipe_lines(recipe: Mapping[str, Any], base: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Yield the recipe's YAML lines, and for each whether its value differs from the base recipe's."""
    before = ""
    for name, value in recipe.items():
        section, _, key = name.rpartition(".")
        if section and section != before:
            yield f"{section}:", False
        before = section
        for line in dump({key: value}).splitlines():
            yield f"  {line}" if section else line, name in base


def _one_line(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _cost_facts(cost: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return the name, value and note of each known field of `nmt.training.run_state.COST`."""
    facts = []
    devices = cost.get("devices", {})
    for name, used in devices.items():
        note = f"for {clock(used)}" if len(devices) > 1 else ""
        facts.append(("Hardware", name, note))
    estimate = "time × devices × what such a device sustains in single precision"
    for key, name, write, note in (
        ("seconds", "Time", clock, "training and validation, over all resumptions"),
        ("tokens", "Target tokens", "{:,}".format, ""),
        ("estimated_flops", "FLOPs, the paper's estimate", scientific, estimate),
        ("flops", "FLOPs, counted", scientific, "matrix products of the forward and backward passes"),
    ):
        figure = cost.get(key)
        if figure is not None:
            facts.append((name, write(figure), note))
    return facts


SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def scientific(figure: float) -> str:
    """Format a number as 6.89 × 10¹³."""
    mantissa, exponent = f"{figure:.2e}".split("e")
    power = str(int(exponent)).translate(SUPERSCRIPTS)
    return f"{mantissa} × 10{power}"
