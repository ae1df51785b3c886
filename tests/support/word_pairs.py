"""Pairs of sentences in which each word is translated by one other."""

from __future__ import annotations

import numpy as np

from nmt.data.corpus import ChangedPairs, Corpus, concatenate

WORDS = 40
SYMBOLS = 4  # of the vocabulary before the words


class Pairs(ChangedPairs):
    """Pairs read like a corpus."""

    def __len__(self) -> int:
        return len(self.source.lengths)

    source_lengths = property(lambda self: self.source.lengths)
    target_lengths = property(lambda self: self.target.lengths)


def some_pairs(shift: int, count: int = 600) -> Corpus:
    """Pairs of five words each, in which word n is translated by word n + shift, in another order."""
    random = np.random.default_rng(0)
    sources = [random.choice(WORDS, 5, replace=False) + SYMBOLS for _ in range(count)]
    targets = [random.permutation(source) + shift for source in sources]
    return Pairs(concatenate([list(each) for each in sources]), concatenate([list(each) for each in targets]))  # type: ignore[return-value]
