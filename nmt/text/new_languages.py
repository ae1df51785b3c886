"""Languages added to a trained vocabulary: the symbols and pieces that it gets for them, all after its own.

Texts of other languages are encoded as before, by the older vocabulary, whose ids are the first ones of the newer.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated

from pydantic import BaseModel, Field, RootModel

from nmt.recipe import TokenizerSettings
from nmt.text.vocabulary import SPACE_MARK, Vocabulary, read_processor

NORMAL = 1
CONTROL = 3
"""Types of pieces in SentencePiece's format: of text, and symbols that no text is encoded as"""


class Added(BaseModel):
    """What a vocabulary got for new languages."""

    languages: list[Annotated[str, Field(min_length=1, max_length=24)]]  # at most 96 bytes each in UTF-8
    pieces: list[Annotated[str, Field(min_length=1, max_length=24)]]


class Additions(RootModel[list[Added]]):
    """Schema of new_languages.json: additions, oldest first."""


def with_pieces(serialized: bytes, pieces: Iterable[str], kind: int = NORMAL) -> bytes:
    """Append pieces of at most 100 bytes to a SentencePiece model; later ones have lower scores, below all others.

    A protocol buffer is extended by appending: its field 1 holds pieces, which have a text (1), score (2) and type (3).
    A byte before each field is its number times 8, plus its wire type: 2 for bytes, 5 for an fp32, 0 for an integer. A
    length below 128 is one byte.
    """
    processor = read_processor(serialized, "the vocabulary")
    found = [serialized]
    lowest = min(map(processor.get_score, range(processor.get_piece_size())))
    step = max(1.0, -lowest) * 2.0**-20  # far below the differences of unigrams, and enough for fp32 to tell
    for number, text in enumerate(map(str.encode, pieces), 1):
        score = struct.pack("<f", lowest - number * step)
        entry = b"\x0a" + bytes([len(text)]) + text + b"\x15" + score + b"\x18" + bytes([kind])
        found.append(b"\x0a" + bytes([len(entry)]) + entry)
    return b"".join(found)


def learn(
    vocabulary: Vocabulary,
    texts: Iterator[str],
    settings: TokenizerSettings,
    say: Callable[[str], None],
    cores: int | None,
) -> list[str]:
    """Return the pieces of a vocabulary trained on texts of new languages that `vocabulary` lacks."""
    own = settings.model_copy(update={"vocab_size": settings.new_vocab_size, "normalization": "none"})
    lines = _as_spelled(texts, vocabulary)
    trained = Vocabulary.train(", ".join(settings.new_languages), lines, own, say, cores)
    known = {"", *vocabulary.listing()}
    return [piece for piece in trained.spellings() if piece not in known]


def _as_spelled(texts: Iterable[str], vocabulary: Vocabulary) -> Iterator[str]:
    """Yield texts as the pieces of a vocabulary spell them, since new pieces are matched after its normalisation."""
    for text in texts:
        yield vocabulary.normalized(text).replace(SPACE_MARK, " ").strip()
