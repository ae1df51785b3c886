"""Lengths of training pairs: quantiles, what is unusual, and what is read from a file."""

from __future__ import annotations

import pytest

from nmt.text.sentences import TrainedLengths


def trained(*values: str | int | float) -> TrainedLengths:
    """These values in the order of the fields."""
    return TrainedLengths.model_validate(dict(zip(TrainedLengths.model_fields, values, strict=True)))


def test_quantiles_are_values_that_so_many_do_not_exceed() -> None:
    sources = list(range(1, 1001))
    found = TrainedLengths.of("en", sources, [2 * length + 1 for length in sources], [1] * 600 + [2] * 395 + [9] * 5)
    assert found == trained("en", 2, 1, 990, 999, 2.0, 2.0)


def test_a_few_pairs_have_lengths_too() -> None:
    assert TrainedLengths.of("en", [3], [7], [1]) == trained("en", 1, 1, 3, 3, 2.0, 2.0)
    assert TrainedLengths.of("en", [3, 9], [3, 19], [1, 3]) == trained("en", 3, 1, 9, 9, 1.0, 2.0)


@pytest.mark.parametrize(("source", "target", "unusual"), [(9, 4, False), (9, 3, True), (9, 19, False), (9, 20, True)])
def test_a_target_beyond_the_ratios_of_training_is_unusual(source: int, target: int, unusual: bool) -> None:
    assert trained("en", 1, 1, 20, 30, 0.5, 2.0).is_unusual(source, target) == unusual


GOOD = trained("en", 3, 1, 40, 60, 0.5, 2.5).model_dump()


@pytest.mark.parametrize(
    "values",
    [None, [], {}, {"sentences": 1}, GOOD | {"more": 1}, GOOD | {"source": -1}, GOOD | {"source": "40"},
     GOOD | {"source": 1.5}, GOOD | {"sentences": True}, GOOD | {"least_ratio": float("nan")},
     GOOD | {"greatest_ratio": float("inf")}, GOOD | {"language": 3}, GOOD | {"sentences": 10**12}],
)  # fmt: skip
def test_other_values_are_refused(values: object) -> None:
    with pytest.raises(ValueError, match="validation error"):
        TrainedLengths.model_validate(values)
