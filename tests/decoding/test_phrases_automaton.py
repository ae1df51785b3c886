"""Automata find what a plain search finds."""

from __future__ import annotations

import random

from nmt.decoding.engine import Required, Spelling
from nmt.decoding.phrases import FAR, OPEN, WITHIN, Automaton


def test_an_automaton_finds_what_a_search_for_strings_finds() -> None:
    """Symbols are letters; a word may go on before and after each but the hyphen."""
    draw = random.Random(3)
    opens = [False, False, False, True]  # a b c -
    for _ in range(300):
        phrases = [[draw.randrange(3) for _ in range(draw.randint(1, 3))] for _ in range(draw.randint(1, 4))]
        begins, ends = (draw.random() < 0.5 for _ in range(2))
        found = Automaton([Required([Spelling(ids, begins, ends)], 1, False) for ids in phrases], opens, opens)
        text = [draw.randrange(4) for _ in range(12)]
        state = OPEN
        for at, symbol in enumerate(text, 1):
            state = found.next[state].get(symbol, OPEN if opens[symbol] else WITHIN)
            for index, ids in enumerate(phrases):
                start = at - len(ids)
                stands = start >= 0 and text[start:at] == ids
                if begins and start > 0:
                    stands = stands and opens[text[start - 1]]
                assert (found.ends_if_closed if ends else found.ends)[state][index] == stands
                assert not (found.ends if ends else found.ends_if_closed)[state][index]
                left = [
                    len(ids) - length
                    for length in range(1, min(len(ids), at) + 1)
                    if text[at - length : at] == ids[:length]
                    and (not begins or at == length or opens[text[at - length - 1]])
                ]
                assert found.left[state][index] == min(left, default=FAR)
