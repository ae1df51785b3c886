"""What runs were made from and at what cost, and what became of the data, as the page tells it."""

from __future__ import annotations

from dataclasses import replace

import yaml
from synthetic_run import synthetic_run

from nmt.recipe import validated
from nmt.report.provenance import (
    changes,
    cost_facts,
    differences,
    prepared_data,
    recipe_lines,
    recipes_and_costs,
    table_rows,
    tried_averages,
)


def test_the_whole_recipe_is_shown_and_what_differs_from_the_base_is_marked() -> None:
    record = replace(synthetic_run(), base={"training.updates": 100_000, "data.train": []})
    lines = list(recipe_lines(record))
    shown = yaml.safe_load("\n".join(line for line, _ in lines))
    assert validated(shown, "report") == record.recipe
    marked = [line.strip() for line, differs in lines if differs]
    assert "updates: 4000" in marked
    assert marked[:2] == ["train:", "- source: a"]
    assert "batch_tokens: 2048" not in marked


def test_changed_keys_have_both_values() -> None:
    record = replace(synthetic_run(), base={"training.updates": 100_000, "model.d_k": 16})
    assert changes(record) == [("training.updates", "4000", "100000"), ("model.d_k", "null", "16")]


def test_keys_in_which_runs_differ_have_the_value_of_each() -> None:
    recipes = [synthetic_run(name, logged=logged).recipe for name, logged in (("one", 100), ("two", 200), ("two", 200))]
    assert differences(recipes) == [
        ("data.name", ["one", "two", "two"]),
        ("training.updates", ["2000", "4000", "4000"]),
    ]
    assert recipes_and_costs([synthetic_run()])["differences"] == []


def test_costs_are_told_where_they_are_known() -> None:
    cost = {"seconds": 5000.0, "tokens": 4_909_478, "flops": 6.89e13, "estimated_flops": None}
    facts = {name: value for name, value, _ in cost_facts({**cost, "devices": {"1 × CPU": 5000.0}})}
    assert facts == {
        "Hardware": "1 × CPU",
        "Time": "1h23m",
        "Target tokens": "4,909,478",
        "FLOPs, counted": "6.89 × 10¹³",
    }
    assert cost_facts({}) == []


def test_of_the_averages_that_were_tried_the_best_is_marked_or_of_equal_ones_that_of_the_fewest() -> None:
    tried = tried_averages(replace(synthetic_run(), averages=[(5, 34.0), (1, 32.0), (8, 34.0)]))
    assert tried == [(1, 32.0, False), (5, 34.0, True), (8, 34.0, False)]
    assert tried_averages(replace(synthetic_run(), averages=[])) == []


# --- data -------------------------------------------------------------------------------------------------------

TRAIN = {
    "read": 1000,
    "kept": 950,
    "kept by set": [900, 50],
    "dropped as empty": 10,
    "dropped as too long": 40,
    "pairs also in valid or test": 3,
    "source sentences also in valid or test": 7,
    "mean length of sources": 15.5,
    "mean length of targets": 16.74,
    "lengths": {"source": {"10": 40, "20": 910}, "target": {"20": 950}},
}
VALID = {"read": 20, "kept": 20, "kept by set": [20], "mean length of sources": 8.0, "mean length of targets": 9.0}


def test_the_table_tells_what_was_read_kept_and_dropped_and_why() -> None:
    assert dict(table_rows([TRAIN, VALID])) == {
        "Read": ["1,000", "20"],
        "Kept": ["950", "20"],
        "Kept of each set": ["900 + 50", "20"],
        "Dropped": ["50 (5.00%)", "0"],
        "Dropped as empty": ["10 (1.00%)", "0"],
        "Dropped as too long": ["40 (4.00%)", "0"],
        "Pairs also in valid or test": ["3 (0.30%)", "0"],
        "Source sentences also in valid or test": ["7 (0.70%)", "0"],
        "Mean length of sources": ["15.50", "8.00"],
        "Mean length of targets": ["16.74", "9.00"],
    }


def test_runs_on_the_same_data_share_its_tables() -> None:
    one, other = synthetic_run("one"), synthetic_run("other")
    found = prepared_data([one, other, replace(one, data={"train": TRAIN}), replace(one, data={})])
    assert found is not None
    assert [data["name"] for data in found["sets"]] == ["one and other", "one"]
    assert prepared_data([replace(one, data={})]) is None


def test_lengths_of_source_and_target_are_apart() -> None:
    found = prepared_data([replace(synthetic_run("one"), data={"train": TRAIN})])
    assert found is not None
    assert found["sets"][0]["lengths"] == [
        ("train", "source", {"1–10": 40, "11–20": 910}),
        ("train", "target", {"1–10": 0, "11–20": 950}),
    ]
