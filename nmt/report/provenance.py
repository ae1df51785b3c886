"""Recipes, costs and averages of runs, and statistics of their prepared data."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from nmt.data.corpus import HELD_OUT
from nmt.data.data_report import length_ranges
from nmt.recipe import Recipe
from nmt.recipe.yaml_files import dump
from nmt.report.record import RunRecord, labels, plain
from nmt.system.console import clock

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

# --- recipes ------------------------------------------------------------------------------------------------------


def recipes_and_costs(records: Sequence[RunRecord]) -> Mapping[str, Any]:
    """Return each run's recipe, cost and averages, and the keys in which the recipes differ."""
    runs = [
        {
            "name": name,
            "base": record.base_name or "the defaults",
            "changes": changes(record),
            "lines": list(recipe_lines(record)),
            "cost": cost_facts(record.cost),
            "label": record.task.label,
            "averages": tried_averages(record),
        }
        for name, record in zip(labels(records), records, strict=True)
    ]
    return {"runs": runs, "differences": differences([record.recipe for record in records])}


def recipe_lines(record: RunRecord) -> Iterator[tuple[str, bool]]:
    """Yield the recipe's YAML lines, and for each whether its value differs from the base recipe's."""
    before = ""
    for name, value in plain(record.recipe).items():
        section, _, key = name.rpartition(".")
        if section and section != before:
            yield f"{section}:", False
        before = section
        for line in dump({key: value}).splitlines():
            yield f"  {line}" if section else line, name in record.base


def changes(record: RunRecord) -> list[tuple[str, str, str]]:
    """Return each key whose value differs from the base recipe's, with the run's value and the base's."""
    values = plain(record.recipe)
    return [(key, one_line(values[key]), one_line(value)) for key, value in record.base.items()]


def differences(recipes: Sequence[Recipe]) -> list[tuple[str, list[str]]]:
    """Return the keys, except the name, in which recipes differ, with each recipe's value."""
    rows = [plain(recipe) for recipe in recipes]
    cells = {key: [one_line(row[key]) for row in rows] for key in rows[0] if key != "name"}
    return [(key, values) for key, values in cells.items() if len(set(values)) > 1]


def one_line(value: Any) -> str:
    """Format a recipe's value on one line."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


# --- cost and averages --------------------------------------------------------------------------------------------


def cost_facts(cost: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return the name, value and note of each known field of `nmt.training.run_files.COST`."""
    known = {name: value for name, value in cost.items() if value is not None}
    devices = known.get("devices", {})
    hardware = [
        ("Hardware", device, f"for {clock(seconds)}" if len(devices) > 1 else "") for device, seconds in devices.items()
    ]
    estimate = "time × devices × what such a device sustains in single precision"
    told: list[tuple[str, str, Callable[[Any], str], str]] = [
        ("seconds", "Time", clock, "training and validation, over all resumptions"),
        ("tokens", "Target tokens", "{:,}".format, ""),
        ("estimated_flops", "FLOPs, the paper's estimate", scientific, estimate),
        ("flops", "FLOPs, counted", scientific, "matrix products of the forward and backward passes"),
    ]
    return hardware + [(name, write(known[key]), note) for key, name, write, note in told if key in known]


def scientific(figure: float) -> str:
    """Format a number as 6.89 × 10¹³."""
    mantissa, exponent = f"{figure:.2e}".split("e")
    return f"{mantissa} × 10{str(int(exponent)).translate(SUPERSCRIPTS)}"


def tried_averages(record: RunRecord) -> list[tuple[int, float, bool]]:
    """Return each average's number of checkpoints, its dev score, and whether it is the best: in a tie, the fewest."""
    tried = sorted(record.averages)
    best = max(tried, key=lambda average: record.task.rank(average[1]), default=None)
    return [(*average, average == best) for average in tried]


# --- data ---------------------------------------------------------------------------------------------------------


def prepared_data(records: Sequence[RunRecord]) -> Mapping[str, Any] | None:
    """Return tables and histograms of the runs' data, from report.json; runs with the same data share them."""
    sets: dict[str, list[RunRecord]] = {}
    for record in records:
        if record.data:
            sets.setdefault(json.dumps(record.data, sort_keys=True), []).append(record)
    shown = []
    for runs in sets.values():
        splits = {name: figures for name, figures in runs[0].data.items() if figures["read"]}
        names = dict.fromkeys(run.recipe.data.name or run.recipe.name for run in runs)
        lengths = [
            (split, side, length_ranges(classes))
            for split, figures in splits.items()
            for side, classes in figures.get("lengths", {}).items()
            if classes
        ]
        shown.append(
            {
                "name": " and ".join(names),
                "splits": list(splits),
                "rows": list(table_rows(list(splits.values()))),
                "leaked": _leaked(splits.get("train", {})),
                "lengths": lengths,
            }
        )
    return {"sets": shown} if shown else None


def table_rows(splits: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, list[str]]]:
    """Yield a label and a text per split for each row: read, kept, dropped by reason, overlaps, mean lengths."""
    yield "Read", [f"{figures['read']:,}" for figures in splits]
    yield "Kept", [f"{figures['kept']:,}" for figures in splits]
    by_set = [figures.get("kept by set", ()) for figures in splits]
    if any(len(kept) > 1 for kept in by_set):
        yield "Kept of each set", [" + ".join(f"{one:,}" for one in kept) for kept in by_set]
    lost = [figures["read"] - figures["kept"] - figures.get(HELD_OUT, 0) for figures in splits]
    yield "Dropped", [_count(count, figures["read"]) for count, figures in zip(lost, splits, strict=True)]
    names = dict.fromkeys(name for figures in splits for name in figures)
    means = [name for name in names if name.startswith("mean ")]
    counts = [name for name in names if name not in ("read", "kept", "kept by set", "lengths", *means)]
    for name in sorted(counts, key=lambda name: not name.startswith("dropped")):
        yield _sentence_case(name), [_count(figures.get(name, 0), figures["read"]) for figures in splits]
    for name in means:
        yield _sentence_case(name), [f"{figures[name]:.2f}" if name in figures else "" for figures in splits]


def _count(count: int, whole: int) -> str:
    """Format a count with its percentage of `whole`."""
    share = 100 * count / whole
    return f"{count:,} ({share:.2f}%)" if share >= 0.01 else f"{count:,} (< 0.01%)" if count else "0"


def _sentence_case(name: str) -> str:
    return name[0].upper() + name[1:]


def _leaked(train: Mapping[str, Any]) -> int:
    """Count the training examples that occur verbatim in valid or test."""
    return sum(
        count
        for name, count in train.items()
        if name.endswith("also in valid or test") and not name.startswith("source")
    )
