"""Systems beside each other: the best, those that are not worse, and what people see of the differences."""

import random

import pytest

from nmt.metrics.agreement import agreement
from nmt.metrics.string_metrics import StringMetric
from nmt.metrics.systems import standings

REFERENCES = [" ".join(random.Random(row).choices("abcdefghij", k=12)) for row in range(60)]


def noisy(share):
    dice = random.Random(int(1000 * share))
    return [" ".join("x" if dice.random() < share else word for word in line.split()) for line in REFERENCES]


SYSTEMS = {"worst": noisy(0.5), "good": noisy(0.1), "as good": noisy(0.105)}


@pytest.mark.parametrize("name", ["bleu", "chrf", "ter"])
def test_the_best_comes_first_then_those_that_are_not_worse(name):
    found = standings(StringMetric(name, [REFERENCES]), SYSTEMS)
    assert [one.verdict for one in found] == ["best", "no clear difference", "worse"]
    assert found[-1].name == "worst"
    assert found[0].comparison is None
    assert found[1].comparison.p_value >= 0.05 > found[2].comparison.p_value


def test_with_a_baseline_all_others_are_compared_with_it():
    found = standings(StringMetric("ter", [REFERENCES]), SYSTEMS, "worst")
    assert [one.verdict for one in found] == ["better", "better", "baseline"]
    cells = found[0].cells()
    assert cells["difference"].startswith("-")  # fewer edits
    assert cells["people"] == "–"  # not studied


def test_what_people_see_is_the_published_table():
    # Its table of thresholds: 80% for 2.34, 1.63 and 0.56 points; 60% for 0.78, 0.54 and 0.18
    for metric, of_80, of_60 in (("bleu", 2.34, 0.78), ("chrf", 1.63, 0.54), ("wmt22-comet-da", 0.56, 0.18)):
        assert agreement(metric, of_80) == pytest.approx(80, abs=0.3)
        assert agreement(metric, -of_60) == pytest.approx(60, abs=0.3)
        assert agreement(metric, 0.0) == 50
    assert agreement("ter", 3.0) is None
