"""A translator's lexicon: which symbols most clearly translate those of its sources, by the training pairs."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import cast

import numpy as np
import torch

from nmt.checkpoint.reading import Bundle
from nmt.checkpoint.writing import save_copy
from nmt.data.corpus import Corpus
from nmt.model.transformer import Lexicon
from nmt.system.console import Console
from nmt.system.errors import UserError
from nmt.system.integrity import intact
from nmt.text.tokenizer import Tokenizer
from nmt.text.vocabulary import Vocabulary, numbered
from nmt.training.budget import Budget
from nmt.training.cooccurrence import MOST, count
from nmt.training.validation import find_prepared

WIDTH = 100  # translations of a symbol
FREQUENT = 2000  # target symbols that any output may have; a batch computes their logits at once, so many are cheap
WORTHWHILE = 16_000  # target symbols from which on a lexicon is made without being asked for
SECONDS = 10.0  # for MOST


def lexicon_of(corpus: Corpus, tokenizer: Tokenizer) -> Lexicon:
    """Return the lexicon of training pairs.

    Translations are ranked by how much more often two symbols stand in one pair than they would by chance: by the
    greatest term of the log-likelihood ratio (Dunning 1993).
    """
    source = tokenizer.source
    target = cast(Vocabulary, tokenizer.target)
    counts = count(corpus, len(source), len(target))
    by_chance = counts.source[counts.rows] * counts.target[counts.columns] / counts.pairs
    scores = counts.together * np.log(counts.together / by_chance)
    order = np.lexsort((-scores, counts.rows))
    rows = counts.rows[order]
    ranks = np.arange(len(rows)) - np.searchsorted(rows, rows)
    kept = (ranks < WIDTH) & (scores[order] > 0.0)
    translations = np.full((len(source), 1 + WIDTH), -1, dtype=np.int32)
    translations[rows[kept], 1 + ranks[kept]] = counts.columns[order][kept]
    ids = numbered(target.listing())
    translations[:, 0] = [ids.get(symbol, -1) for symbol in source.listing()]
    is_frequent = np.array([not spelling for spelling in target.spellings()])  # control symbols and bytes
    is_frequent[np.argsort(-counts.target, kind="stable")[:FREQUENT]] = True
    frequent = is_frequent.nonzero()[0].astype(np.int32)
    return Lexicon(torch.from_numpy(translations), torch.from_numpy(frequent))


def add_lexicon(average: Bundle, run: Path, console: Console, budget: Budget) -> Bundle:
    """Write the lexicon of a run's translator into its average, and return that.

    Leave it out if the vocabulary is small and the recipe has no shortlists, if the training data is not prepared here,
    or if the budget leaves no time.
    """
    if average.task.name != "translate":
        return average
    tokenizer = average.tokenizer()
    is_wanted = average.recipe.decoding.shortlist is not None
    if not is_wanted and len(tokenizer.target) < WORTHWHILE:
        return average
    left_out = "no lexicon for decoding.shortlist: "
    try:
        corpus = Corpus(intact(find_prepared(average, run) / "train.arrow"))
    except UserError as error:
        if is_wanted:
            console.say(left_out + error.message)
        return average
    products = corpus.source_lengths.astype(np.int64) * corpus.target_lengths
    if not budget.fits(SECONDS * min(1.0, float(products.sum()) / MOST)):
        later = shlex.join(["nmt", "average", str(run)])
        console.say(f"{left_out}training.minutes leaves no time for it; later: {later}")
        return average
    return save_copy(average, average.path, lexicon=lexicon_of(corpus, tokenizer))
