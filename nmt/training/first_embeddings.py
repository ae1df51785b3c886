"""Embeddings that begin with what the training pairs tell: subwords that translate each other get similar vectors.

How much more often two subwords stand in one pair than they would by chance, their pointwise mutual information, makes
a matrix, of which the vectors are the greatest components (Levy and Goldberg 2014, here across two languages). It takes
seconds, and a small model need not learn its lexicon from nothing.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from nmt.data.corpus import Corpus
from nmt.model.transformer import Transformer
from nmt.training.cooccurrence import Cooccurrences, count

SPARE = 32  # components beside those wanted, for the accuracy of these (Halko et al. 2009)
ITERATIONS = 3
SEED = 1
POWER = 0.5  # of the singular values
TINY = 1e-4  # of the longest vector: what rounding leaves of one that is zero
TOO_RARE = 1  # times that two subwords stand in one pair, which may be chance


def begin_with_pairs(model: Transformer, corpus: Corpus) -> int:
    """Give a new translator's embeddings vectors of norm 1 by its training pairs; return how many subwords get one."""
    tables = [model.source_embedding.weight, model.target_embedding.weight]
    counts = count(corpus, len(tables[0]), len(tables[1]))
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


def _vectors(counts: Cooccurrences, width: int) -> list[Tensor]:
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
