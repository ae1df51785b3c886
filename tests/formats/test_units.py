"""Changes to the text of a file of translation units."""

from __future__ import annotations

from nmt.formats.units import Edits


def test_what_is_replaced_does_not_come_back_where_something_is_inserted() -> None:
    edits = Edits()
    edits.replace(2, 5, "X", 0)
    edits.replace(2, 2, "Y", 1)
    assert edits.applied("abcdefg") == "abXYfg"
    assert edits.around("abcdefg") == "abfg"
