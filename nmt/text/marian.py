"""Vocabularies of models of transformers: OPUS-MT's, which Marian trained, and M2M-100's and NLLB-200's.

They encode and decode text as the tokenizers of transformers do, which does not normalise punctuation. Pieces without
an id become `<unk>`. We renumber: control symbols get our ids, and the pieces follow in the order of their own ids.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence, Sized
from typing import Any

from nmt.text.vocabulary import BOS, EOS, PAD, SPACE_MARK, UNK, TargetVocabulary, Vocabulary, numbered

_CONTROL = {"<pad>": PAD, "<unk>": UNK, "</s>": EOS}
_LITERAL = re.compile("(" + "|".join(_CONTROL) + ")")
NO_ID = -1
"""In place of the Marian id of a symbol that vocab.json lacks"""


class MarianVocabulary(Vocabulary):
    """The pieces of one side, source or target, or of both if they share ids."""

    UNSEEN = "targets that the tokenizer cannot spell"

    def __init__(self, ids: Mapping[str, int], encoder: Any, decoder: Any, first: Collection[str] = ()) -> None:
        """Renumber the pieces of vocab.json, given as `ids`; those in `first`, of an older vocabulary, keep their ids.

        `encoder` and `decoder` are SentencePiece processors.
        """
        pieces = [piece for piece in sorted(ids, key=ids.__getitem__) if piece not in _CONTROL]
        if first:
            rank = numbered(first)
            pieces.sort(key=lambda piece: rank.get(piece, len(rank)))
        self._symbols = ["<pad>", "<unk>", "<s>", "</s>", *pieces]
        self.origins = [ids.get(symbol, NO_ID) for symbol in self._symbols]
        """Marian id for each of our ids; `NO_ID` if there is none, as for `<s>`"""
        self.origins[BOS] = NO_ID
        self._ids: dict[str, int] = {}
        self.languages = {}
        for index, symbol in enumerate(self._symbols):
            if index == BOS:  # texts have no `<s>`
                continue
            self._ids[symbol] = index
            if is_tag(symbol):
                self.languages[symbol[2:-2]] = index
        self._textless = {*range(EOS + 1), *self.languages.values()}
        self._unknown = {UNK}
        self._encoder = encoder
        self._decoder = decoder
        self._spelled: set[str] = set()
        """Characters that encoding keeps, of those seen"""
        self._lost: set[str] = set()
        """Characters that it loses, of those seen"""
        self._from_encoder = [self._ids.get(encoder.id_to_piece(i), UNK) for i in range(encoder.get_piece_size())]

    def encode(self, text: str) -> list[int]:
        """Encode one line, without `</s>`; a literal `</s>`, `<pad>` or `<unk>` becomes that control symbol."""
        ids: list[int] = []
        for part in filter(None, _LITERAL.split(text)):
            if part in _CONTROL:
                ids.append(_CONTROL[part])
                continue
            tag = self.language(part)
            if tag:
                ids.append(self._ids.get(tag, UNK))
            ids += self._encode_plain(part.removeprefix(tag))
        return ids

    def language(self, text: str) -> str:
        """Return the target-language tag at the start of the text, such as >>fra<<; empty if there is none."""
        tag, closing, _ = text.partition("<<")
        if not closing or not tag.startswith(">>"):
            return ""
        return tag + closing

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode each text as `encode` does; thread-safe."""
        return TargetVocabulary.encode_all(self, texts)

    def _encode_plain(self, text: str) -> list[int]:
        """Return the ids of a text without control symbols."""
        row = self._encoder.encode(text)
        if self._encoder.unk_id() in row:  # vocab.json may list pieces that this side's SentencePiece model lacks
            return [self._ids.get(piece, UNK) for piece in self._encoder.encode(text, out_type=str)]
        return [self._from_encoder[index] for index in row]

    def decode(self, ids: Sequence[int]) -> str:
        """Decode ids to text, skipping control symbols, including `<unk>`, and those of languages."""
        pieces = [self._symbols[index] for index in ids if index not in self._textless]
        return str(self._decoder.decode_pieces(pieces)).replace(SPACE_MARK, " ").strip()

    def spells(self, text: str, ids: Sequence[int]) -> bool:
        """Return whether the ids of a text hold all of it, but for spaces and what Unicode calls compatible (NFKC).

        SentencePiece's rules drop some characters, such as the zero-width non-joiners of Persian.
        """
        for character in set(text) - self._spelled - self._lost:
            between = f"a{character}a"
            decoded = self.decode(self._encode_plain(between))
            if _letters(decoded) == _letters(between):
                self._spelled.add(character)
            else:
                self._lost.add(character)
        return super().spells(text, ids) and self._lost.isdisjoint(text)

    def _has_text(self, index: int) -> bool:
        return index not in self._textless


class M2MVocabulary(MarianVocabulary):
    """The pieces of M2M-100 or NLLB-200, whose sources and targets begin with symbols of languages."""

    def __init__(
        self, ids: Mapping[str, int], added: Mapping[str, int], processor: Any, older: M2MVocabulary | None = None
    ) -> None:
        """Renumber the pieces `ids` of a SentencePiece model and the symbols `added` to them, which have no text.

        The ids of an `older` vocabulary come first.
        """
        own = dict(ids)
        own["<0>"] = own.pop("<s>")  # under another name, since `<s>` is ours
        first = older.listing() if older else ()
        super().__init__({**own, **added}, processor, processor, first)
        self.older = older
        self._textless.add(self._ids["<0>"])
        self.added: dict[str, int] = {}
        """Ids in the model of transformers of the symbols that have names"""
        self.languages = {}
        for symbol, index in added.items():
            self._textless.add(self._ids[symbol])
            if not re.fullmatch("<[0-9]+>", symbol):
                self.added[symbol] = index
            if not symbol.startswith("<"):
                self.languages[symbol.strip("_")] = self._ids[symbol]

    def encode(self, text: str) -> list[int]:
        """Encode one line, without `</s>` and symbols of languages, which cannot be typed."""
        return self._encode_plain(text)

    def language(self, text: str) -> str:
        """Return an empty string: languages are not typed."""
        return ""


def _letters(text: str) -> str:
    """Return a text without spaces, in NFKC."""
    return "".join(unicodedata.normalize("NFKC", text).split())


def is_tag(piece: str) -> bool:
    """Return whether a piece is the symbol of a target language, such as >>fra<<."""
    return piece.startswith(">>") and piece.endswith("<<")


def origins_of(side: Sized) -> Sequence[int]:
    """Return the Marian id of each symbol, indexed by our id; the two are equal for our own vocabularies."""
    return side.origins if isinstance(side, MarianVocabulary) else range(len(side))
