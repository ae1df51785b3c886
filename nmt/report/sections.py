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
    for name, record in zip(labels(shown), shown, strict=True):
        texts = tuple(record.sources), tuple(record.references)
        runs.append({"set": sets.setdefault(texts, len(sets)), "name": name, **_run(record)})
    distinct = [{"sources": sources, "references": references} for sources, references in sets]
    values = {"sets": distinct, "runs": runs, "unscored": sorted(DELETED)}
    written = json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    parts = sorted({"constituents" if record.task.has_trees else "words" for record in shown})
    return {"packed": base64.b64encode(zlib.compress(written)).decode(), "parts": " or ".join(parts)}


def _run(record: RunRecord) -> dict[str, Any]:
    task, data = record.task, record.recipe.data
    scored = zip(record.validated["step"], record.validated["score"], strict=True)
    dev_scores = {step: round(float(score), 2) for step, score in scored if math.isfinite(score)}
    steps = [checkpoint.step for checkpoint in record.dev_outputs]
    return {
        "languages": [data.source, data.source if task.has_trees else data.target],
        "trees": task.has_trees,
        "metric": task.label,
        "measure": "F1" if task.has_trees else "chrF",
        "steps": steps,
        "devScores": [dev_scores.get(step) for step in steps],
        "sentences": [_sentence(record, number) for number in range(len(record.sources))],
    }


def _sentence(record: RunRecord, number: int) -> list[list[Any]]:
    """Return a sentence's distinct outputs, their scores, and the index of each checkpoint's output."""
    outputs = [checkpoint.outputs[number] for checkpoint in record.dev_outputs]
    distinct = list(dict.fromkeys(outputs))
    given = [distinct.index(output) for output in outputs]
    scores = [record.dev_outputs[outputs.index(output)].scores[number] for output in distinct]
    return [distinct, [round(score, 1) for score in scores], given]


# --- recipe and cost ----------------------------------------------------------------------------------------------


def recipes_and_costs(records: Sequence[RunRecord]) -> Mapping[str, Any]:
    """Return each run's recipe, changed keys, cost and averages, and the keys in which the recipes differ.

    The best average is marked; in a tie, it is the one of the fewest checkpoints.
    """
    runs, recipes = [], [plain(record.recipe) for record in records]
    for name, record, recipe in zip(labels(records), records, recipes, strict=True):
        tried = sorted(record.averages)
        best = max(tried, key=lambda average: record.task.rank(average[1]), default=None)
        runs.append(
            {
                "name": name,
                "base": record.base_name or "the defaults",
                "changes": [(key, _one_line(recipe[key]), _one_line(value)) for key, value in record.base.items()],
                "lines": list(_recipe_lines(recipe, record.base)),
                "cost": _cost_facts(record.cost),
                "label": record.task.label,
                "averages": [(*average, average == best) for average in tried],
            }
        )
    cells = {key: [_one_line(recipe[key]) for recipe in recipes] for key in recipes[0] if key != "name"}
    return {"runs": runs, "differences": [(key, values) for key, values in cells.items() if len(set(values)) > 1]}


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
    devices = cost.get("devices", {})
    facts = [("Hardware", name, f"for {clock(used)}" if len(devices) > 1 else "") for name, used in devices.items()]
    estimate = "time × devices × what such a device sustains in single precision"
    for key, name, write, note in (
        ("seconds", "Time", clock, "training and validation, over all resumptions"),
        ("tokens", "Target tokens", "{:,}".format, ""),
        ("estimated_flops", "FLOPs, the paper's estimate", scientific, estimate),
        ("flops", "FLOPs, counted", scientific, "matrix products of the forward and backward passes"),
    ):
        if cost.get(key) is not None:
            facts.append((name, write(cost[key]), note))
    return facts


def scientific(figure: float) -> str:
    """Format a number as 6.89 × 10¹³."""
    mantissa, exponent = f"{figure:.2e}".split("e")
    return f"{mantissa} × 10{str(int(exponent)).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))}"
