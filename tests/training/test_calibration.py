"""The confidence that is fitted to a development set."""

from __future__ import annotations

import math
from random import Random

import pytest

from nmt.training.calibration import calibrated


def drawn(count: int, seed: int) -> tuple[list[list[float]], list[float], list[float]]:
    """Signs of which the first and the last tell something, chrF by the probability of a good line, and that."""
    random = Random(seed)
    signs = []
    scores = []
    probabilities = []
    for _ in range(count):
        own = [random.gauss(-0.5, 0.2), random.gauss(2, 0.5), random.gauss(3, 0.4), random.gauss(0, 0.1), 0.0]
        own.append(float(random.random() < 0.3))
        probability = 1 / (1 + math.exp(-(2 + 6 * own[0] - 2 * own[-1])))
        signs.append(own)
        scores.append(90.0 if random.random() < probability else 70.0)
        probabilities.append(probability)
    return signs, scores, probabilities


def test_confidence_is_the_probability_of_a_good_line() -> None:
    signs, scores, _ = drawn(2000, 1)
    sure = calibrated(signs, scores)
    others, _, wanted = drawn(500, 2)
    found = [sure(each) for each in others]
    assert max(abs(one - other) for one, other in zip(found, wanted, strict=True)) < 0.1
    assert sum(found) / 500 == pytest.approx(sum(wanted) / 500, abs=0.02)
    assert sure.weights[4] == 0  # it never differs
    assert calibrated(signs, scores) == sure


@pytest.mark.parametrize(("score", "least", "most"), [(100.0, 0.95, 0.999), (10.0, 0.001, 0.05)])
def test_lines_that_are_all_good_or_all_bad_make_nothing_certain(score: float, least: float, most: float) -> None:
    signs, _, _ = drawn(50, 1)
    sure = calibrated(signs, [score] * 50)
    assert all(least < sure(each) < most for each in signs)
