"""OPUS-MT tokenizers: encode and decode text as the `MarianTokenizer` of transformers does.

A Marian folder has a SentencePiece model for each side, `source.spm` and `target.spm`, and assigns ids to their pieces
in `vocab.json`; with `separate_vocabs` in `tokenizer_config.json`, target pieces get theirs from `target_vocab.json`.
Pieces without an id become `<unk>`, so encoding can lose text. We renumber: control symbols get our ids, and the other
pieces follow in the order of their Marian ids. Like `MarianTokenizer`, this does not normalise punctuation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence, Sized
from typing import Annotated, Any

from pydantic import BaseModel, Field, RootModel

from nmt.system.errors import UserError
from nmt.system.integrity import checked
from nmt.text.vocabulary import BOS, DAMAGED, EOS, PAD, SPACE_MARK, UNK, Vocabulary, read_processor

SPM, VOCAB = ("source.spm", "target.spm"), ("vocab.json", "target_vocab.json")
"""File names for source and target; a joint vocabulary has only the first of `VOCAB`"""
CONFIG = "tokenizer_config.json"

_CONTROL = {"<pad>": PAD, "<unk>": UNK, "</s>": EOS}
_LITERAL = re.compile("(" + "|".join(_CONTROL) + ")")
ABSENT = -1
"""Marian id of a symbol missing from vocab.json"""


class MarianVocabulary(Vocabulary):
    """The pieces of one side, or of both sides if they share ids."""

    UNSEEN = "targets that the tokenizer cannot spell"

    def __init__(self, ids: Mapping[str, int], encoder: Any, decoder: Any) -> None:
        """Renumber the pieces of vocab.json, given as `ids`; `encoder` and `decoder` are SentencePiece processors."""
        controls = [ids.get(symbol, ABSENT) for symbol in ("<pad>", "<unk>", "", "</s>")]
        pieces = sorted((index, piece) for piece, index in ids.items() if piece not in _CONTROL)
        self.origins = [*controls, *(index for index, _ in pieces)]
        """Marian id for each of our ids; `ABSENT` if there is none, as for `<s>`"""
        self._pieces = ["<pad>", "<unk>", "<s>", "</s>", *(piece for _, piece in pieces)]
        self._ids = {piece: index for index, piece in enumerate(self._pieces) if index != BOS}
        self._unknown = frozenset((UNK,))
        self._encoder, self._decoder = encoder, decoder
        self._from_encoder = [self._index(str(encoder.id_to_piece(i))) for i in range(encoder.get_piece_size())]

    def __len__(self) -> int:
        return len(self._pieces)

    def encode(self, text: str) -> list[int]:
        """Encode one line, without `</s>`; a literal `</s>`, `<pad>` or `<unk>` becomes that control symbol."""
        ids: list[int] = []
        for part in filter(None, _LITERAL.split(text)):
            if part in _CONTROL:
                ids.append(_CONTROL[part])
                continue
            if language := self.language(part):
                ids.append(self._index(language))
                part = part.removeprefix(language)
            ids += self._encode_plain(part, self._encoder.encode(part))
        return ids

    def language(self, text: str) -> str:
        """Return the target-language tag at the start of the text, such as >>fra<<; empty if there is none."""
        end = text.find("<<") if text.startswith(">>") else -1
        return text[: end + 2] if end != -1 else ""

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode lines on one thread; thread-safe."""
        rows = self._encoder.encode(list(texts), num_threads=1)
        return [
            self.encode(text) if text.startswith(">>") or _LITERAL.search(text) else self._encode_plain(text, row)
            for text, row in zip(texts, rows, strict=True)
        ]

    def _encode_plain(self, text: str, row: list[int]) -> list[int]:
        """Return the ids of a text without control symbols; `row` holds its SentencePiece ids."""
        if self._encoder.unk_id() in row:  # vocab.json may list pieces that this side's SentencePiece model lacks
            return [self._index(piece) for piece in self._encoder.encode(text, out_type=str)]
        return [self._from_encoder[index] for index in row]

    def decode(self, ids: Sequence[int]) -> str:
        """Decode ids to text, skipping control symbols, including `<unk>`."""
        pieces = [self._pieces[index] for index in ids if index > EOS]
        return str(self._decoder.decode_pieces(pieces)).replace(SPACE_MARK, " ").strip()

    def spellings(self) -> list[str]:
        """Return each piece's text by id, with spaces as U+2581; empty for control symbols."""
        return ["" if index <= EOS else piece for index, piece in enumerate(self._pieces)]

    def _piece(self, index: int) -> str:
        return self._pieces[index]

    def _index(self, piece: str) -> int:
        return self._ids.get(piece, UNK)


def origins_of(side: Sized) -> Sequence[int]:
    """Return the Marian id of each symbol, indexed by our id; the two are equal for our own vocabularies."""
    return side.origins if isinstance(side, MarianVocabulary) else range(len(side))


class _Config(BaseModel):
    """Schema of tokenizer_config.json; other keys are ignored."""

    separate_vocabs: bool = False


class _Ids(RootModel[dict[str, Annotated[int, Field(ge=0, strict=True)]]]):
    """Schema of vocab.json: an id for each piece."""


def read_vocabularies(
    known: Collection[str], read: Callable[[str], tuple[bytes, str]]
) -> tuple[Vocabulary, Vocabulary, dict[str, bytes]]:
    """Read a Marian folder; return its source and target vocabularies, and its files' contents by name.

    `known` lists the folder's file names; `read` returns a file's content and its name for errors. For a folder written
    by `nmt average --format huggingface`, return the original vocabularies and no contents. Raise UserError if a file
    is missing or damaged. Added tokens are ignored; models with embeddings for them cannot be converted.
    """
    separate = CONFIG in known and checked(_Config, *read(CONFIG)).separate_vocabs
    names = [*SPM, *VOCAB[: 1 + separate]]
    files = {name: read(name) for name in names}
    tables = [checked(_Ids, *files[name], DAMAGED).root for name in VOCAB[: 1 + separate]]
    if own := _own(files, tables):
        return *own, {}
    source, target = (read_processor(*files[name]) for name in SPM)
    joined = target if separate else source  # MarianTokenizer decodes a joint vocabulary with the source model
    contents = {name: content for name, (content, _) in files.items()}
    if CONFIG in known:
        contents[CONFIG] = read(CONFIG)[0]
    return MarianVocabulary(tables[0], source, source), MarianVocabulary(tables[-1], target, joined), contents


def _own(
    files: Mapping[str, tuple[bytes, str]], tables: Sequence[Mapping[str, int]]
) -> tuple[Vocabulary, Vocabulary] | None:
    """Return our own vocabularies if both SentencePiece models are ours and agree with vocab.json, else None."""
    try:
        source, target = (Vocabulary(*files[name]) for name in SPM)
    except UserError:
        return None
    for side, table in ((source, tables[0]), (target, tables[-1])):
        if "<0x00>" not in table or {piece: index for index, piece in enumerate(side.listing())} != table:
            return None
    return (source, source) if len(tables) == 1 else (source, target)
