"""Bracket F1: each rule of EVALB by hand, files and what the command prints."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from nmt.parsing.brackets import BracketScores, report, score_brackets, score_files
from nmt.parsing.tree import parse_tree, read_tree_lines
from nmt.system.errors import UserError

GOLD = "(TOP (S (NP (DT The) (NN cat)) (VP (VBZ sees) (NP (DT a) (NN dog))) (. .)))"


def scored(gold: str, *hypotheses: str) -> BracketScores:
    """Scores of hypotheses against the same gold tree each."""
    return score_brackets([parse_tree(gold)] * len(hypotheses), read_tree_lines(hypotheses))


def counts(scores: BracketScores) -> tuple[int, int, int]:
    """Brackets that match, in the hypothesis, in the gold."""
    return scores.total.matched, scores.total.test, scores.total.gold


# --- the rules one by one ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gold", "hypothesis", "expected"),
    [
        pytest.param(GOLD, GOLD, (4, 4, 4), id="top-and-tags-do-not-count"),
        pytest.param("(ROOT (NP (NN a)))", "(ROOT (NP (NN a)))", (2, 2, 2), id="root-counts"),
        pytest.param("(S1 (NP (NN a)))", "(TOP (NP (NN a)))", (1, 1, 2), id="s1-counts"),
        pytest.param("(S (TOP (NP (NN a))))", "(S (TOP-X (NP (NN a))))", (2, 2, 2), id="top-never-counts"),
        pytest.param("(NP (NN a) (NN b))", "(NP (XX a) (XX b))", (1, 1, 1), id="tags-of-words-may-differ"),
        pytest.param("(NP (NN a))", "(VP (NN a))", (0, 1, 1), id="labels-matter"),
        pytest.param("(NP (NN a))", "(np (NN a))", (0, 1, 1), id="labels-have-case"),
        pytest.param("(NP-SBJ-1 (NN a))", "(NP=2 (NN a))", (1, 1, 1), id="labels-are-cut"),
        pytest.param("(NP|X (NN a))", "(NP (NN a))", (0, 1, 1), id="labels-are-cut-nowhere-else"),
        pytest.param("(ADVP (RB a))", "(PRT (RP a))", (1, 1, 1), id="advp-is-prt"),
        pytest.param("(PRT-X (RB a))", "(ADVP-Y (RP a))", (1, 1, 1), id="advp-is-prt-after-the-cut"),
        pytest.param("(NP (NP (NP (NN a))))", "(NP (NP (NN a)))", (2, 2, 3), id="each-matches-once"),
        pytest.param("(NP (NN a))", "(NP (NP (NP (NN a))))", (1, 3, 1), id="each-matches-once-either-way"),
        pytest.param("(NP (VP (NN a)))", "(VP (NP (NN a)))", (2, 2, 2), id="order-in-chains-does-not-matter"),
        pytest.param("(S (NP (NN a)) (, ,))", "(S (NP (NN a) (, ,)))", (2, 2, 2), id="punctuation-is-not-there"),
        pytest.param("(S (NN a) (. .))", "(S (NN a) (. !) (: --) (`` ``) ('' ''))", (1, 1, 1), id="words-neither"),
        pytest.param("(S (NN a) (PRN (, ,)))", "(S (NN a))", (1, 1, 1), id="nor-what-it-empties"),
        pytest.param("(S (NN a) (NP (NP (-NONE- *)) (: ;)))", "(S (NN a))", (1, 1, 1), id="emptied-all-the-way"),
        pytest.param("(S (NN a) (-LRB- -LRB-))", "(S (NN a) (NP (-LRB- -LRB-)))", (1, 2, 1), id="brackets-are-words"),
        pytest.param("(S (NN a) ($ $) (# #))", "(S (NP (NN a) ($ $) (# #)))", (1, 2, 1), id="other-symbols-too"),
        pytest.param("(S (: (NN a)) (. (NN b)))", "(S (NN a) (NN b))", (1, 1, 1), id="constituents-called-so"),
        pytest.param("(NN a)", "(NP (NN a))", (0, 1, 0), id="a-bare-word"),
        pytest.param("(S (NN a) (TOP b))", "(S (NN a))", (1, 1, 1), id="a-word-tagged-top"),
    ],
)
def test_rule(gold: str, hypothesis: str, expected: tuple[int, int, int]) -> None:
    scores = scored(gold, hypothesis)
    assert (scores.sentences, scores.valid) == (1, 1)
    assert counts(scores) == expected


@pytest.mark.parametrize(
    ("gold", "hypothesis"),
    [
        pytest.param("(S (NN a) (NN b))", "(S (NN a))", id="shorter"),
        pytest.param("(S (NN a))", "(S (NN a) (NN b))", id="longer"),
        pytest.param("(S (NN a) (NN b))", "(S (NN a) (NN c))", id="another-word"),
        pytest.param("(S (NN a) (NN b))", "(S (NN b) (NN a))", id="another-order"),
        pytest.param("(S (NN a))", "(S (NN A))", id="case"),
        pytest.param("(S (NN a) (. .))", "(S (XX a) (XX .))", id="xx-on-punctuation"),
        pytest.param("(S (NN a) (. !))", "(S (NN a) (! !))", id="a-tag-of-no-punctuation"),
        pytest.param("(S (NN a) (-NONE-1 b))", "(S (NN a))", id="tags-are-not-cut"),
        pytest.param("(S (. .))", "(S (NN .))", id="gold-without-words"),
    ],
)
def test_other_words_are_an_error_and_leave_the_sums(gold: str, hypothesis: str) -> None:
    scores = score_brackets(map(parse_tree, (gold, GOLD)), map(parse_tree, (hypothesis, GOLD)))
    assert (scores.sentences, scores.errors, scores.skips, scores.valid) == (2, 1, 0, 1)
    assert counts(scores) == (4, 4, 4)
    assert scores.total.f1 == scores.figures()["exact"] == 100
    assert scores.missed == ("NN" in gold)


@pytest.mark.parametrize(("hypothesis", "empty"), [("", 1), ("(())", 1), ("(S (. .))", 0), ("(S (-NONE- *))", 0)])
def test_no_words_to_score_are_a_skip(hypothesis: str, empty: int) -> None:
    scores = scored(GOLD, hypothesis, GOLD)
    assert (scores.sentences, scores.errors, scores.skips, scores.empty, scores.valid) == (2, 0, 1, empty, 1)
    assert (scores.total.f1, scores.missed) == (100, 4)
    nothing = score_brackets([parse_tree("(TOP (NP (. .)))")], [parse_tree("(TOP (X (. .)))")])  # to miss
    assert (nothing.skips, nothing.errors, nothing.empty, nothing.missed) == (1, 0, 0, 0)


def test_labels_are_counted_one_by_one() -> None:
    gold = "(TOP (S (NP-SBJ (NN a)) (PRT (RP b)) (VP (VB c))))"
    labels = scored(gold, "(TOP (S (NP (NN a)) (ADVP (RP b)) (NP (VB c)) ))", "").labels
    assert list(labels) == ["NP", "ADVP", "S", "VP"]
    assert [(one.matched, one.test, one.gold) for one in labels.values()] == [
        (1, 2, 1),
        (1, 1, 1),
        (1, 1, 1),
        (0, 0, 1),
    ]
    assert labels["NP"].f1 == pytest.approx(200 / 3)
    assert (labels["VP"].precision, labels["VP"].recall, labels["VP"].f1) == (0, 0, 0)


def test_the_first_error_is_told() -> None:
    scores = scored(GOLD, "", GOLD.replace("dog", "dig"), "(TOP (X a))")
    assert scores.first_error == "tree 2: word 5, without punctuation, is 'dog' in the gold and 'dig' in the hypothesis"
    scores = scored("(A (NN a))", f"(A (NN {'b' * 99_999}))")
    assert scores.first_error.endswith("is 'a' in the gold and 'bbbbbbbbbbbb...bbbbbbbbbbbbb' in the hypothesis")
    scores = scored(GOLD, GOLD, GOLD.replace(" (NN dog)", ""))
    assert scores.first_error == "tree 2: 5 words without punctuation in the gold and 4 in the hypothesis"
    assert scored(GOLD, GOLD, "").first_error == ""


# --- files and the command -----------------------------------------------------------------------------------------

PRETTY = """
( (S
    (NP-SBJ (DT The) (NN cat) )
    (VP (VBZ sees)
      (NP (DT a) (NN dog) ))
    (. .) ))
