"""How long the sentences of prepared pairs are, for splitting lines that a translator was not trained for."""

from __future__ import annotations

import numpy as np

from nmt.data.corpus import Corpus
from nmt.recipe import Recipe
from nmt.text.lengths import TrainedLengths
from nmt.text.sentences import SentenceSplitter
from nmt.text.tokenizer import Tokenizer

SAMPLE = 10_000  # pairs that are looked at
CHUNK = 1000


def measure_lengths(recipe: Recipe, corpus: Corpus, tokenizer: Tokenizer) -> TrainedLengths | None:
    """Lengths of the training pairs of a translator, from a sample that is evenly spread over them; None otherwise."""
    if recipe.task != "translate" or recipe.data.source is None or not len(corpus):
        return None
    rows = np.unique(np.linspace(0, len(corpus) - 1, SAMPLE).astype(np.int64))
    sources, targets = corpus.lengths(rows)
    splitter = SentenceSplitter(recipe.data.source)
    sentences = []
    for chunk in np.array_split(rows, -(-len(rows) // CHUNK)):
        for ids, length in zip(*corpus.sources(chunk), strict=True):
            sentences.append(len(splitter.split(tokenizer.source.decode(ids[:length]))))
    return TrainedLengths.of(recipe.data.source, sources.tolist(), targets.tolist(), sentences)
