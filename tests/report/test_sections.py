"""Dev sentences as the page packs them, recipes and costs."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import yaml
from synthetic_run import just_begun, synthetic_run, with_outputs

from nmt.recipe import validated
from nmt.report.record import RunRecord
from nmt.report.sections import packed_sentences, recipes_and_costs


def run(outputs: Sequence[list[str]], name: str = "demo", score: float = 50.0) -> RunRecord:
    """A run whose checkpoints 100, 200, … made this of its sentences."""
    references = [f"reference {row}" for row in range(len(outputs[0]))]
    return with_outputs(outputs, references, [[score] * len(references)] * len(outputs), name)


def unpacked(records: Sequence[RunRecord]) -> Any:
    """What a page shows, read as its script reads it."""
    found = packed_sentences(records)
    assert found is not None
    return json.loads(zlib.decompress(base64.b64decode(found["packed"])))


def test_an_output_of_several_checkpoints_is_stored_once() -> None:
    record = run([["a", "x"], ["b", "x"], ["a", "x"]])
    assert unpacked([record])["runs"][0]["sentences"] == [
        [["a", "b"], [50.0, 50.0], [0, 1, 0]],
        [["x"], [50.0], [0, 0, 0]],
    ]


def test_checkpoints_have_their_updates_and_dev_scores() -> None:
    record = run([["a"], ["b"], ["c"]])
    record = replace(record, validated={"step": np.array([100.0, 300.0]), "score": np.array([12.345, np.nan])})
    packed = unpacked([record])["runs"][0]
    assert packed["steps"] == [100, 200, 300]
    assert packed["devScores"] == [12.35, None, None]
    assert (packed["metric"], packed["measure"], packed["languages"]) == ("chrF2", "chrF", ["en", "de"])


def test_runs_on_one_development_set_share_it() -> None:
    packed = unpacked([run([["a"]]), run([["b"]], "other"), run([["c", "d"]], "longer")])
    assert [one["set"] for one in packed["runs"]] == [0, 0, 1]
    assert [len(one["sources"]) for one in packed["sets"]] == [1, 2]


def test_markup_and_lone_surrogates_survive_or_are_replaced() -> None:
    found = unpacked([run([["</script><script>alert(1)</script>", "\ud800 شجرة"]])])
    assert [texts[0] for texts, *_ in found["runs"][0]["sentences"]] == ["</script><script>alert(1)</script>", "? شجرة"]


def test_runs_without_dev_outputs_are_left_out() -> None:
    begun = just_begun(synthetic_run("begun"))
    assert packed_sentences([begun]) is None
    assert [one["name"] for one in unpacked([begun, run([["a"]])])["runs"]] == ["demo"]


# --- recipe and cost --------------------------------------------------------------------------------------------


def test_the_whole_recipe_is_shown_and_what_differs_from_the_base_is_marked() -> None:
    record = replace(synthetic_run(), base={"training.updates": 100_000, "data.train": []})
    [shown] = recipes_and_costs([record])["runs"]
    assert validated(yaml.safe_load("\n".join(line for line, _ in shown["lines"])), "report") == record.recipe
    marked = [line.strip() for line, differs in shown["lines"] if differs]
    assert marked == ["train:", "- source: a", "target: b", "updates: 4000"]
    assert [(key, base) for key, _, base in shown["changes"]] == [("training.updates", "100000"), ("data.train", "[]")]
    assert shown["changes"][0] == ("training.updates", "4000", "100000")


def test_keys_in_which_runs_differ_have_the_value_of_each() -> None:
    runs = [synthetic_run(name, logged=logged) for name, logged in (("one", 100), ("two", 200), ("two", 200))]
    assert recipes_and_costs(runs)["differences"] == [
        ("data.name", ["one", "two", "two"]),
        ("training.updates", ["2000", "4000", "4000"]),
    ]
    assert recipes_and_costs(runs[:1])["differences"] == []


def test_costs_are_told_where_they_are_known() -> None:
    cost = {"seconds": 5000.0, "tokens": 4_909_478, "flops": 6.89e13, "estimated_flops": None}
    runs = [replace(synthetic_run(), cost=each) for each in ({**cost, "devices": {"1 × CPU": 5000.0}}, {})]
    known, unknown = recipes_and_costs(runs)["runs"]
    assert {name: value for name, value, _ in known["cost"]} == {
        "Hardware": "1 × CPU",
        "Time": "1h23m",
        "Target tokens": "4,909,478",
        "FLOPs, counted": "6.89 × 10¹³",
    }
    assert unknown["cost"] == []


def test_of_the_averages_that_were_tried_the_best_is_marked_or_of_equal_ones_that_of_the_fewest() -> None:
    [shown] = recipes_and_costs([replace(synthetic_run(), averages=[(5, 34.0), (1, 32.0), (8, 34.0)])])["runs"]
    assert shown["averages"] == [(1, 32.0, False), (5, 34.0, True), (8, 34.0, False)]
