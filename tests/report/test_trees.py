"""F1 of a parser's trees by label and by length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from nmt.report.trees import content, score_trees
from synthetic_run import synthetic_run

from nmt.metrics.brackets import score_brackets
from nmt.report.record import DevOutputs, RunRecord
from nmt.text.tree import parse_tree

SHORT = "(TOP (S (NP (DT the) (NN house)) (VP (VBZ stands))))"
WRONG = "(TOP (S (NP (DT the)) (VP (NN house) (VBZ stands))))"
LONG = f"(TOP (S (NP {' '.join(['(NN word)'] * 45)}) (VP (VBZ stands))))"


def parser(references: Sequence[str], outputs: Sequence[str]) -> RunRecord:
    """A run whose last checkpoint parsed these sentences so."""
    sources = [" ".join(parse_tree(line).leaves()) if line else "" for line in references]
    scores = [0.0] * len(sources)
    earlier = DevOutputs(100, [""] * len(sources), scores)
    dev_outputs = [earlier, DevOutputs(200, outputs, scores)]
    return replace(synthetic_run(task="parse"), sources=sources, references=references, dev_outputs=dev_outputs)


def test_scores_are_those_of_nmt_score() -> None:
    references, outputs = [SHORT, SHORT, SHORT, LONG], [SHORT, WRONG, "", LONG]
    found = score_trees(parser(references, outputs))
    assert found is not None
    scores = score_brackets(map(parse_tree, references), [parse_tree(line) if line else None for line in outputs])
    assert found.step == 200
    assert found.total.f1_all == pytest.approx(scores.f1_all)
    assert (found.total.skips, found.total.empty, found.total.missed) == (1, 1, scores.missed)
    assert found.by_label == scores.labels


def test_the_tables_count_failures() -> None:
    found = content([synthetic_run(), parser([SHORT, SHORT], [SHORT, ""])])
    assert found is not None
    [run] = found["runs"]
    [(_, _, _, lengths), (_, _, _, labels)] = run["tables"]
    assert [(row.name, row.counts) for row in lengths] == [("1–10", (2, 1))]
    assert lengths[0].figures == pytest.approx((200 / 3, 100.0, 50.0))
    assert [(row.name, row.counts, row.figures[0]) for row in labels] == [
        ("NP", (1, 1, 1), 100.0),
        ("S", (1, 1, 1), 100.0),
        ("VP", (1, 1, 1), 100.0),
    ]


def test_translators_and_references_without_words_have_no_scores() -> None:
    assert content([synthetic_run()]) is None
    assert score_trees(parser([""], [""])) is None
