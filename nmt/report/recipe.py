"""Recipe, hardware, cost and averages of runs, as rows and lines for people."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nmt.console import clock
from nmt.recipe import Recipe
from nmt.recipe.files import dump
from nmt.report.charts import labels
from nmt.report.record import RunRecord

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def content(records: Sequence[RunRecord]) -> Mapping[str, Any]:
    """What the section shows: in which keys several runs differ, and of each run its recipe, cost and averages."""
    runs = [
        {
            "name": name,
            "base": record.base_name or "the defaults",
            "changes": list(changes(record)),
            "lines": list(recipe_lines(record)),
            "cost": cost_facts(record.cost),
            "label": record.recipe.kind.label,
            "averages": averaging_curve(record),
        }
        for name, record in zip(labels(records), records, strict=True)
    ]
    return {"runs": runs, "differences": differences([record.recipe for record in records])}


# --- recipes ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RecipeLine:
    """A line of a recipe as YAML."""

    indent: str
    text: str
    differs: bool
    """Whether it belongs to a key whose value differs from that of the base"""


def recipe_lines(record: RunRecord) -> Iterator[RecipeLine]:
    """Write the whole recipe as YAML, with the lines marked that differ from the base."""
    for section, values in record.recipe.model_dump(mode="json").items():
        if not isinstance(values, dict):
            yield from _lines({section: values}, "", False)
            continue
        yield RecipeLine("", f"{section}:", False)
        for key, value in values.items():
            yield from _lines({key: value}, "  ", f"{section}.{key}" in record.base)


def _lines(values: Mapping[str, Any], indent: str, differs: bool) -> Iterator[RecipeLine]:
    for line in dump(values).splitlines():
        text = line.lstrip(" ")
        yield RecipeLine(indent + " " * (len(line) - len(text)), text, differs)


def changes(record: RunRecord) -> Iterator[tuple[str, str, str]]:
    """Yield each key whose value differs from that of the base, the value, and that of the base."""
    values = flat(record.recipe)
    for key, value in record.base.items():
        if key in values:
            yield key, one_line(values[key]), one_line(value)


def differences(recipes: Sequence[Recipe]) -> list[tuple[str, list[str]]]:
    """Keys in which recipes differ, apart from their names, and the value of each recipe."""
    rows = [flat(recipe) for recipe in recipes]
    cells = {key: [one_line(row[key]) for row in rows] for key in rows[0] if key != "name"}
    return [(key, values) for key, values in cells.items() if len(set(values)) > 1]


def flat(recipe: Recipe) -> dict[str, Any]:
    """Return the values of a recipe, as plain ones, by `section.key`."""
    found: dict[str, Any] = {}
    for section, values in recipe.model_dump(mode="json").items():
        keys = (
            {f"{section}.{key}": value for key, value in values.items()}
            if isinstance(values, dict)
            else {section: values}
        )
        found |= keys
    return found


def one_line(value: Any) -> str:
    """Write a plain value of a recipe on one line, as a recipe may hold it; of data sets, the keys that are given."""
    if isinstance(value, list):
        value = [_given(one) if isinstance(one, dict) else one for one in value]
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


# --- cost and averages ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fact:
    """A figure with its name, and how it came about."""

    name: str
    value: str
    note: str = ""


def cost_facts(cost: Mapping[str, Any]) -> list[Fact]:
    """What a run has cost, from the fields of `nmt.training.cost.COST`; those that are not known are left out."""
    known = {name: value for name, value in cost.items() if value is not None}
    devices = known.get("devices", {})
    facts = [
        Fact("Hardware", device, f"for {clock(seconds)}" if len(devices) > 1 else "")
        for device, seconds in devices.items()
    ]
    if "seconds" in known:
        facts.append(Fact("Time", clock(known["seconds"]), "training and validation, over all resumptions"))
    if "tokens" in known:
        facts.append(Fact("Target tokens", f"{known['tokens']:,}"))
    if "estimated_flops" in known:
        note = "time × devices × what such a device sustains in single precision"
        facts.append(Fact("FLOPs, the paper's estimate", scientific(known["estimated_flops"]), note))
    if "flops" in known:
        note = "matrix products of the forward and backward passes"
        facts.append(Fact("FLOPs, counted", scientific(known["flops"]), note))
    return facts


def scientific(figure: float) -> str:
    """Write a figure as 6.89 × 10¹³."""
    mantissa, exponent = f"{figure:.2e}".split("e")
    return f"{mantissa} × 10{str(int(exponent)).translate(SUPERSCRIPTS)}"


@dataclass(frozen=True)
class Average:
    """The dev score of the average of a run's newest checkpoints, as a point of a curve."""

    last: int
    score: float
    x: float
    """0 to 1, evenly spaced: from one checkpoint to most"""
    y: float
    """0 to 1, from the lowest score to the highest"""
    best: bool


def averaging_curve(record: RunRecord) -> list[Average]:
    """Place the averages that were tried on a curve; of equal ones the first is the best."""
    kind, tried = record.recipe.kind, sorted(record.averages)
    if not tried:
        return []
    scores = [score for _, score in tried]
    lowest, spread = min(scores), max(scores) - min(scores)
    best = max(range(len(tried)), key=lambda place: kind.rank(scores[place]))
    return [
        Average(
            last=last,
            score=score,
            x=place / (len(tried) - 1) if len(tried) > 1 else 0.5,
            y=(score - lowest) / spread if spread else 0.5,
            best=place == best,
        )
        for place, (last, score) in enumerate(tried)
    ]
