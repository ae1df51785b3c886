"""Initial embeddings from a word2vec text file."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from nmt.bundle.folder import MOST
from nmt.console import Console
from nmt.errors import UserError
from nmt.model.transformer import Transformer
from nmt.recipe import Training
from nmt.text.lines import read_lines
from nmt.text.tokenizer import Tokenizer
from nmt.text.vocabulary import Vocabulary


def use_embeddings(model: Transformer, tokenizer: Tokenizer, settings: Training, console: Console, fresh: bool) -> None:
    """Copies the vectors of the recipe's files into the embeddings of a `fresh` model; freezes them if the recipe asks.

    A word of a file belongs to the subword of the same spelling, or else to the one that is the whole word with a space
    before it. The model multiplies embeddings by √d_model, so vectors are divided by that, and the layers see them as
    given. Other rows of a frozen matrix keep learning. Raises UserError on files that do not fit.
    """
    sides = (
        (settings.source_embeddings, model.source_embedding, tokenizer.source),
        (settings.target_embeddings, model.target_embedding, tokenizer.target),
    )
    for name, embedding, vocabulary in sides:
        if name is None or not (fresh or settings.freeze_embeddings):
            continue
        assert isinstance(vocabulary, Vocabulary), "recipes refuse vectors of a target that has no words"
        assert embedding is not None, "recipes refuse vectors of a source that is not there"
        rows, vectors = read_vectors(Path(name), vocabulary, model.config.d_model)
        if fresh:
            with torch.no_grad():
                embedding.weight[rows] = (vectors / model.config.d_model**0.5).to(embedding.weight)
            console.say(f"embeddings: {len(rows):,} of {len(vocabulary):,} subwords from {name}")
        if settings.freeze_embeddings:
            _hold(embedding, rows)


def _hold(embedding: nn.Embedding, rows: Tensor) -> None:
    free = torch.ones(embedding.num_embeddings, 1, device=embedding.weight.device)
    free[rows] = 0.0
    embedding.weight.register_hook(lambda gradient: gradient * free)


def read_vectors(path: Path, vocabulary: Vocabulary, d_model: int) -> tuple[Tensor, Tensor]:
    """Rows (n,) of the vocabulary and their vectors (n, d_model) in a file; raises UserError if it does not fit."""
    rows: dict[int, list[float]] = {}
    exact: set[int] = set()
    for number, line in enumerate(read_lines(path), 1):
        word, *cells = line.rstrip().split(" ")
        if number == 1 and len(cells) == 1:  # the header: words and dimensions
            continue
        if len(cells) != d_model:
            raise UserError(
                f"{path}:{number}: the vector has {len(cells)} numbers, but model.d_model is {d_model}",
                f"use word2vec's text format: a word and {d_model} numbers on each line, separated by spaces",
            )
        index, is_exact = vocabulary.find(word)
        if index is None or (index in exact and not is_exact):
            continue
        try:
            rows[index] = [float(cell) for cell in cells]
            if not all(abs(number) <= MOST for number in rows[index]):  # false for nan
                raise ValueError
        except ValueError:
            raise UserError(
                f"{path}:{number}: one of {' '.join(cells[:4])} … is not a number",
                f"give the word {d_model} numbers, separated by spaces",
            ) from None
        if is_exact:
            exact.add(index)
    if not rows:
        raise UserError(
            f"{path}: has no vector for any of the {len(vocabulary):,} subwords",
            "name vectors of this side's language, with words spelled as in the training data",
        )
    return torch.tensor(list(rows)), torch.tensor(list(rows.values()))
