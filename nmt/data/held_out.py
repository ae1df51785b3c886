"""Pairs set aside from the training data, and how near the evaluation splits are to what is left."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from nmt.data.corpus import Sentences
from nmt.data.pairs import Pair

WORDS = 4
"""Words of an n-gram"""
NEAR = 0.5
"""Minimum fraction of a source's n-grams, also in training, that makes it near to the training data"""


def take(pairs: Iterable[Pair], sizes: Mapping[str, int]) -> dict[str, list[Pair]]:
    """Return as many pairs as each split takes, of distinct sources, in the order of the training data.

    The sources with the smallest hashes are taken, first for the last split, so that adding a split or more pairs to an
    earlier one leaves the test set as it is. A repeated source gives its first pair. Pairs with an empty or undecodable
    side are not taken. Fewer are returned if the data has too few sources.
    """
    wanted = sum(sizes.values())
    heap: list[tuple[int, int, Pair]] = []  # the smallest hashes so far, negated, with pair number and pair
    inside: set[int] = set()
    for number, pair in enumerate(pairs):
        if not all(pair) or "\ufffd" in "".join(pair):
            continue
        key = int.from_bytes(hashlib.blake2b(pair[0].encode(), digest_size=8).digest(), "big")
        if key in inside or (len(heap) == wanted and key > -heap[0][0]):
            continue
        inside.add(key)
        if len(heap) < wanted:
            heapq.heappush(heap, (-key, number, pair))
        else:
            inside.remove(-heapq.heapreplace(heap, (-key, number, pair))[0])
    ordered = [entry[1:] for entry in sorted(heap, reverse=True)]
    found = {}
    for split in reversed(list(sizes)):
        found[split] = [pair for _, pair in sorted(ordered[: sizes[split]])]
        ordered = ordered[sizes[split] :]
    return found


class Overlap:
    """The n-grams of words that evaluation sources share with the training sources.

    A source with fewer words than an n-gram counts as one n-gram, which only an equal source shares.
    """

    def __init__(self, starts: Sequence[bool], sources: Sentences) -> None:
        """Look for the n-grams of evaluation `sources`; `starts` tells whether each symbol begins a word."""
        self._starts = np.array(starts)
        self._grams, self._owners = self._ngrams(sources)
        self._known = np.unique(self._grams)
        self._seen = np.zeros(len(self._known), bool)
        self._count = len(sources.lengths)

    def add(self, sources: Sentences) -> None:
        """Mark the n-grams that occur in training sources; thread-safe."""
        grams, _ = self._ngrams(sources)
        places = np.searchsorted(self._known, grams).clip(max=max(0, len(self._known) - 1))
        if len(self._known):
            self._seen[places[self._known[places] == grams]] = True

    def shares(self) -> NDArray[np.float64]:
        """Return the fraction of each evaluation source's n-grams that occur in training: (sources,)."""
        seen = self._seen[np.searchsorted(self._known, self._grams)] if len(self._known) else self._grams.astype(bool)
        totals = np.bincount(self._owners, minlength=self._count)
        shares: NDArray[np.float64] = np.bincount(self._owners, seen, minlength=self._count) / totals.clip(min=1)
        return shares

    def _ngrams(self, sentences: Sentences) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """Return the hash of each n-gram, and the number of its sentence: (n-grams,) each."""
        rows = np.repeat(np.arange(len(sentences.lengths)), sentences.lengths)
        begins = self._starts[sentences.ids] | (np.diff(rows, prepend=-1) > 0)
        first = np.flatnonzero(begins)
        if not len(first):
            return np.empty(0, np.uint64), np.empty(0, np.int64)
        within = np.arange(len(rows)) - np.repeat(first, np.diff(first, append=len(rows)))
        words = np.add.reduceat(_mixed(sentences.ids.astype(np.uint64) + _mixed(within.astype(np.uint64))), first)
        owners = rows[first]
        hashes, inside = np.zeros_like(words), np.ones(len(words), bool)
        for place in range(WORDS):  # 0 stands for words beyond the end of a sentence
            end = max(0, len(words) - place)
            inside[end:] = False
            inside[:end] &= owners[place:] == owners[:end]
            hashes = _mixed(hashes + np.where(inside, np.roll(words, -place), np.uint64(0)))
        kept = inside | (np.diff(owners, prepend=-1) > 0)
        return hashes[kept], owners[kept]


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scramble 64-bit integers (the finaliser of SplitMix64), modulo 2^64."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
