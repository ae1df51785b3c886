"""Word vectors as initial embeddings, from files in the text format of word2vec and fastText.

A line is a word and its numbers, separated by spaces; the first line may give the number of words and of dimensions. A
vector is for the subword that is the whole word, `▁word` in SentencePiece. Words in several subwords are not used. The
numbers become a row of the matrix as they are; like any row, the model multiplies it by √d_model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmt.model.transformer import Transformer
from nmt.recipe import Recipe, Training
from nmt.system.errors import UserError, counted
from nmt.text.lines import read_lines
from nmt.text.scripts import UNSPACED
from nmt.text.tokenizer import Tokenizer
from nmt.text.vocabulary import SPACE_MARK, Vocabulary

HEADER = re.compile(r"[0-9]+ ([0-9]{1,9}) *")
SHOWN = 40  # characters of a line in an error


def check_dimensions(recipe: Recipe) -> None:
    """Raise UserError if the first vector of a file that a new run begins with has not d_model numbers."""
    for file in _files(recipe.training).values():
        next(_entries(Path(file), recipe.model.d_model), None)


def begin_with_vectors(
    model: Transformer, tokenizer: Tokenizer, settings: Training, say: Callable[[str], None]
) -> dict[str, Tensor]:
    """Copy the vectors of the recipe's files into a new model's embeddings.

    Return, by the name of a matrix, 1 for each row (vocabulary,) that has got one, and 0 for the others. Raise
    UserError if a file has no vector for the vocabulary, or is not in the format.
    """
    names = {parameter: name for name, parameter in model.named_parameters()}  # a shared matrix has one
    given: dict[str, Tensor] = {}
    for side, file in _files(settings).items():
        weight = model.get_parameter(f"{side}_embedding.weight")
        vocabulary = getattr(tokenizer, side)
        rows, vectors = read_vectors(Path(file), vocabulary, model.config.d_model)
        with torch.no_grad():
            weight[rows] = vectors.to(weight)
            marks = given.setdefault(names[weight], weight.new_zeros(len(weight)))
            marks[rows] = 1.0
        say(f"embeddings: {len(rows):,} of {len(vocabulary):,} {side} subwords from {file}")
    return given


def _files(settings: Training) -> dict[str, str]:
    """Return the files of word vectors by the side whose words they are for."""
    files = {"source": settings.source_embeddings, "target": settings.target_embeddings}
    return {side: file for side, file in files.items() if file is not None}


def read_vectors(path: Path, vocabulary: Vocabulary, width: int) -> tuple[Tensor, Tensor]:
    """Return the rows (n,) of a vocabulary for which a file has vectors, and the vectors (n, width).

    Of several lines for a word, the first counts. Raise UserError, with the line, for one that is not in the format.
    """
    ids = {piece: index for index, piece in enumerate(vocabulary.spellings()) if piece}
    found: dict[int, NDArray[np.float32]] = {}
    for number, word, numbers in _entries(path, width):
        rows = [row for row in _rows_of(word, ids) if row not in found]
        if rows:
            vector = _vector(numbers, f"{path}:{number}")
            found.update(dict.fromkeys(rows, vector))
    if not found:
        hint = "name vectors of this language; only words that are one subword get theirs: raise tokenizer.vocab_size"
        raise UserError(f"{path}: has no vector for any of the {len(vocabulary):,} subwords", hint)
    return torch.tensor(list(found)), torch.from_numpy(np.stack(list(found.values())))


def _entries(path: Path, width: int) -> Iterator[tuple[int, str, str]]:
    """Yield the number of each line after a header, its word, and its numbers, `width` of them, as text."""
    for number, line in enumerate(read_lines(path), 1):
        header = HEADER.fullmatch(line) if number == 1 else None
        if header:
            _check_width(int(header[1]), width, f"{path}:{number}")
            continue
        word, _, numbers = line.rstrip(" ").partition(" ")
        count = numbers.count(" ") + 1 if numbers else 0
        _check_width(count, width, f"{path}:{number}")
        yield number, word, numbers


def _check_width(count: int, width: int, where: str) -> None:
    """Raise UserError unless a vector of `count` numbers fits a model of this `width`."""
    if count != width:
        problem = f"{where}: has {counted(count, 'number')}, but model.d_model is {width:,}"
        hint = "each line must be a word and its numbers, separated by spaces"
        raise UserError(problem, f"{hint}; for vectors of {counted(count, 'number')}: --set model.d_model={count}")


def _rows_of(word: str, ids: dict[str, int]) -> list[int]:
    """Return the rows of a word: of the subword `▁word` and, in a script without spaces, of the one without `▁`."""
    bare = word.removeprefix(SPACE_MARK)
    spelled = [SPACE_MARK + bare]
    if UNSPACED.match(bare):
        spelled.append(bare)
    return [ids[piece] for piece in spelled if piece in ids]


def _vector(numbers: str, where: str) -> NDArray[np.float32]:
    """Return numbers (width,) in single precision; raise UserError if one is none, or beyond that precision."""
    vector = np.array([np.nan], np.float32)
    try:
        with np.errstate(over="ignore"):
            vector = np.array(numbers.split(" "), np.float64).astype(np.float32)
    except ValueError:
        pass
    if not np.isfinite(vector).all():
        problem = f"{where}: one of {numbers[:SHOWN]} … is not a number of single precision"
        raise UserError(problem, "take another copy of the file, or remove the line")
    return vector
