"""Where the outputs of two systems differ."""

from nmt.metrics.differences import Differences, parts
from nmt.metrics.string_metrics import StringMetric

REFERENCE = ["the cat sleeps", "a dog barks", "it rains", " ".join(["word"] * 12)]
SYSTEM = ["the cat sleeps", "a cat barks", "it rains", " ".join(["word"] * 11)]
BASELINE = ["the dog sleeps", "a dog barks", "it rains", " ".join(["words"] * 12)]


def differences():
    line_scores = StringMetric("chrf", [REFERENCE]).line_scores
    return Differences(line_scores(SYSTEM), line_scores(BASELINE), {"ref": REFERENCE, "new": SYSTEM, "old": BASELINE})


def test_lines_that_changed_most_come_first_and_equal_ones_never():
    gained = differences().gained(9)
    assert [line.number for line in gained] == [1, 4]
    assert gained[0].difference > gained[1].difference > 0
    assert gained[0].texts == {"ref": "the cat sleeps", "new": "the cat sleeps", "old": "the dog sleeps"}
    (lost,) = differences().lost(9)
    assert (lost.number, lost.baseline) == (2, 100.0)
    assert [line.number for line in differences().gained(1)] == [1]


def test_means_are_by_length_and_by_words_that_training_has_not_seen():
    short, long = differences().by_length(REFERENCE)
    assert (short.words, short.lines) == ("1 to 10", 3)
    assert (long.words, long.lines) == ("11 to 20", 1)
    assert long.difference > 0
    none, one, many = differences().by_unseen([0, 1, 0, 7])
    assert [(each.words, each.lines) for each in (none, one, many)] == [("0", 2), ("1", 1), ("3 or more", 1)]
    assert (one.baseline, one.difference) == (100.0, one.score - 100.0)
    assert none.score == 100.0


def test_words_that_the_reference_lacks_are_parts_of_their_own():
    assert parts("a big cat sat", "a cat sat down") == [
        ("a", False), (" ", False), ("big", True), (" ", False), ("cat sat", False),
    ]  # fmt: skip
    assert parts("一只狗", "一只猫") == [("一只", False), ("狗", True)]
    assert parts("", "a") == []
