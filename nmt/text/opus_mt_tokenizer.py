"""The tokenizers of OPUS-MT's models: text to the ids that `MarianTokenizer` of transformers gives it, and back.

A folder has a SentencePiece model for each side, `source.spm` and `target.spm`, whose pieces have other ids in
`vocab.json`; with `separate_vocabs` in `tokenizer_config.json`, those of the target are in `target_vocab.json`. Pieces
without an id become `<unk>`, so text can be lost. Here the control symbols have our ids, and the other pieces follow in
their order. `MarianTokenizer` has a normaliser of punctuation that it does not call, and so has nothing of it here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Sized
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, RootModel

from nmt.system.errors import UserError
from nmt.system.integrity import checked
from nmt.text.vocabulary import BOS, DAMAGED, EOS, PAD, SPACE_MARK, UNK, Vocabulary, read_processor

SPM, VOCAB = ("source.spm", "target.spm"), ("vocab.json", "target_vocab.json")
"""Names of the files of source and target; with one vocabulary for both sides it is in the first of `VOCAB`."""
CONFIG = "tokenizer_config.json"

_CONTROL = {"<pad>": PAD, "<unk>": UNK, "</s>": EOS}
_LITERAL = re.compile("(" + "|".join(_CONTROL) + ")")
ABSENT = -1
"""The origin of a symbol that vocab.json lacks."""


class MarianVocabulary(Vocabulary):
    """The pieces of one side, or of both if they share the ids."""

    UNSEEN = "targets that the tokenizer cannot spell"
    LOSSY = True

    def __init__(self, ids: Mapping[str, int], encoder: Any, decoder: Any) -> None:
        """Order the pieces by their `ids` in vocab.json; `encoder` and `decoder` are SentencePiece processors."""
        controls = [ids.get(symbol, ABSENT) for symbol in ("<pad>", "<unk>", "", "</s>")]
        pieces = sorted((index, piece) for piece, index in ids.items() if piece not in _CONTROL)
        self.origins = [*controls, *(index for index, _ in pieces)]
        """For each of our ids that of vocab.json; `ABSENT` for `<s>`, which Marian's models have no use for."""
        self._pieces = ["<pad>", "<unk>", "<s>", "</s>", *(piece for _, piece in pieces)]
        self._ids = {piece: index for index, piece in enumerate(self._pieces) if index != BOS}
        self._encoder, self._decoder = encoder, decoder
        self._from_encoder = [self._index(str(encoder.id_to_piece(i))) for i in range(encoder.get_piece_size())]

    def __len__(self) -> int:
        return len(self._pieces)

    def encode(self, text: str) -> list[int]:
        """Encode one line, without `</s>`; a literal `</s>`, `<pad>` or `<unk>` is that symbol."""
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
        """Return a beginning such as >>fra<<, by which a text asks a model for a language; it is empty without one."""
        end = text.find("<<") if text.startswith(">>") else -1
        return text[: end + 2] if end != -1 else ""

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode many lines on one thread; other threads may call this at the same time."""
        rows = self._encoder.encode(list(texts), num_threads=1) if texts else []
        return [
            self.encode(text) if text.startswith(">>") or _LITERAL.search(text) else self._encode_plain(text, row)
            for text, row in zip(texts, rows, strict=True)
        ]

    def _encode_plain(self, text: str, row: list[int]) -> list[int]:
        """Return the ids of a text without control symbols, of whose pieces `row` has SentencePiece's own ids."""
        if self._encoder.unk_id() in row:  # vocab.json may have what this side's SentencePiece does not know
            return [self._index(piece) for piece in self._encoder.encode(text, out_type=str)]
        return [self._from_encoder[index] for index in row]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, without control symbols and unknown pieces."""
        pieces = [self._pieces[index] for index in ids if index > EOS]
        return str(self._decoder.decode_pieces(pieces)).replace(SPACE_MARK, " ").strip()

    def spellings(self) -> list[str]:
        """Return what each piece spells, by id, a space as U+2581; nothing for control symbols."""
        return ["" if index <= EOS else piece for index, piece in enumerate(self._pieces)]

    def count_unknown(self, ids: Iterable[int]) -> int:
        """Count the pieces that have no id: characters, or several in a row, that are lost."""
        return sum(index == UNK for index in ids)

    def _piece(self, index: int) -> str:
        return self._pieces[index]

    def _index(self, piece: str) -> int:
        return self._ids.get(piece, UNK)


def origins_of(side: Sized) -> Sequence[int]:
    """Return the ids that a Marian folder gives the symbols of a vocabulary, by ours; our own have the same there."""
    return side.origins if isinstance(side, MarianVocabulary) else range(len(side))


class _Config(BaseModel):
    """What is read of tokenizer_config.json."""

    separate_vocabs: bool = False


class _Ids(RootModel[dict[str, Annotated[int, Field(ge=0)]]]):
    """A vocab.json: pieces and their ids."""

    model_config = ConfigDict(strict=True)


def read_vocabularies(
    known: Collection[str], read: Callable[[str], tuple[bytes, str]]
) -> tuple[Vocabulary, Vocabulary, dict[str, bytes]]:
    """Read the vocabularies of source and target, and the contents of their files by name, from a Marian folder.

    `known` are the names of the folder's files, and `read` gives the content of one and what errors call it. A folder
    whose SentencePiece models are our own, as `nmt average --format huggingface` writes it, has our own vocabularies
    and no other files. Raises UserError if a file is missing or damaged. Tokens that were added to the pieces are not
    read; a model that has rows for them does not fit.
    """
    separate = CONFIG in known and checked(_Config, *read(CONFIG)).separate_vocabs
    names = [*SPM, *VOCAB[: 1 + separate]]
    files = {name: read(name) for name in names}
    tables = [checked(_Ids, *files[name], DAMAGED).root for name in VOCAB[: 1 + separate]]
    if own := _own(files, tables):
        return *own, {}
    source, target = (read_processor(*files[name]) for name in SPM)
    joined = target if separate else source  # with one vocabulary, MarianTokenizer decodes by that of the source
    contents = {name: content for name, (content, _) in files.items()}
    if CONFIG in known:
        contents[CONFIG] = read(CONFIG)[0]
    return MarianVocabulary(tables[0], source, source), MarianVocabulary(tables[-1], target, joined), contents


def _own(
    files: Mapping[str, tuple[bytes, str]], tables: Sequence[Mapping[str, int]]
) -> tuple[Vocabulary, Vocabulary] | None:
    """Return the vocabularies of SentencePiece models that are our own, with the same ids in vocab.json, else None."""
    try:
        source, target = (Vocabulary(*files[name]) for name in SPM)
    except UserError:
        return None
    for side, table in ((source, tables[0]), (target, tables[-1])):
        if "<0x00>" not in table or {piece: index for index, piece in enumerate(side.listing())} != table:
            return None
    return (source, source) if len(tables) == 1 else (source, target)
