"""Pairs that look wrong: untranslated, or with other numbers on each side."""

from __future__ import annotations

import pytest

from nmt.data.pairs import Pair
from nmt.data.suspicion import OTHER_NUMBERS, UNTRANSLATED, suspicions


@pytest.mark.parametrize(
    ("source", "target", "found"),
    [
        ("This line stays as it was written.", "This line stays as it was written.", [UNTRANSLATED]),
        ("Anna Smith", "Anna Smith", []),
        ("4 8 15 16 23 42 108 (1234567890123456789)", "4 8 15 16 23 42 108 (1234567890123456789)", []),
        ("We met in 1999.", "Wir trafen uns 2005.", [OTHER_NUMBERS]),
        ("Room 250 of 300", "Zimmer 250", [OTHER_NUMBERS]),
        ("10,000 books and 1,250,000 pages", "10.000 Bücher und 1 250 000 Seiten", []),
        ("10,000 books", "１０，０００冊", []),
        ("2.5 litres in May 2010", "2,5 Liter im Mai 2010", []),
        ("two cats at 3 pm", "2 Katzen um 15 Uhr", []),
        ("on 5 June 1984", "१९८४ जून ५", []),
        ("1,234,567 books", "۱٬۲۳۴٬۵۶۷ کتاب", []),
        ("9" * 5000, "8" * 5000, [OTHER_NUMBERS]),
    ],
)
def test_what_looks_wrong(source: str, target: str, found: list[str]) -> None:
    assert list(suspicions(Pair(source, target))) == found
