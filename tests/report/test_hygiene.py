"""What became of the data, as the page tells it."""

from __future__ import annotations

from dataclasses import replace

from nmt.report.hygiene import LENGTHS, content, length_classes, table_rows
from synthetic_run import synthetic_run

TRAIN = {
    "read": 1000,
    "kept": 950,
    "kept by set": [900, 50],
    "dropped as empty": 10,
    "dropped as too long": 40,
    "pairs also in valid or test": 3,
    "source sentences also in valid or test": 7,
    "mean length of sources": 15.5,
    "mean length of targets": 16.74,
    LENGTHS: {"5": 40, "20": 80},
}
VALID = {"read": 20, "kept": 20, "kept by set": [20], "mean length of sources": 8.0, "mean length of targets": 9.0}


def test_the_table_tells_what_was_read_kept_and_dropped_and_why() -> None:
    assert dict(table_rows({"train": TRAIN, "valid": VALID})) == {
        "Read": ["1,000", "20"],
        "Kept": ["950", "20"],
        "Kept of each set": ["900 + 50", "20"],
        "Dropped": ["50 (5.00%)", "0"],
        "Dropped as empty": ["10 (1.00%)", "0"],
        "Dropped as too long": ["40 (4.00%)", "0"],
        "Pairs also in valid or test": ["3 (0.30%)", "0"],
        "Source sentences also in valid or test": ["7 (0.70%)", "0"],
        "Mean length of sources": ["15.50", "8.00"],
        "Mean length of targets": ["16.74", "9.00"],
    }


def test_runs_on_the_same_data_share_its_tables() -> None:
    one, other = synthetic_run("one"), synthetic_run("other")
    found = content([one, other, replace(one, data={"train": TRAIN}), replace(one, data={})])
    assert found is not None
    assert [data["name"] for data in found["sets"]] == ["one and other", "one"]
    assert content([replace(one, data={})]) is None


def test_lengths_beyond_the_last_step_are_one_class() -> None:
    classes = length_classes({"1024": 2, "1500": 3, "4000": 1})
    assert [(one.name, one.sentences) for one in classes[-2:]] == [("513–1,024", 2), ("over 1,024", 4)]
    assert length_classes({}) == []
