"""The last lines of a run."""

from __future__ import annotations

from nmt.training.farewell import sparkline


def test_a_sparkline_runs_from_the_lowest_to_the_highest_value_and_ends_with_the_last() -> None:
    assert sparkline([5.99, 46.85, 73.3, 82.61, 90.09, 95.49]) == "▁▄▆▇██  5.99 to 95.49"
    assert sparkline([3.0, 3.0]) == "▁▁  3.00 to 3.00"
    many = sparkline([0.0] * 99 + [1.0]).partition("  ")[0]
    assert (len(many) <= 40, many[-1]) == (True, "█")
