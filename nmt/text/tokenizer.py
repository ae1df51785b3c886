"""A model's tokenizer: its source and target vocabularies, trained here, of another kind, or of an OPUS-MT model.

Text is not normalised, and characters without an entry use byte fallback, so only Marian vocabularies can lose text.
They encode and decode text as the `MarianTokenizer` of transformers does, which does not normalise punctuation. A
Marian folder has a SentencePiece model for each side, `source.spm` and `target.spm`, and assigns ids to their pieces in
`vocab.json`; with `separate_vocabs` in `tokenizer_config.json`, target pieces get theirs from `target_vocab.json`.
Pieces without an id become `<unk>`. We renumber: control symbols get our ids, and the other pieces follow in the order
of their Marian ids.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, RootModel

from nmt.recipe import TokenizerSettings
from nmt.system.errors import UserError
from nmt.system.files import remedy
from nmt.system.integrity import checked, content, known_files
from nmt.text.vocabulary import BOS, DAMAGED, EOS, PAD, SPACE_MARK, UNK, TargetVocabulary, Vocabulary, read_processor

SHARED, SOURCE = "tokenizer.model", "source.model"
"""File names of a shared vocabulary and of a separate source vocabulary"""
SPM, VOCAB = ("source.spm", "target.spm"), ("vocab.json", "target_vocab.json")
"""File names of a Marian folder for source and target; a joint vocabulary has only the first of `VOCAB`"""
CONFIG = "tokenizer_config.json"
M2M, ADDED = "sentencepiece.bpe.model", "added_symbols.json"
"""File names of the SentencePiece model of M2M-100 and NLLB-200, and of our table of further symbols by their ids"""
LANGUAGES = tomllib.loads(Path(__file__).with_name("m2m_languages.toml").read_text(encoding="utf-8"))

Direction = tuple[str | None, str | None]
"""Source and target language; None if not given"""
_CONTROL = {"<pad>": PAD, "<unk>": UNK, "</s>": EOS}
_LITERAL = re.compile("(" + "|".join(_CONTROL) + ")")
NO_ID = -1
"""Marian id of a symbol missing from vocab.json"""


class MarianVocabulary(Vocabulary):
    """The pieces of one side, or of both sides if they share ids."""

    UNSEEN = "targets that the tokenizer cannot spell"

    def __init__(self, ids: Mapping[str, int], encoder: Any, decoder: Any) -> None:
        """Renumber the pieces of vocab.json, given as `ids`; `encoder` and `decoder` are SentencePiece processors."""
        controls = [ids.get(symbol, NO_ID) for symbol in ("<pad>", "<unk>", "", "</s>")]
        pieces = sorted((index, piece) for piece, index in ids.items() if piece not in _CONTROL)
        self.origins = [*controls, *(index for index, _ in pieces)]
        """Marian id for each of our ids; `NO_ID` if there is none, as for `<s>`"""
        self._symbols = ["<pad>", "<unk>", "<s>", "</s>", *(piece for _, piece in pieces)]
        self._ids = {piece: index for index, piece in enumerate(self._symbols) if index != BOS}
        tags = (piece for piece in self._ids if piece.startswith(">>") and piece.endswith("<<"))
        self.languages = {tag[2:-2]: self._ids[tag] for tag in tags}
        self._unknown = frozenset((UNK,))
        self._encoder, self._decoder = encoder, decoder
        self._from_encoder = [self._ids.get(encoder.id_to_piece(i), UNK) for i in range(encoder.get_piece_size())]

    def encode(self, text: str) -> list[int]:
        """Encode one line, without `</s>`; a literal `</s>`, `<pad>` or `<unk>` becomes that control symbol."""
        ids: list[int] = []
        for part in filter(None, _LITERAL.split(text)):
            if part in _CONTROL:
                ids.append(_CONTROL[part])
                continue
            if language := self.language(part):
                ids.append(self._ids.get(language, UNK))
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
            return [self._ids.get(piece, UNK) for piece in self._encoder.encode(text, out_type=str)]
        return [self._from_encoder[index] for index in row]

    def decode(self, ids: Sequence[int]) -> str:
        """Decode ids to text, skipping control symbols, including `<unk>`."""
        pieces = [self._symbols[index] for index in ids if index > EOS]
        return str(self._decoder.decode_pieces(pieces)).replace(SPACE_MARK, " ").strip()

    def spellings(self) -> list[str]:
        """Return each piece's text by id, with spaces as U+2581; empty for control symbols."""
        return ["" if index <= EOS else piece for index, piece in enumerate(self._symbols)]


