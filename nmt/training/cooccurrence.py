"""In how many training pairs subwords stand, and how often two of them stand in one pair."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.data.corpus import Corpus, Ids, Rows

MOST = 30_000_000  # pairs of a source and a target subword that are counted; of a larger corpus, some pairs are
AT_ONCE = 3_000_000


class Cooccurrences(NamedTuple):
    """In how many pairs subwords stand."""

    source: NDArray[np.float64]
    """(source vocabulary,)"""
    target: NDArray[np.float64]
    """(target vocabulary,)"""
    rows: Rows
    """(n,) source subword of each two that stand in one pair"""
    columns: Rows
    """(n,) and the target subword"""
    together: NDArray[np.float64]
    """(n,)"""
    pairs: int


def count(corpus: Corpus, sources: int, targets: int) -> Cooccurrences:
    """Count subwords, and those that stand together, in evenly spaced pairs of a corpus."""
    products = corpus.source_lengths.astype(np.int64) * corpus.target_lengths
    step = max(1, math.ceil(products.sum() / MOST))
    chosen = np.arange(0, len(corpus), step)
    of_source = np.zeros(sources)
    of_target = np.zeros(targets)
    keys = list[Rows]()
    counts = list[Rows]()
    for part in np.array_split(chosen, math.ceil((products[chosen].sum() + 1) / AT_ONCE)):
        left = _distinct(*corpus.sources(part), sources)
        right = _distinct(*corpus.targets(part), targets)
        of_source += np.bincount(left[1], minlength=sources)
        of_target += np.bincount(right[1], minlength=targets)
        found, times = np.unique(_together(left, right, len(part), targets), return_counts=True)
        keys.append(found)
        counts.append(times)
    both, places = np.unique(np.concatenate(keys), return_inverse=True)
    together = np.bincount(places, np.concatenate(counts)).astype(np.float64)
    rows, columns = np.divmod(both, targets)
    return Cooccurrences(of_source, of_target, rows, columns, together, len(chosen))


def _distinct(ids: Rows, lengths: Ids, size: int) -> tuple[Rows, Rows]:
    """Return the distinct subwords of each row: their rows, in order, and the subwords, (n,) each."""
    inside = np.arange(ids.shape[1]) < lengths[:, None]
    rows, _ = np.nonzero(inside)
    keys: Rows = np.unique(rows * size + ids[inside])
    found, distinct = np.divmod(keys, size)
    return found, distinct


def _together(left: tuple[Rows, Rows], right: tuple[Rows, Rows], pairs: int, size: int) -> Rows:
    """Return source subword · `size` + target subword for all two that stand in one pair."""
    per_pair = np.bincount(right[0], minlength=pairs)  # target subwords of each pair
    first = np.cumsum(per_pair) - per_pair  # the first of them
    repeats = per_pair[left[0]]  # with how many each source subword stands together
    starts = first[left[0]] - (np.cumsum(repeats) - repeats)
    places = np.arange(repeats.sum()) + np.repeat(starts, repeats)
    together: Rows = np.repeat(left[1], repeats) * size + right[1][places]
    return together
