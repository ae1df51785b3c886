"""BLEU, chrF and TER: figures computed by hand, signatures, and texts that do not belong together."""

import math

import pytest

from nmt.errors import UserError
from nmt.metrics.translation import METRICS, score

LINES = ["The cat sits on the mat .", "A man goes home in the evening .", "Where are you ?"]


def one(metric, hypotheses, *references):
    return score(hypotheses, references, [metric])[metric].score


@pytest.mark.parametrize(("metric", "perfect"), [("bleu", 100.0), ("chrf", 100.0), ("ter", 0.0)])
def test_a_perfect_translation_has_the_perfect_score(metric, perfect):
    assert one(metric, LINES, LINES) == pytest.approx(perfect)


@pytest.mark.parametrize(
    ("hypothesis", "reference", "bleu"),
    [
        ("a b c d e", "a b c d f", 100 * (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25),  # 66.87
        ("a b c d", "a b c d e", 100 * math.exp(1 - 5 / 4)),  # only too short: 77.88
        ("a b c d e f", "a b c d e", 100 * (5 / 6 * 4 / 5 * 3 / 4 * 2 / 3) ** 0.25),  # only too long: 75.98
        ("The B C D E", "the B C D E", 100 * (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25),  # case counts
        ("a b c d, e f", "a b c d , e f", 100.0),  # 13a splits punctuation off
    ],
)
def test_bleu_equals_the_hand_computed_one(hypothesis, reference, bleu):
    assert one("bleu", [hypothesis], [reference]) == pytest.approx(bleu, abs=1e-6)


def test_bleu_sums_over_the_corpus_before_it_divides():
    hypotheses, references = ["a b c d e", "a b c d e f g"], ["a b c d f", "a b c d e f g"]
    expected = 100 * (11 / 12 * 9 / 10 * 7 / 8 * 5 / 6) ** 0.25
    assert one("bleu", hypotheses, references) == pytest.approx(expected)
    assert expected != pytest.approx((66.874 + 100) / 2, abs=0.1)


@pytest.mark.parametrize(
    ("hypothesis", "reference", "ter"),
    [
        ("a b c d e", "a b c d f", 20.0),
        ("a b c", "a b c d", 25.0),
        ("d a b c", "a b c d", 25.0),  # one shift
        ("a b c d e f", "a b", 200.0),
    ],
)
def test_ter_counts_edits_per_reference_word(hypothesis, reference, ter):
    assert one("ter", [hypothesis], [reference]) == pytest.approx(ter)


def test_chrf_equals_the_hand_computed_one():
    # "ab" against "abc", characters and pairs: precision 2/2 and 1/1, recall 2/3 and 1/2; no longer ones
    precision, recall = 1.0, (2 / 3 + 1 / 2) / 2
    expected = 100 * 5 * precision * recall / (4 * precision + recall)  # β = 2
    assert one("chrf", ["ab"], ["abc"]) == pytest.approx(expected)
    assert one("chrf", ["abc"], ["xyz"]) == 0.0


def test_with_several_references_each_n_gram_may_come_from_any():
    references = ["a b c d f"], ["x b c d e"]
    assert one("bleu", ["a b c d e"], *references) == pytest.approx(100.0)
    assert one("bleu", ["a b c d e"], references[0]) < 70
    assert one("ter", ["a b c d e"], ["q q q q q"], ["a b c d f"]) == pytest.approx(20.0)
    assert one("chrf", ["abcdef"], ["uvwxyz"], ["abcdef"]) == pytest.approx(100.0)


def test_every_score_has_its_signature():
    found = score(LINES, [LINES], METRICS)
    assert list(found) == ["bleu", "chrf", "ter"]
    for part in ("nrefs:1", "case:mixed", "tok:13a", "smooth:exp", "version:"):
        assert part in found["bleu"].signature
    for part in ("nrefs:1", "nc:6", "nw:0", "version:"):
        assert part in found["chrf"].signature
    for part in ("nrefs:1", "tok:tercom", "version:"):
        assert part in found["ter"].signature
    assert "nrefs:2" in score(LINES, [LINES, LINES], ["bleu"])["bleu"].signature


def test_only_the_wanted_metrics_are_computed_in_the_wanted_order():
    assert list(score(LINES, [LINES], ["ter", "bleu"])) == ["ter", "bleu"]


def test_unequal_lengths_name_both_counts():
    with pytest.raises(UserError, match=r"hypothesis has 2 lines and reference has 3") as error:
        score(LINES[:2], [LINES], ["bleu"])
    assert error.value.hint


def test_among_several_references_the_one_that_differs_is_named():
    with pytest.raises(UserError, match=r"3 lines and reference 2 has 1"):
        score(LINES, [LINES, LINES[:1]], ["bleu"])


def test_nothing_to_score_is_a_users_error():
    with pytest.raises(UserError, match="nothing to score"):
        score([], [[]], ["bleu"])
