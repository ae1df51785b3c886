"""Words that training has not seen, by the prepared data of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nmt.checkpoint.reading import Bundle
from nmt.data.corpus import Corpus
from nmt.data.known import words_of
from nmt.system.console import Console
from nmt.system.integrity import intact
from nmt.training.validation import find_prepared

AT_ONCE = 4096  # pairs


def unseen_words(bundle: Bundle, run: Path, sources: Sequence[str], console: Console) -> list[int]:
    """Return how many different words of each source no source of the training pairs has.

    Raise UserError if the data of the bundle's run, which is in the directory `run`, is not here.
    """
    corpus = Corpus(intact(find_prepared(bundle, run) / "train.arrow"))
    vocabulary = bundle.tokenizer().source
    of_lines = list(map(words_of, sources))
    unseen = set[str]().union(*of_lines)
    with console.progress("reading words of training", len(corpus), "pairs") as advance:
        for start in range(0, len(corpus), AT_ONCE):
            rows = np.arange(start, min(start + AT_ONCE, len(corpus)))
            ids, lengths = corpus.sources(rows)
            texts = [
                vocabulary.decode(row[:length]) for row, length in zip(ids.tolist(), lengths.tolist(), strict=True)
            ]
            unseen -= words_of(" ".join(texts))
            advance(len(rows))
    return [len(words & unseen) for words in of_lines]
