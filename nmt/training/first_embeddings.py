"""Embeddings that begin with what the training pairs tell: subwords that translate each other get similar vectors.

How much more often two subwords stand in one pair than they would by chance, their pointwise mutual information, makes
a matrix, of which the vectors are the greatest components (Levy and Goldberg 2014, here across two languages). It takes
seconds, and a small model need not learn its lexicon from nothing.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmt.data.corpus import Corpus, Ids, Rows
from nmt.model.transformer import Transformer

MOST = 30_000_000  # pairs of a source and a target subword that are counted; of a larger corpus, some pairs are
AT_ONCE = 3_000_000
SPARE = 32  # components beside those wanted, for the accuracy of these (Halko et al. 2009)
ITERATIONS = 3
SEED = 1
POWER = 0.5  # of the singular values
TINY = 1e-4  # of the longest vector: what rounding leaves of one that is zero
TOO_RARE = 1  # times that two subwords stand in one pair, which may be chance


class _Counts(NamedTuple):
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


def begin_with_pairs(model: Transformer, corpus: Corpus) -> int:
    """Give a new translator's embeddings vectors of norm 1 by its training pairs; return how many subwords get one."""
    tables = [model.source_embedding.weight, model.target_embedding.weight]
    counts = _count(corpus, len(tables[0]), len(tables[1]))
    vectors = _vectors(counts, tables[0].shape[1])
    if tables[0] is tables[1]:
        weights = [torch.from_numpy(each).float()[:, None] for each in (counts.source, counts.target)]
        vectors = [vectors[0] * weights[0] + vectors[1] * weights[1]]
    given = 0
    for table, found in zip(tables, vectors, strict=False):
        norms = found.norm(dim=1)
        rows = norms > max(TINY * float(norms.max()), TINY)
        with torch.no_grad():
            table[rows.to(table.device)] = (found[rows] / norms[rows, None]).to(table)
        given += int(rows.sum())
    return given


def _count(corpus: Corpus, sources: int, targets: int) -> _Counts:
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
    return _Counts(of_source, of_target, rows, columns, together, len(chosen))


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


def _vectors(counts: _Counts, width: int) -> list[Tensor]:
    """Return vectors of source and target subwords, (vocabulary, width) each; zeros where nothing is known."""
    kept = counts.together > TOO_RARE
    rows = counts.rows[kept]
    columns = counts.columns[kept]
    together = counts.together[kept]
    of_source = counts.source[rows]
    of_target = counts.target[columns]
    information = np.log(together * counts.pairs / (of_source * of_target))
    rarer = np.minimum(of_source, of_target)
    information *= together / (together + 1.0) * rarer / (rarer + 1.0)  # few are hardly known (Pantel and Lin 2002)
    is_more = information > 0.0
    places = torch.from_numpy(np.stack([rows[is_more], columns[is_more]]))
    values = torch.from_numpy(information[is_more]).float()
    shape = len(counts.source), len(counts.target)
    matrix = torch.sparse_coo_tensor(places, values, shape, check_invariants=False).coalesce()
    found = min(width, *shape)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(SEED)
        left, sizes, right = torch.svd_lowrank(matrix, min(found + SPARE, *shape), ITERATIONS)
    scale = sizes[:found] ** POWER
    vectors = []
    for side in (left, right):
        vector = torch.zeros(len(side), width)
        vector[:, :found] = side[:, :found] * scale
        vectors.append(vector)
    return vectors
