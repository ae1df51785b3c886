"""Where the outputs of two systems differ."""

from nmt.metrics.differences import Differences, marked
from nmt.metrics.string_metrics import StringMetric

REFERENCE = ["the cat sleeps", "a dog barks", "it rains", " ".join(["word"] * 12)]
SYSTEM = ["the cat sleeps", "a cat barks", "it rains", " ".join(["word"] * 11)]
BASELINE = ["the dog sleeps", "a dog barks", "it rains", " ".join(["words"] * 12)]


def differences():
    systems = {"new": SYSTEM, "old": BASELINE}
    return Differences(StringMetric("chrf", [REFERENCE]), systems, {"ref": REFERENCE, **systems})


def test_lines_that_changed_most_come_first_and_equal_ones_never():
    gained = differences().gained(9)
    assert [line.number for line in gained] == [1, 4]
    assert gained[0].difference > gained[1].difference > 0
    assert gained[0].texts == {"ref": "the cat sleeps", "new": "the cat sleeps", "old": "the dog sleeps"}
    (lost,) = differences().lost(9)
    assert (lost.number, lost.baseline) == (2, 100.0)
    assert [line.number for line in differences().gained(1)] == [1]


def test_means_are_by_length_of_the_reference():
    short, long = differences().by_length(REFERENCE)
    assert (short["length"], short["lines"]) == ("1 to 10", "3")
    assert (long["length"], long["lines"]) == ("11 to 20", "1")
    assert long["difference"].startswith("+")


def test_words_that_the_reference_lacks_are_marked():
    assert marked("a big cat sat", "a cat sat down", "<", ">") == "a <big> cat sat"
    assert marked("一只狗", "一只猫", "<", ">") == "一只<狗>"
    assert marked("", "a", "<", ">") == ""
