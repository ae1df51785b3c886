"""Any sequence of brackets becomes balanced, at the least cost."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt.text.mending import mend

PARTNER = {1: 3, 2: 4}
LETTERS = dict(zip("ABabx", (1, 2, 3, 4, 0), strict=True))  # A opens, a closes it; x is a leaf

SEQUENCES = st.lists(st.integers(0, 4), max_size=14)


def mended(text: str) -> str:
    letters = {index: letter for letter, index in LETTERS.items()}
    return "".join(letters[index] for index in mend([LETTERS[letter] for letter in text], PARTNER))


def is_balanced(ids: list[int]) -> bool:
    stack = []
    for place, index in enumerate(ids):
        if index in PARTNER:
            stack.append(PARTNER[index])
        elif index and (not stack or stack.pop() != index or ids[place - 1] in PARTNER):
            return False
    return not stack


def distance(one: list[int], other: list[int]) -> int:
    """Additions and removals of brackets that lead from one to the other, which has the same leaves."""

    def cost(index: int) -> int:
        return 1 if index else 1000

    row = [0]
    for b in other:
        row.append(row[-1] + cost(b))
    for a in one:
        last, row = row, [row[0] + cost(a)]
        for n, b in enumerate(other):
            changed = min(last[n + 1] + cost(a), row[n] + cost(b))
            row.append(min(last[n], changed) if a == b else changed)
    return row[-1]


def least(ids: list[int]) -> int:
    """The fewest removals that balance a sequence; as many as additions and removals, since for an addition that
    balances a bracket that bracket could be removed."""

    @cache
    def removals(place: int, stack: tuple[int, ...], empty: bool) -> int:
        if place == len(ids):
            return 0 if not stack else len(ids)
        index = ids[place]
        if not index:
            return removals(place + 1, stack, False)
        best = 1 + removals(place + 1, stack, empty)
        if index in PARTNER:
            best = min(best, removals(place + 1, (*stack, PARTNER[index]), True))
        elif stack and stack[-1] == index and not empty:
            best = min(best, removals(place + 1, stack[:-1], False))
        return best

    return removals(0, (), True)


@settings(max_examples=150)
@given(ids=SEQUENCES)
def test_any_sequence_is_balanced_at_the_least_cost(ids: list[int]) -> None:
    balanced = mend(ids, PARTNER)
    assert is_balanced(balanced)
    assert balanced.count(0) == ids.count(0)
    assert distance(ids, balanced) == least(ids)
    assert (balanced == ids) == is_balanced(ids)
    assert mend(balanced, PARTNER) == balanced


@pytest.mark.parametrize(
    ("broken", "whole"),
    [
        ("AxBxa", "AxBxba"),  # missing at the end of the constituent around it
        ("Axbxa", "ABxbxa"),  # missing at its beginning
        ("AxB", "Axa"),
        ("xBx", "xBxb"),
        ("xbx", "Bxbx"),
        ("AxBx", "AxBxba"),
        ("xaxb", "BAxaxb"),
        ("Axb", "BAxab"),
        ("AxAa", "Axa"),  # one removed, where two and an addition would do as well
        ("AaxBb", "x"),
        ("ABbax", "x"),
        ("AAAxa", "AAAxaaa"),
        ("ba", ""),
        ("", ""),
    ],
)
def test_partners_are_added_as_early_or_late_as_they_can(broken: str, whole: str) -> None:
    assert mended(broken) == whole


def test_long_sequences_and_deep_ones_are_mended() -> None:
    assert mended("A" * 1000 + "x") == "A" * 1000 + "x" + "a" * 1000
    assert mended("x" + "a" * 1000) == "A" * 1000 + "x" + "a" * 1000