class M2MVocabulary(MarianVocabulary):
    """The pieces of M2M-100 or NLLB-200, whose sources and targets begin with symbols of languages."""

    def __init__(self, ids: Mapping[str, int], added: Mapping[str, int], processor: Any) -> None:
        """Renumber the pieces `ids` of a SentencePiece model and the symbols `added` to them, which have no text."""
        own = {f"<{index}>" if piece == "<s>" else piece: index for piece, index in ids.items()}  # `<s>` is ours
        super().__init__({**own, **added}, processor, processor)
        self._textless = {self._ids[symbol] for symbol in ("<0>", *added)}
        self.added = {symbol: index for symbol, index in added.items() if not re.fullmatch("<[0-9]+>", symbol)}
        """Ids in the model of transformers of the symbols that have names"""
        self.languages = {symbol.strip("_"): self._ids[symbol] for symbol in added if not symbol.startswith("<")}

    def encode(self, text: str) -> list[int]:
        """Encode one line, without `</s>` and symbols of languages, which cannot be typed."""
        return self._encode_plain(text, self._encoder.encode(text))

    def language(self, text: str) -> str:
        """Return an empty string: languages are not typed."""
        return ""

    def decode(self, ids: Sequence[int]) -> str:
        """Decode ids to text, skipping all symbols that are no pieces."""
        return super().decode([index for index in ids if index not in self._textless])

    def spellings(self) -> list[str]:
        """Return each piece's text by id, with spaces as U+2581; empty for other symbols."""
        return ["" if index in self._textless else text for index, text in enumerate(super().spellings())]


def origins_of(side: Sized) -> Sequence[int]:
    """Return the Marian id of each symbol, indexed by our id; the two are equal for our own vocabularies."""
    return side.origins if isinstance(side, MarianVocabulary) else range(len(side))


class _AddedToken(BaseModel):
    """Schema of a token added to a vocabulary; other keys are ignored."""

    content: str


class _Config(BaseModel):
    """Schema of tokenizer_config.json; other keys are ignored."""

    separate_vocabs: bool = False
    added_tokens_decoder: dict[Annotated[int, Field(ge=0, lt=10_000_000)], _AddedToken] = {}


class _ModelSize(BaseModel):
    """Schema of the config.json of transformers; other keys are ignored."""

    vocab_size: int = Field(ge=0, le=10_000_000, strict=True)


class _Ids(RootModel[dict[str, Annotated[int, Field(ge=0, strict=True)]]]):
    """Schema of vocab.json: an id for each piece."""


