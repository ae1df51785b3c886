"""What checkpoints made of the development set: sentences as they are packed into the page, and scores by length."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from synthetic_run import just_begun, synthetic_run, with_outputs

from nmt.parsing.brackets import score_brackets
from nmt.parsing.tree import parse_tree
from nmt.report.dev_outputs import length_tables, packed_sentences, score_trees, sentences
from nmt.report.record import RunRecord


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
    packed = sentences([run([["a"]]), run([["b"]], "other"), run([["c", "d"]], "longer")])
    assert [one["set"] for one in packed["runs"]] == [0, 0, 1]
    assert [len(one["sources"]) for one in packed["sets"]] == [1, 2]


def test_markup_and_lone_surrogates_survive_or_are_replaced() -> None:
    found = unpacked([run([["</script><script>alert(1)</script>", "\ud800 شجرة"]])])
    assert [texts[0] for texts, *_ in found["runs"][0]["sentences"]] == ["</script><script>alert(1)</script>", "? شجرة"]


def test_runs_without_dev_outputs_are_left_out() -> None:
    begun = just_begun(synthetic_run("begun"))
    assert packed_sentences([begun]) is None
    assert [one["name"] for one in unpacked([begun, run([["a"]])])["runs"]] == ["demo"]


# --- trees ------------------------------------------------------------------------------------------------------

SHORT = "(TOP (S (NP (DT the) (NN house)) (VP (VBZ stands))))"
WRONG = "(TOP (S (NP (DT the)) (VP (NN house) (VBZ stands))))"
LONG = f"(TOP (S (NP {' '.join(['(NN word)'] * 45)}) (VP (VBZ stands))))"


def parser(references: list[str], outputs: list[str]) -> RunRecord:
    """A run whose last checkpoint parsed these sentences so."""
    sources = [" ".join(parse_tree(line).leaves()) if line else "" for line in references]
    scores = [[0.0] * len(references)] * 2
    return replace(with_outputs([references, outputs], references, scores, task="parse"), sources=sources)


def test_scores_are_those_of_nmt_score() -> None:
    references, outputs = [SHORT, SHORT, SHORT, LONG], [SHORT, WRONG, "", LONG]
    found = score_trees(parser(references, outputs))
    assert found is not None
    scores = score_brackets(map(parse_tree, references), [parse_tree(line) if line else None for line in outputs])
    total, _ = found
    assert total.with_failures.f1 == pytest.approx(scores.with_failures.f1)
    assert (total.skips, total.empty, total.missed) == (1, 1, scores.missed)
    assert total.labels == scores.labels


def test_the_tables_count_failures() -> None:
    found = length_tables([just_begun(synthetic_run()), parser([SHORT, SHORT], [SHORT, ""])])
    assert found is not None
    [run] = found["parsers"]
    assert run["step"] == 200
    [(*_, lengths), (*_, labels)] = run["tables"]
    [(name, figures, counts)] = lengths
    assert (name, counts) == ("1–10", (2, 1))
    assert figures == pytest.approx((200 / 3, 100.0, 50.0))
    assert [(name, counts, figures[0]) for name, figures, counts in labels] == [
        ("NP", (1, 1, 1), 100.0),
        ("S", (1, 1, 1), 100.0),
        ("VP", (1, 1, 1), 100.0),
    ]


def test_translators_share_a_table_of_mean_chrf_by_length() -> None:
    one = replace(run([["x"] * 3, ["y"] * 3], "one"), sources=["a b", "a", "a " * 45])
    one.dev_outputs[-1].scores[:] = [100.0, 50.0, 20.0]
    found = length_tables([one, run([["z"]], "two", score=30.0)])
    assert found is not None
    rows = [("1–10, one", (75.0,), (2,)), ("1–10, two", (30.0,), (1,)), ("41 and more, one", (20.0,), (1,))]
    assert found["translators"][-1] == rows


def test_runs_without_outputs_and_references_without_words_have_no_scores() -> None:
    assert length_tables([just_begun(synthetic_run()), parser([""], [""])]) is None
