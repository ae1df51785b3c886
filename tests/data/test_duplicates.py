"""Pairs that have come before."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt.data.duplicates import SeenPairs, hash_pairs

CHUNKS = st.lists(st.lists(st.integers(0, 60), max_size=30), max_size=20)


@settings(max_examples=100)
@given(chunks=CHUNKS)
def test_what_has_come_before_is_told_in_order(chunks: list[list[int]]) -> None:
    seen, before = SeenPairs(), set[int]()
    for chunk in chunks:
        expected = [number in before or number in chunk[:place] for place, number in enumerate(chunk)]
        assert seen.add(np.array(chunk, np.uint64)).tolist() == expected
        before |= set(chunk)
    lengths = [len(run) for run in seen._runs]
    assert sum(lengths) == len(before)
    assert all(longer >= 2 * shorter for longer, shorter in pairwise(lengths))  # few to look in


def test_a_pair_is_its_two_texts_in_one_direction() -> None:
    pairs = [("a", "b"), ("b", "a"), ("ab", ""), ("", "ab"), ("a", "B"), ("ä", "b"), ("a", "b ")]
    ways = [("en", "de"), ("de", "en"), ("en", "fr")]
    hashes = [hash_pairs(pairs, way) for way in ways]
    assert len(set(np.concatenate(hashes).tolist())) == len(pairs) * len(ways)
    assert (hash_pairs(pairs, ("en", "de")) == hashes[0]).all()
