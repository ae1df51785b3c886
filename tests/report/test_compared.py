"""Where the outputs of runs differ, as the page tells it."""

from __future__ import annotations

from dataclasses import replace

from synthetic_run import with_outputs

from nmt.report.compared import content

REFERENCES = ["ein Hund bellt", "es regnet", "die Katze"]


def test_last_outputs_are_compared_with_those_of_the_first_run_on_the_same_lines() -> None:
    before = with_outputs(
        [["x", "y", "z"], ["ein Hund", "es regnet", "die"]], REFERENCES, [[1.0] * 3, [50.0, 100.0, 40.0]]
    )
    after = with_outputs([["ein Hund <b>", "es schneit", "die"]], REFERENCES, [[60.0, 30.0, 40.0]], "new")
    after = replace(after, unseen=[0, 0, 2])
    found = content([before, after, with_outputs([["a"]], ["b"], [[1.0]], "other")])
    assert found is not None
    (pair,) = found["pairs"]
    assert (pair["name"], pair["baseline"], pair["measure"]) == ("new", "demo", "chrF")
    by_length, by_unseen = pair["means"].values()
    assert by_length == [("1 to 10", "3", "63.33", "43.33", "-20.00")]
    assert by_unseen == [("0", "2", "75.00", "45.00", "-30.00"), ("2", "1", "40.00", "40.00", "+0.00")]
    (gained,), (lost,) = pair["changed"].values()
    assert (gained["number"], gained["scores"]) == (1, "50.0 to 60.0, +10.0")
    assert gained["texts"]["new, update 100"] == [("ein Hund", False), (" ", False), ("<b>", True)]
    assert (lost["number"], lost["texts"]["demo, update 200"]) == (2, [("es regnet", False)])


def test_one_run_or_runs_on_other_lines_are_not_compared() -> None:
    one = with_outputs([["a"]], ["b"], [[1.0]])
    assert content([one]) is None
    assert content([one, with_outputs([["a", "b"]], ["b", "c"], [[1.0, 2.0]])]) is None
    assert content([replace(one, dev_outputs=[])] * 2) is None
