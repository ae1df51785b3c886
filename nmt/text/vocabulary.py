"""One side's subwords by SentencePiece: text to ids and back; every string survives the round trip.

Text is not normalised, and characters without an entry are spelled in bytes, so nothing is unknown and nothing is lost.
`</s>` and `<s>` are added where batches are made.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import sentencepiece

from nmt.system.errors import UserError
from nmt.text.terms import joins

PAD, UNK, BOS, EOS = 0, 1, 2, 3  # <pad>, <unk>, <s>, </s>: the same ids in every vocabulary
DAMAGED = "the file is damaged; take it from another copy of the model"

# SentencePiece writes a space as U+2581 and would turn a real U+2581 into a space. A noncharacter, which Unicode
# reserves for internal use, replaces it.
SPACE_MARK, STAND_IN = "\u2581", "\ufdd0"


def read_processor(serialized: bytes, name: str) -> sentencepiece.SentencePieceProcessor:
    """Read a SentencePiece model, which errors call `name`; raises UserError if the bytes are none."""
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.load_from_serialized_proto(serialized)
        processor.id_to_piece(list(range(processor.get_piece_size())))  # a ValueError where a piece is no UTF-8
    except (RuntimeError, TypeError, ValueError):
        raise UserError(f"{name}: is not a SentencePiece model", DAMAGED) from None
    return processor


class TargetVocabulary(Protocol):
    """The vocabulary of a target: subwords, or the symbols of trees."""

    FILE: str
    """Name of the file that holds it alone."""
    UNSEEN: str
    """What to call texts with symbols that it lacks; empty if there are none."""
    serialized: bytes

    def __init__(self, serialized: bytes, name: str) -> None: ...
    def __len__(self) -> int: ...
    def encode(self, text: str) -> list[int]: ...
    def decode(self, ids: Sequence[int]) -> str: ...
    def pieces(self, ids: Sequence[int]) -> list[str]: ...
    def starts(self) -> list[bool]: ...

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode many texts."""
        return [self.encode(text) for text in texts]

    def listing(self) -> list[str]:
        """Return all symbols, by id."""
        return self.pieces(range(len(self)))


class Vocabulary(TargetVocabulary):
    """One SentencePiece model: the subwords of one side, or of both if they share it."""

    FILE = "target.model"
    UNSEEN = ""  # bytes spell every character
    LOSSY = False
    """Whether there are texts that `decode` does not give back."""

    def __init__(self, serialized: bytes, name: str) -> None:
        """Read a SentencePiece model, which errors call `name`; raises UserError if the bytes are none of ours."""
        self.serialized = serialized
        self._processor = sp = read_processor(serialized, name)
        if (sp.pad_id(), sp.unk_id(), sp.bos_id(), sp.eos_id()) != (PAD, UNK, BOS, EOS):
            raise UserError(f"{name}: its control symbols do not have the ids {PAD} to {EOS}", DAMAGED)
        lead_bytes = (f"<0x{byte:02X}>" for byte in (*range(0x80), *range(0xC0, 0x100)))  # one for each character
        self._unknown = frozenset((UNK, *map(sp.piece_to_id, lead_bytes)))

    def __len__(self) -> int:
        return int(self._processor.get_piece_size())

    def encode(self, text: str) -> list[int]:
        """Encode one line, without `</s>`."""
        return list(self._processor.encode(text.replace(SPACE_MARK, STAND_IN)))

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode many lines on one thread; other threads may call this at the same time."""
        if not texts:
            return []  # SentencePiece would start a thread even for no line
        lines = [text.replace(SPACE_MARK, STAND_IN) for text in texts]
        return list(self._processor.encode(lines, num_threads=1))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, without control symbols."""
        return str(self._processor.decode([int(i) for i in ids if i > EOS])).replace(STAND_IN, SPACE_MARK)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Return the subwords of ids; the first subword of a word begins with U+2581."""
        return [self._piece(int(i)) for i in ids]

    def find(self, word: str) -> tuple[int | None, bool]:
        """Find the subword `word`, else that with a space before; returns its id and whether it is `word` itself."""
        for piece, exact in ((word, True), (SPACE_MARK + word, False)):
            if (index := self._index(piece)) > EOS:
                return index, exact
        return None, False

    def spellings(self) -> list[str]:
        """Return what each subword spells, by id, a space as U+2581; nothing for control symbols and bytes."""
        sp = self._processor
        return [
            "" if sp.is_control(i) or sp.is_unknown(i) or sp.is_byte(i) else str(sp.id_to_piece(i))
            for i in range(len(self))
        ]

    def encode_beginning(self, text: str) -> tuple[list[int], str, list[int]]:
        """Encode the beginning of a line, whose last word may go on.

        Returns the ids of the other words, what subwords of the last word spell (only a space if the text ends with
        one), and its ids if it does not go on. Space before the text is ignored.
        """
        text = text.lstrip()
        words, _, last = text.rpartition(" ")
        if words != words.rstrip():  # more than one space: their subwords are those of the whole
            return self.encode(text), "", []
        return self.encode(words), SPACE_MARK + last.replace(SPACE_MARK, STAND_IN), self.encode(last)

    def word_ends(self) -> tuple[list[bool], list[bool]]:
        """Tell for every symbol, by id, whether a word may begin after it, and whether a word ends before it.

        Bytes of characters that have several do not tell, so that neither is certain.
        """
        spellings = self.spellings()
        for byte in range(0x80):
            if (index := self._index(f"<0x{byte:02X}>")) > EOS:
                spellings[index] = chr(byte)
        begin = [bool(text) and not joins(text[-1]) for text in spellings]
        end = [bool(text) and not joins(text[0]) for text in spellings]
        end[EOS] = True
        return begin, end

    def language(self, text: str) -> str:
        """Return the beginning of a text that names the language to translate into; it is empty if nothing does."""
        return ""

    def encode_within(self, text: str) -> list[int] | None:
        """Encode a text before which there is no space; None if the vocabulary has no subwords for that."""
        first, *rest = self.encode(text)
        if (piece := self.pieces([first])[0]) == SPACE_MARK:
            return rest
        index, exact = self.find(piece.removeprefix(SPACE_MARK))
        return [index, *rest] if index is not None and exact else None

    def count_unknown(self, ids: Iterable[int]) -> int:
        """Count the characters that have no subword, so that they are spelled in bytes."""
        return sum(index in self._unknown for index in ids)

    def starts(self) -> list[bool]:
        """Tell for every subword, by id, whether it begins a word."""
        return [self.starts_word(index) for index in range(len(self))]

    def starts_word(self, index: int) -> bool:
        """Tell whether the subword begins a word."""
        return self._piece(index).startswith(SPACE_MARK)

    def _piece(self, index: int) -> str:
        """Return the subword with this id."""
        return str(self._processor.id_to_piece(index))

    def _index(self, piece: str) -> int:
        """Return the id of a subword, that of `<unk>` if it is none."""
        return int(self._processor.piece_to_id(piece))
