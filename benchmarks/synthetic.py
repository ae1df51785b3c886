"""The paper's models, and a corpus of random subwords with the lengths of WMT's sentences, as prepared data."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from nmt.data.corpus import Ids
from nmt.data.epochs import plan_epoch
from nmt.data.prepare import CHUNK
from nmt.recipe import Model

LONGEST = 256
VOCABULARY = 37_000
CLASSES, UPDATES = (12, 37, 90), 10  # mean tokens of a sentence, with </s>, and updates of a class
FILLED = 0.96  # of the tokens of an update, as of WMT's sentences
MODELS = {
    "base": Model(),
    "big": Model(d_model=1024, d_ff=4096, heads=16, dropout=0.3),
    "small": Model(layers=2, d_model=64, d_ff=128, heads=2),
    "tiny": Model(layers=1, d_model=32, d_ff=64, heads=2),
}


def wmt_lengths(pairs: int, seed: int = 1) -> tuple[Ids, Ids]:
    """(pairs,) subwords of each source and target: log-normal, 28 and 30 in the mean, alike in a pair, at most 256."""
    random = np.random.default_rng(seed)
    source = 3.12 + 0.7 * random.standard_normal(pairs, np.float32)
    target = source + 0.05 + 0.2 * random.standard_normal(pairs, np.float32)
    lengths = [np.exp(side).clip(1, LONGEST).astype(np.int32) for side in (source, target)]
    return lengths[0], lengths[1]


def write_corpus(
    path: Path, source_lengths: Ids, target_lengths: Ids, vocabulary: int = VOCABULARY, seed: int = 1
) -> None:
    """Write what `nmt preprocess` would of pairs with these lengths, 10,000 a record batch, synced to disk."""
    random = np.random.default_rng(seed)
    ids = random.integers(4, vocabulary, 2 * CHUNK * LONGEST, dtype=np.int32)  # each batch takes its own stretch

    def sentences(lengths: Ids) -> pa.ListArray:
        offsets = np.concatenate([np.zeros(1, np.int32), lengths.cumsum(dtype=np.int32)])
        first = random.integers(len(ids) - offsets[-1])
        return pa.ListArray.from_arrays(pa.array(offsets), pa.array(ids[first : first + offsets[-1]]))

    names = ["source", "target", "line", "source_text", "target_text"]
    types = [pa.list_(pa.int32()), pa.list_(pa.int32()), pa.int64(), pa.string(), pa.string()]
    schema = pa.schema(zip(names, types, strict=True))
    with path.open("wb") as file:
        with pa.ipc.new_stream(file, schema) as stream:
            for begin in range(0, len(source_lengths), CHUNK):
                part = slice(begin, min(begin + CHUNK, len(source_lengths)))
                lines = pa.array(np.arange(part.start, part.stop) + 1)
                sides = [sentences(lengths[part]) for lengths in (source_lengths, target_lengths)]
                stream.write_batch(pa.record_batch([*sides, lines, *2 * [pa.nulls(len(lines), pa.string())]], schema))
        os.fsync(file.fileno())


def write_classes(path: Path, batch_tokens: int, vocabulary: int) -> list[list[range]]:
    """Write a corpus of sentences alike in length, in three classes, then some of WMT's; return each class's updates.

    An update is a range of rows.
    """
    random, first = np.random.default_rng(1), 0
    sides: list[tuple[np.ndarray, np.ndarray]] = []
    classes: list[list[range]] = []
    for tokens in CLASSES:
        pairs = max(1, round(FILLED * batch_tokens / tokens))
        source = random.normal(tokens - 1, tokens / 10, UPDATES * pairs)
        target = source + random.normal(0, tokens / 20, len(source))
        sides.append((source, target))
        starts = range(first, first := first + len(source), pairs)
        classes.append([range(start, start + pairs) for start in starts])
    wmt = wmt_lengths(UPDATES * 5000)
    plan = plan_epoch(*wmt, batch_tokens, 1, 0)
    chosen = [plan.rows(number * len(plan) // UPDATES) for number in range(min(UPDATES, len(plan)))]
    rows = np.concatenate(chosen)
    sides.append((wmt[0][rows], wmt[1][rows]))
    ends = np.cumsum([first, *map(len, chosen)]).tolist()
    classes.append([range(*pair) for pair in pairwise(ends)])
    lengths = [np.concatenate(side).round().clip(1).astype(np.int32) for side in zip(*sides, strict=True)]
    write_corpus(path, lengths[0], lengths[1], vocabulary)
    return classes
