"""What training knows of the evaluation splits: their sources, and the pairs of neighbouring words in them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Self

from nmt.data.pairs import Pair
from nmt.text.scripts import is_unspaced

WORD = re.compile(r"[^\W_]+")
WordPair = tuple[str, str]


@dataclass(frozen=True)
class Known:
    """Sources and pairs of neighbouring words, without repetition."""

    sources: set[str] = field(default_factory=set)
    word_pairs: set[WordPair] = field(default_factory=set)

    @classmethod
    def of(cls, pairs: Iterable[Pair]) -> Self:
        """Return those of the sources of `pairs`."""
        known = cls()
        for pair in pairs:
            known.sources.add(pair.source)
            known.word_pairs.update(word_pairs(pair.source))
        return known

    def among(self, pairs: Sequence[Pair]) -> Known:
        """Return which of these are among the sources of `pairs`, too."""
        found = Known(self.sources.intersection([pair.source for pair in pairs]))
        for pair in pairs:
            found.word_pairs.update(self.word_pairs.intersection(word_pairs(pair.source)))
        return found

    def update(self, other: Known) -> None:
        """Add what `other` has."""
        self.sources.update(other.sources)
        self.word_pairs.update(other.word_pairs)


def word_pairs(text: str) -> Iterable[WordPair]:
    """Return a text's pairs of neighbouring words or, if nothing separates words, of characters."""
    words: Sequence[str] = text.split()
    if len(words) == 1:
        words = text
    return pairwise(words)


def words_of(text: str) -> set[str]:
    """Return a text's words in lower case, without punctuation; characters where nothing separates words."""
    words = set[str]()
    for word in WORD.findall(text.lower()):
        if is_unspaced([word]):
            words.update(word)
        else:
            words.add(word)
    return words
