"""Pairs that look wrong, but are trained on: not translated, or with other numbers on each side."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from nmt.data.pairs import Pair

UNTRANSLATED = "seemingly untranslated"
OTHER_NUMBERS = "with other numbers on each side"
LETTERS = 20  # of equal sides from which on they are hardly a name
SPOKEN = 24  # the highest number of a time of day; smaller ones are often words
NUMBER = re.compile(r"\d{1,100}")  # longer ones in pieces: Python converts none of thousands of digits
GROUPED = re.compile(r"(?<=\d)[.,，٬\s'’](?=\d{3}(?!\d))")  # 10,000 is 10.000 and 10 000


def suspicions(pair: Pair) -> Iterator[str]:
    """Yield why a pair of two languages looks wrong."""
    if pair.source == pair.target and sum(map(str.isalpha, pair.source)) >= LETTERS:
        yield UNTRANSLATED
    if _have_other_numbers(pair):
        yield OTHER_NUMBERS


def _have_other_numbers(pair: Pair) -> bool:
    """Return whether a number of one side lacks on the other, and is none that could be there as a word or as a time.

    Two may be deux, and 3 pm is 15 h.
    """
    written = [NUMBER.findall(text) for text in pair]
    if written[0] == written[1]:  # of nearly all pairs
        return False
    source, target = map(_numbers, pair)
    lacking = (source - target) | (target - source)
    return any(number > SPOKEN for number in lacking)


def _numbers(text: str) -> Counter[int]:
    return Counter(map(int, NUMBER.findall(GROUPED.sub("", text))))
