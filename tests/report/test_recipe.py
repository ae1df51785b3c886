"""Recipe, cost and averages of runs, as the page tells them."""

from __future__ import annotations

from dataclasses import replace

import yaml
from nmt.report.recipe import averaging_curve, changes, content, cost_facts, differences, recipe_lines
from synthetic_run import synthetic_run

from nmt.recipe import validated


def test_the_whole_recipe_is_shown_and_what_differs_from_the_base_is_marked() -> None:
    record = replace(synthetic_run(), base={"training.updates": 100_000, "data.train": []})
    lines = list(recipe_lines(record))
    shown = yaml.safe_load("\n".join(line.indent + line.text for line in lines))
    assert validated(shown, "report") == record.recipe
    marked = [line.text for line in lines if line.differs]
    assert "updates: 4000" in marked
    assert marked[:2] == ["train:", "- source: a"]
    assert "batch_tokens: 2048" not in marked


def test_changed_keys_have_both_values() -> None:
    record = replace(synthetic_run(), base={"training.updates": 100_000, "model.d_k": 16, "no longer": 1})
    assert list(changes(record)) == [("training.updates", "4000", "100000"), ("model.d_k", "null", "16")]


def test_keys_in_which_runs_differ_have_the_value_of_each() -> None:
    recipes = [synthetic_run(name, logged=logged).recipe for name, logged in (("one", 100), ("two", 200), ("two", 200))]
    assert differences(recipes) == [
        ("data.name", ["one", "two", "two"]),
        ("training.updates", ["2000", "4000", "4000"]),
    ]
    assert content([synthetic_run()])["differences"] == []


def test_costs_are_told_where_they_are_known() -> None:
    cost = {"seconds": 5000.0, "tokens": 4_909_478, "flops": 6.89e13, "estimated_flops": None}
    facts = {fact.name: fact.value for fact in cost_facts({**cost, "devices": {"1 × CPU": 5000.0}})}
    assert facts == {
        "Hardware": "1 × CPU",
        "Time": "1h23m",
        "Target tokens": "4,909,478",
        "FLOPs, counted": "6.89 × 10¹³",
    }
    assert cost_facts({}) == []


def test_the_averaging_curve_marks_the_best_average() -> None:
    points = averaging_curve(replace(synthetic_run(), averages=[(5, 34.0), (1, 32.0), (2, 33.0)]))
    assert [(point.last, point.x, point.y, point.best) for point in points] == [
        (1, 0.0, 0.0, False),
        (2, 0.5, 0.5, False),
        (5, 1.0, 1.0, True),
    ]


def test_a_curve_of_one_average_or_of_equal_ones_stands_in_the_middle() -> None:
    [point] = averaging_curve(replace(synthetic_run(), averages=[(3, 30.0)]))
    assert (point.x, point.y, point.best) == (0.5, 0.5, True)
    equal = averaging_curve(replace(synthetic_run(), averages=[(1, 30.0), (2, 30.0)]))
    assert [(point.y, point.best) for point in equal] == [(0.5, True), (0.5, False)]
    assert averaging_curve(replace(synthetic_run(), averages=[])) == []