( (NP (NN rain) ))
"""
HYPOTHESES = f"{GOLD}\n(TOP (NP (NN rain)))\n"


@pytest.mark.parametrize("root", ["", "ROOT", "S1", "TOP"])
def test_roots_of_the_gold_are_taken_for_those_of_the_hypothesis(tmp_path: Path, root: str) -> None:
    gold = tmp_path / "gold"
    gold.write_text(PRETTY.replace("( (", f"({root} ("))
    scores = score_files(gold, [*HYPOTHESES.splitlines()[:1], ""])
    assert (scores.total.f1, scores.total.gold, scores.missed) == (100, 4, 1)
    scores = score_files(gold, [line.replace("(TOP", "(ROOT") for line in HYPOTHESES.splitlines()])
    both = root == "ROOT"  # then it counts, as EVALB has it
    assert (scores.total.f1, scores.total.gold) == (100, 7 if both else 5)
    gold.write_text("(S (NP (NN a))) (ROOT (S (NP (NN a))))")  # S is no root
    assert counts(score_files(gold, ["(TOP (NP (NN a)))", "(S (NP (NN a)))"])) == (3, 3, 4)


def test_roots_that_count_are_told(nmt, tmp_path: Path) -> None:
    (tmp_path / "gold").write_text("(ROOT (NP (PRO a)))\n(ROOT (NN a))\n(TOP (NN a))")
    hypotheses = b"(ROOT (NP (PRO a)))\n(ROOT)\n(TOP (NN a))\n"
    done = nmt("score", "--metric", "brackets", tmp_path / "gold", stdin=hypotheses)
    assert done.code == 0
    assert "gold: 1 roots 'ROOT' count as constituents: both trees have them\n" in done.err


def test_gold_may_be_a_treebank_folder_and_hypotheses_come_through_a_pipe(nmt, tmp_path: Path) -> None:
    (tmp_path / "00").mkdir()
    (tmp_path / "00" / "one.mrg").write_text(PRETTY)
    (tmp_path / "00" / "two.mrg").write_text("(ROOT (S (VP (VB Go)) (. !)))")
    (tmp_path / "00" / "README").write_text("(((")
    done = nmt("score", "--metric", "brackets", tmp_path, stdin=f"{HYPOTHESES}(TOP (FRAG (VB Go) (. !)))\n".encode())
    assert done.code == 0, done.err
    assert done.out.decode().startswith("F1 76.92  precision 83.33  recall 71.43  failures missed 76.92\n")
    assert done.err == ""


def test_json_holds_figures_of_all_of_short_ones_and_of_labels(nmt, tmp_path: Path) -> None:
    gold, hypotheses = tmp_path / "gold.gz", tmp_path / "hyp.gz"
    gold.write_bytes(gzip.compress(f"{GOLD}\n(TOP (S {'(NN a) ' * 41}))\n{GOLD}\n{GOLD}".encode()))
    tests = [GOLD.replace("NP", "QP", 1), "(TOP (S (NP (NN a)) " + "(NN a) " * 40 + "))", "", "(TOP (X a))"]
    hypotheses.write_bytes(gzip.compress("\n".join(tests).encode()))
    done = nmt("score", gold, hypotheses, "--metric", "brackets", "--json")
    assert done.code == 0, done.err
    assert "errors: 1 of 4 trees; the first: tree 4: word 1, without punctuation, is 'The'" in done.err
    found = json.loads(done.out)["brackets"]
    assert (found["sentences"], found["errors"], found["skips"], found["empty"]) == (4, 1, 1, 1)
    assert found["precision"] == pytest.approx(400 / 6)
    assert found["recall"] == pytest.approx(80)
    assert found["f1"] == pytest.approx(2 * 80 * 400 / 6 / (80 + 400 / 6))
    assert found["recall_all"] == pytest.approx(400 / 13)
    assert found["exact"] == 0
    assert (found["short"]["sentences"], found["short"]["f1"], found["short"]["errors"]) == (3, 75, 1)
    assert found["labels"]["S"] == {"gold": 2, "test": 2, "matched": 2, "f1": 100, "precision": 100, "recall": 100}
    assert set(found["labels"]) == {"S", "NP", "VP", "QP"}


def test_the_report_has_every_figure_and_label() -> None:
    text = report(scored(GOLD, GOLD, GOLD.replace("VP", "XP"), ""))
    lines = [" ".join(line.split()) for line in text.splitlines()]
    expected = {"sentences 3 3", "skips: no tree 1 1", "exact match 50.00 50.00", "F1, failures missed 70.00 70.00"}
    assert expected | {"VP 2 1 1 100.00 50.00 66.67"} <= {*lines}
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(("gold", "found"), [(5, 3), (3, 5)])
def test_files_of_other_lengths_are_told_with_both_counts(gold: int, found: int) -> None:
    tree = parse_tree("(TOP (S (NN a)))")
    with pytest.raises(UserError, match=f"the gold has {gold} trees and the hypothesis {found}"):
        score_brackets([tree] * gold, [tree] * found)
