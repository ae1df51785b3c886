"""Dev sentences as they are packed into the page."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from nmt.report.sentences import content, sentences
from synthetic_run import just_begun, synthetic_run

from nmt.report.record import DevOutputs, RunRecord


def run(
    outputs: Sequence[Sequence[str]], name: str = "demo", task: str = "translate", score: float = 50.0
) -> RunRecord:
    """A run whose checkpoints 100, 200, … made this of its sentences."""
    number = len(outputs[0])
    return replace(
        synthetic_run(name, task, validations=len(outputs)),
        sources=[f"source {row}" for row in range(number)],
        references=[f"reference {row}" for row in range(number)],
        dev_outputs=[DevOutputs(100 * step, texts, [score] * number) for step, texts in enumerate(outputs, 1)],
        validated={"step": np.arange(1, len(outputs) + 1) * 100.0, "score": np.full(len(outputs), 12.345)},
    )


def unpacked(records: Sequence[RunRecord]) -> Any:
    """What a page shows, read as its script reads it."""
    found = content(records)
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
    assert (packed["metric"], packed["measure"], packed["languages"]) == ("BLEU", "chrF", ["en", "de"])


def test_runs_on_one_development_set_share_it() -> None:
    packed = sentences([run([["a"]]), run([["b"]], "other"), run([["c", "d"]], "longer")])
    assert [one["set"] for one in packed["runs"]] == [0, 0, 1]
    assert [len(one["sources"]) for one in packed["sets"]] == [1, 2]


def test_markup_and_lone_surrogates_survive_or_are_replaced() -> None:
    found = unpacked([run([["</script><script>alert(1)</script>", "\ud800 شجرة"]])])
    assert [texts[0] for texts, *_ in found["runs"][0]["sentences"]] == ["</script><script>alert(1)</script>", "? شجرة"]


def test_runs_without_dev_outputs_are_left_out() -> None:
    begun = just_begun(synthetic_run("begun"))
    assert content([begun]) is None
    assert [one["name"] for one in unpacked([begun, run([["a"]])])["runs"]] == ["demo"]