class Tokenizer:
    """The source and target vocabularies: one object if they share a SentencePiece model or there is only one side."""

    def __init__(self, source: Vocabulary, target: TargetVocabulary, files: Mapping[str, bytes] | None = None) -> None:
        """Combine two vocabularies; for those of a Marian folder, `files` holds its contents by name."""
        self.source = source
        self.target = target
        self._files = dict(files or {})

    @property
    def shared(self) -> bool:
        """Whether both sides use the same ids."""
        return self.source is self.target or (self.lossy and VOCAB[1] not in self._files)

    @property
    def lossy(self) -> bool:
        """Whether encoding can lose text, as with Marian tokenizers."""
        return bool(self._files)

    @property
    def typed(self) -> bool:
        """Whether users type the symbol of the target language before a text, as for OPUS-MT's models."""
        return isinstance(self.source, MarianVocabulary) and not self.forced

    @property
    def forced(self) -> bool:
        """Whether sources begin with the symbol of their own language, and targets with that of theirs."""
        return isinstance(self.source, M2MVocabulary)

    def first(self, direction: Sequence[str | None]) -> tuple[list[int], list[int]]:
        """Return the symbols that begin a source and a target of a direction; none without a target language.

        Raise UserError listing the languages if there is no symbol for one of these.
        """
        known, (*_, target) = self.source.languages, (None, *direction)
        if not known or target is None:
            return [], []
        for language in (direction[0], target) if self.forced else (target,):
            if language not in known:
                problem = f"{language}: this model has no symbol for this language"
                raise UserError(problem, f"its languages are {', '.join(known)}")
        return ([known[str(direction[0])]], [known[target]]) if self.forced else ([known[target]], [])

    def complete(self, given: Direction, trained: Sequence[Sequence[str]]) -> Direction:
        """Complete a direction by the directions that the model was `trained` on.

        The target may be missing if they have one, or if users type its symbol; the default source is that of the first
        of them with this target. Raise UserError, listing the languages, if one is unknown or missing.
        """
        (source, to), known = given, self.source.languages
        if not known and (source or to):
            problem = f"{to or source}: this model has no choice of languages"
            raise UserError(problem, f"it translates from {' to '.join(trained[0])}")
        targets = list(dict.fromkeys(target for *_, target in trained if target in known or not known))
        if known and not to and len(targets) != 1 and not self.typed:
            problem = f"this model translates to several languages: {', '.join(targets or known)}"
            raise UserError(problem, "name one: nmt translate --to CODE, or translate(lines, to=CODE)")
        to = to or (targets[0] if len(targets) == 1 else None)
        usual = [each[0] for each in trained if each[-1] == to] or [each[0] for each in trained]
        if self.forced and not source and usual[0] not in known:
            problem = f"this model translates from several languages: {', '.join(known)}"
            raise UserError(problem, "name one: nmt translate --from CODE, or translate(lines, source=CODE)")
        direction = source or next(iter(usual), None), to
        self.first(direction)
        return direction

    def starts(self) -> tuple[list[bool], list[bool]]:
        """Return a list for source and for target: whether each symbol, by id, begins a word."""
        return self.source.starts(), self.target.starts()

    def equals(self, other: Tokenizer) -> bool:
        """Return whether both tokenizers map the same subwords to the same ids."""
        return self.source.listing() == other.source.listing() and self.target.listing() == other.target.listing()

    @classmethod
    def load(cls, directory: Path, target: type[TargetVocabulary] = Vocabulary) -> Tokenizer:
        """Load a directory's `tokenizer.model`, or its `source.model` and the file of a `target` vocabulary.

        If there is a `source.spm`, load a Marian tokenizer. Raise UserError naming a missing or damaged file.
        """

        known = known_files(directory)
        if SPM[0] in known:
            return cls._load_marian(directory, known)
        if M2M in known:
            return cls._load_m2m(directory, known)
        if SHARED in known and target is Vocabulary:
            both = Vocabulary(*_read(directory / SHARED))
            return cls(both, both)
        if known.isdisjoint((SOURCE, target.FILE)):
            problem = f"{directory}: holds neither {SHARED} nor {SOURCE} and {target.FILE}"
            raise UserError(problem, remedy(directory / SHARED))
        return cls(Vocabulary(*_read(directory / SOURCE)), target(*_read(directory / target.FILE)))

    @classmethod
    def _load_marian(cls, directory: Path, known: set[str]) -> Tokenizer:
        """Load a Marian folder, or the vocabularies that `nmt average --format huggingface` has written as one.

        `known` lists the folder's file names. Added tokens are ignored; models with embeddings for them cannot be
        converted.
        """
        separate = CONFIG in known and checked(_Config, *_read(directory / CONFIG)).separate_vocabs
        names = [*SPM, *VOCAB[: 1 + separate], *({CONFIG} & known)]
        files = {name: content(directory / name) for name in names}
        tables = [checked(_Ids, files[name], directory / name, DAMAGED).root for name in VOCAB[: 1 + separate]]
        models = [(files[name], str(directory / name)) for name in SPM]
        if own := _own(models, tables):
            return cls(own[0], own[-1])
        source, target = (read_processor(*model) for model in models)
        joined = target if separate else source  # MarianTokenizer decodes a joint vocabulary with the source model
        return cls(MarianVocabulary(tables[0], source, source), MarianVocabulary(tables[-1], target, joined), files)

    @classmethod
    def _load_m2m(cls, directory: Path, known: set[str]) -> Tokenizer:
        """Load the tokenizer of M2M-100, whose pieces have their ids in vocab.json, or of NLLB-200, which has none.

        Symbols of languages follow the pieces, and symbols without a name fill the matrix of embeddings.
        """
        files = {name: content(directory / name) for name in sorted({M2M, VOCAB[0], ADDED} & known)}
        processor = read_processor(files[M2M], str(directory / M2M))
        if VOCAB[0] in files:
            ids = checked(_Ids, files[VOCAB[0]], directory / VOCAB[0], DAMAGED).root
            symbols = [f"__{code}__" for code in LANGUAGES["m2m_100"].split()]
        else:
            pieces = processor.id_to_piece(list(range(3, processor.get_piece_size())))
            ids = {piece: index for index, piece in enumerate(("<s>", "<pad>", "</s>", "<unk>", *pieces))}
            symbols = [*LANGUAGES["nllb"].split(), "<mask>"]
        if ADDED not in files:
            size = checked(_ModelSize, *_read(directory / "config.json")).vocab_size
            names = dict(enumerate(symbols, len(ids)))
            if CONFIG in known:
                tokens = checked(_Config, *_read(directory / CONFIG)).added_tokens_decoder
                names |= {index: token.content for index, token in tokens.items()}
            table = {names.get(index, f"<{index}>"): index for index in range(len(ids), size)}
            files[ADDED] = json.dumps(table).encode()
        added = checked(_Ids, files[ADDED], directory / ADDED, DAMAGED).root
        both = M2MVocabulary(ids, added, processor)
        return cls(both, both, files)

    def files(self) -> dict[str, bytes]:
        """Return the contents of the files that `load` reads, by name."""
        if self._files:
            return self._files
        if self.shared:
            return {SHARED: self.source.serialized}
        return {SOURCE: self.source.serialized, self.target.FILE: self.target.serialized}

    @classmethod
    def train(
        cls,
        pairs: Iterable[tuple[str, ...]],
        settings: TokenizerSettings,
        say: Callable[[str], None] = lambda line: None,
        target: Callable[[Iterator[str]], TargetVocabulary] | None = None,
        threads: int | None = None,
        languages: Sequence[str] = (),
    ) -> Tokenizer:
        """Learn subwords from (source, target) pairs, or from (target,) tuples if the vocabulary is shared.

        Sources get symbols for the target `languages`.
        `target` builds a target vocabulary of another kind from its texts. `pairs` is read once per vocabulary, so
        it must not be an iterator. `say` receives progress messages. At most `threads` cores are used, which does not
        affect the result. Raise UserError naming `tokenizer.vocab_size` if the text has too few subwords to fill it, or
        needs more.
        """
        if settings.shared:
            texts = (text for pair in pairs for text in pair)
            both = Vocabulary.train("all text", texts, settings, say, threads, languages)
            return cls(both, both)
        source = Vocabulary.train("source", (source for source, _ in pairs), settings, say, threads, languages)
        targets = (text for _, text in pairs)
        return cls(source, target(targets) if target else Vocabulary.train("target", targets, settings, say, threads))


def _read(path: Path) -> tuple[bytes, str]:
    """Return a file's content, and its name for errors."""
    return content(path), str(path)


def _own(models: Sequence[tuple[bytes, str]], tables: Sequence[Mapping[str, int]]) -> list[Vocabulary] | None:
    """Return our own vocabularies, one for each table, if both `models` are ours and agree with `tables`, else None."""
    try:
        sides = [Vocabulary(*model) for model in models]
    except UserError:
        return None
    listings = [{piece: index for index, piece in enumerate(side.listing())} for side in sides]
    is_own = listings == [tables[0], tables[-1]] and all("<0x00>" in table for table in tables)
    return sides[: len(tables)] if is_own else None
