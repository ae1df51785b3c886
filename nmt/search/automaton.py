"""Finds phrases in an output, symbol by symbol (Aho and Corasick 1975). Knows no search, and imports no torch.

An automaton has two states of departure, since whether a word goes on before a phrase depends on the symbol before it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nmt.search.feed import Required
from nmt.text.symbols import EOS

FAR = 1 << 14  # symbols left of a phrase that is not under way
WITHIN, OPEN = 0, 1  # states of departure: the symbol before lets a word go on, or not


class Automaton:
    """Finds the phrases of one source in an output, symbol by symbol."""

    def __init__(self, wanted: Sequence[Required], opens: Sequence[bool], closes: Sequence[bool]) -> None:
        """Whether each symbol lets a word begin after it, and end before it, is what `opens` and `closes` say."""
        self._opens, self._closes = opens, closes
        count = len(wanted)
        self.next: list[dict[int, int]] = [{}, {}]
        self.left = [np.full(count, FAR), np.full(count, FAR)]
        """Symbols left of each phrase in each state."""
        self.ends = [np.zeros(count, dtype=bool), np.zeros(count, dtype=bool)]
        """Whether each phrase ends in each state."""
        self.ends_if_closed = [np.zeros(count, dtype=bool), np.zeros(count, dtype=bool)]
        """Whether it does if no word goes on after it."""
        for index, phrase in enumerate(wanted):
            for spelling in phrase.spellings:
                for start in (OPEN,) if spelling.begins_word else (WITHIN, OPEN):
                    self._insert(start, index, spelling.ids, spelling.ends_word)
        self._link()

    def _insert(self, state: int, index: int, ids: Sequence[int], ends_word: bool) -> None:
        for left, symbol in zip(range(len(ids) - 1, -1, -1), ids, strict=True):
            if symbol not in self.next[state]:
                self.next[state][symbol] = len(self.next)
                self.next.append({})
                for table in (self.left, self.ends, self.ends_if_closed):
                    table.append(np.full_like(table[0], FAR if table is self.left else False))
            state = self.next[state][symbol]
            self.left[state][index] = min(left, self.left[state][index])
        (self.ends_if_closed if ends_word else self.ends)[state][index] = True

    def _link(self) -> None:
        """Lets each state know what the longest end of it that is also a beginning knows."""
        queue = [(self._start(symbol), state) for start in (WITHIN, OPEN) for symbol, state in self.next[start].items()]
        for fallback, state in queue:  # which grows: shorter beginnings come first
            onwards = self.next[state]
            queue += [
                (self.next[fallback].get(symbol, self._start(symbol)), following)
                for symbol, following in onwards.items()
            ]
            self.next[state] = {**self.next[fallback], **onwards}
            self.left[state] = np.minimum(self.left[state], self.left[fallback])
            self.ends[state] |= self.ends[fallback]
            self.ends_if_closed[state] |= self.ends_if_closed[fallback]

    def count(self, ids: Sequence[int]) -> NDArray[np.int64]:
        """How often each phrase stands in symbols that are an output of their own."""
        state, found = OPEN, np.zeros(len(self.left[OPEN]), dtype=np.int64)
        for symbol, following in zip(ids, [*ids[1:], EOS], strict=True):
            state = self.next[state].get(symbol, self._start(symbol))
            found += self.ends[state] | (self.ends_if_closed[state] & self._closes[following])
        return found

    def _start(self, symbol: int) -> int:
        return OPEN if self._opens[symbol] else WITHIN
