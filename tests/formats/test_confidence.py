"""What a translation's confidence follows from."""

from __future__ import annotations

import math

import pytest

from nmt.formats.confidence import Confidence, signs_of
from nmt.formats.numbers import compare


def test_confidence_is_the_logistic_function_of_the_signs() -> None:
    sure = Confidence(
        means=(-1.0, 0, 0, 0, 0, 0), scales=(0.5, 1, 1, 1, 1, 1), weights=(2.0, 0, 0, 0, 0, -1.0), bias=0.5
    )
    assert sure([-0.5, 9, 9, 9, 9, 1]) == pytest.approx(1 / (1 + math.exp(-(0.5 + 2 - 1))))
    assert sure([-1e6, 0, 0, 0, 0, 0]) == pytest.approx(0, abs=1e-300)
    assert sure([1e6, 0, 0, 0, 0, 0]) == 1


def test_signs_tell_probability_lengths_unknown_characters_and_marks() -> None:
    source, output = "3 dogs", "4 Hunde Hunde Hunde Hunde"
    changes = compare(source, output)
    assert (changes.lost, changes.invented, changes.loop) == (["3"], ["4"], "Hunde")
    signs = signs_of(source, output, (3, 6), -3.0, 1, changes, is_unusual=True)
    assert signs == pytest.approx([-0.5, math.log(4), math.log(6), math.log(1.5), math.log(2), 5])
