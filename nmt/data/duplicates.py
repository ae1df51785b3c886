"""Find repeated pairs by their 64-bit hashes.

Hashes take 8 bytes per pair, and briefly three times as much while runs are merged. The probability that any two
different pairs among 36 million have the same hash is about 1 in 30,000.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import xxhash
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]


def hash_pairs(pairs: Iterable[Sequence[str]], languages: Sequence[str]) -> Hashes:
    """Return hashes (pairs,) of pairs, whose texts are lines, in the direction of `languages`."""
    direction = "\n".join(languages)
    texts = ("\n".join((direction, *pair)).encode() for pair in pairs)
    return np.fromiter(map(xxhash.xxh3_64_intdigest, texts), np.uint64)


class SeenPairs:
    """The hashes of the pairs so far, in sorted runs.

    Each run is at least twice as long as the next, so there are few to search, and each hash is seldom merged again.
    """

    def __init__(self) -> None:
        self._runs: list[Hashes] = []

    def add(self, hashes: Hashes) -> NDArray[np.bool_]:
        """Add the hashes of the next pairs; return a mask (pairs,) of those that have come before."""
        new, first = np.unique(hashes, return_index=True)
        repeated = np.ones(len(hashes), np.bool_)
        repeated[first] = False
        for run in self._runs:
            place = np.searchsorted(run, new)
            is_there = run[np.minimum(place, len(run) - 1)] == new
            repeated[first[is_there]] = True
            new = new[~is_there]
            first = first[~is_there]
        if len(new):
            self._runs.append(new)
        while len(self._runs) > 1 and len(self._runs[-2]) < 2 * len(self._runs[-1]):
            merged = np.concatenate([self._runs.pop(), self._runs.pop()])
            merged.sort(kind="stable")  # merges runs
            self._runs.append(merged)
        return repeated
