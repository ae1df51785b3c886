"""Subword vocabularies: encoding text as ids and decoding them with SentencePiece, without loss.

Text is not normalised, and byte fallback encodes characters without an entry. `<s>` and `</s>` are added when batches
are made.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from itertools import accumulate
from typing import Protocol

import sentencepiece

from nmt.system.errors import UserError

PAD, UNK, BOS, EOS = 0, 1, 2, 3  # <pad>, <unk>, <s>, </s>: the same ids in every vocabulary
DAMAGED = "the file is damaged; take it from another copy of the model"

# SentencePiece writes a space as U+2581 and would decode a real U+2581 as a space. The stand-in for a real one is a
# noncharacter, which Unicode reserves for internal use.
SPACE_MARK, STAND_IN = "\u2581", "\ufdd0"
_BYTE = re.compile("<0x([0-9A-F]{2})>")


def read_processor(serialized: bytes, name: str) -> sentencepiece.SentencePieceProcessor:
    """Load a SentencePiece model from bytes; raise UserError, citing `name`, if they do not hold one."""
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.load_from_serialized_proto(serialized)
        processor.id_to_piece(list(range(processor.get_piece_size())))  # raises ValueError for invalid UTF-8
    except (RuntimeError, TypeError, ValueError):
        raise UserError(f"{name}: is not a SentencePiece model", DAMAGED) from None
    return processor


class TargetVocabulary(Protocol):
    """Interface of target vocabularies, whether of subwords or of other symbols."""

    FILE: str
    """Name of its file if source and target have separate vocabularies"""
    UNSEEN: str
    """Noun phrase, in messages, for texts with unknown symbols; empty if no symbol is unknown"""
    serialized: bytes
    _symbols: list[str]
    """All symbols, by id"""

    def __init__(self, serialized: bytes, name: str) -> None: ...
    def encode(self, text: str) -> list[int]: ...
    def decode(self, ids: Sequence[int]) -> str: ...
    def starts(self) -> list[bool]: ...

    def __len__(self) -> int:
        return len(self._symbols)

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode each text as `encode` does."""
        return [self.encode(text) for text in texts]

    def listing(self) -> list[str]:
        """Return all symbols in order of their ids."""
        return list(self._symbols)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Look up symbols by id; a word's first subword starts with U+2581."""
        return [self._symbols[index] for index in ids]


class Vocabulary(TargetVocabulary):
    """A SentencePiece vocabulary for one side, or shared by both."""

    FILE = "target.model"
    UNSEEN = ""  # byte fallback encodes any character

    def __init__(self, serialized: bytes, name: str) -> None:
        """Load a SentencePiece model from bytes; raise UserError, citing `name`, if they do not hold one of ours."""
        self.serialized = serialized
        self._processor = sp = read_processor(serialized, name)
        if (sp.pad_id(), sp.unk_id(), sp.bos_id(), sp.eos_id()) != (PAD, UNK, BOS, EOS):
            raise UserError(f"{name}: its control symbols do not have the ids {PAD} to {EOS}", DAMAGED)
        self._symbols = sp.id_to_piece(list(range(sp.get_piece_size())))
        self._ids = {symbol: index for index, symbol in enumerate(self._symbols)}
        lead_bytes = (f"<0x{byte:02X}>" for byte in (*range(0x80), *range(0xC0, 0x100)))  # UTF-8 has one per character
        self._unknown = frozenset((UNK, *(self._ids.get(byte, UNK) for byte in lead_bytes)))

    def encode(self, text: str) -> list[int]:
        """Encode one line, without `</s>`."""
        return list(self._processor.encode(text.replace(SPACE_MARK, STAND_IN)))

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode lines on one thread; thread-safe."""
        lines = [text.replace(SPACE_MARK, STAND_IN) for text in texts]
        return list(self._processor.encode(lines, num_threads=1))

    def decode(self, ids: Sequence[int]) -> str:
        """Decode ids to text, skipping control symbols."""
        return str(self._processor.decode([int(i) for i in ids if i > EOS])).replace(STAND_IN, SPACE_MARK)

    def ends_in(self, text: str, ids: Sequence[int]) -> list[int]:
        """Return the offset at which each subword of an encoded text ends.

        A byte that does not complete a character ends with the subword before it. Where encoding normalises the text,
        offsets are those of the nearest equal characters.
        """
        spelled, ends, held = "", [], b""
        for piece in self.pieces(ids):
            if byte := _BYTE.fullmatch(piece):
                held += bytes.fromhex(byte[1])
                character = held.decode(errors="ignore")
                held = b"" if character else held
                spelled += character
            else:
                spelled += piece.replace(SPACE_MARK, " ").replace(STAND_IN, SPACE_MARK)
            ends.append(len(spelled))
        added = len(spelled) - len(text)  # the space before the first word
        if spelled[added:] == text and added in (0, 1):
            return [max(0, end - added) for end in ends]
        places = [0] * (len(spelled) + 1)
        for start, own, size in SequenceMatcher(None, spelled, text, autojunk=False).get_matching_blocks():
            places[start : start + size + 1] = range(own, own + size + 1)
        places = [*accumulate(places, max)]
        return [places[end] for end in ends]

    def find(self, word: str) -> tuple[int | None, bool]:
        """Return the subword id of `word`, else of `word` after a space, else None; and whether the match is exact."""
        for piece, exact in ((word, True), (SPACE_MARK + word, False)):
            if (index := self._ids.get(piece, UNK)) > EOS:
                return index, exact
        return None, False

    def spellings(self) -> list[str]:
        """Return each subword's text by id, with spaces as U+2581; empty for control symbols and bytes."""
        return ["" if i <= EOS or self._processor.is_byte(i) else symbol for i, symbol in enumerate(self._symbols)]

    def encode_beginning(self, text: str) -> tuple[list[int], str, list[int]]:
        """Encode a prefix of a line, ignoring leading space; its last word may be incomplete.

        Return the ids of all words but the last, the last word preceded by U+2581 (U+2581 alone if the text ends with a
        space), and the last word's ids in case it is complete.
        """
        text = text.lstrip()
        words, _, last = text.rpartition(" ")
        if words != words.rstrip():  # consecutive spaces have subwords of their own
            return self.encode(text), "", []
        return self.encode(words), SPACE_MARK + last.replace(SPACE_MARK, STAND_IN), self.encode(last)

    def language(self, text: str) -> str:
        """Return an empty string: only Marian models have target-language tags."""
        return ""

    def count_unknown(self, ids: Iterable[int]) -> int:
        """Count characters without an entry, which are encoded as bytes or, in Marian vocabularies, lost."""
        return sum(index in self._unknown for index in ids)

    def starts(self) -> list[bool]:
        """Return whether each subword, by id, begins a word."""
        return [symbol.startswith(SPACE_MARK) for symbol in self._symbols]

    def starts_word(self, index: int) -> bool:
        """Return whether the subword begins a word."""
        return self._symbols[index].startswith(SPACE_MARK)
