"""A model's tokenizer: its source and target vocabularies, trained here, of another kind, or of an OPUS-MT model.

Characters without an entry use byte fallback, so only Marian vocabularies can lose text that a reader sees. A Marian
folder has a SentencePiece model for each side, `source.spm` and `target.spm`, and assigns ids to their pieces in
`vocab.json`; with `separate_vocabs` in `tokenizer_config.json`, target pieces get theirs from `target_vocab.json`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import Any

from nmt.recipe import TokenizerSettings
from nmt.system.errors import UserError
from nmt.system.files import remedy
from nmt.system.integrity import checked, content, known_files
from nmt.text.added_tokens import (
    CONFIG,
    CONTROLS,
    VOCAB,
    Ids,
    TokenizerConfig,
    m2m_symbols,
    refuse_added_tokens,
    with_all_rows,
)
from nmt.text.marian import M2MVocabulary, MarianVocabulary, is_tag
from nmt.text.new_languages import CONTROL, Added, Additions, with_pieces
from nmt.text.vocabulary import DAMAGED, TargetVocabulary, Vocabulary, read_processor

SHARED, SOURCE = "tokenizer.model", "source.model"
"""File names of a shared vocabulary and of a separate source vocabulary"""
SPM = ("source.spm", "target.spm")
"""File names of a Marian folder's SentencePiece models for source and target"""
M2M, ADDED = "sentencepiece.bpe.model", "added_symbols.json"
"""File names of the SentencePiece model of M2M-100 and NLLB-200, and of our table of further symbols by their ids"""
NEW = "new_languages.json"
"""File name of what `tokenizer.new_languages` added to the tokenizer of the other files"""
Direction = tuple[str | None, str | None]
"""Source and target language; None if not given"""


class Tokenizer:
    """The source and target vocabularies: one object if they share a SentencePiece model or there is only one side."""

    def __init__(self, source: Vocabulary, target: TargetVocabulary, files: Mapping[str, bytes] | None = None) -> None:
        """Combine two vocabularies; for those of a Marian folder, `files` holds its contents by name."""
        self.source = source
        self.target = target
        self._files = dict(files or {})
        self.older: Tokenizer | None = None
        """The tokenizer before `added`"""
        self.added = Added(languages=[], pieces=[])

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
                raise unknown_language(str(language), known)
        return ([known[str(direction[0])]], [known[target]]) if self.forced else ([known[target]], [])

    def complete(self, given: Direction, trained: Sequence[Sequence[str]]) -> Direction:
        """Complete a direction by the directions that the model was `trained` on.

        The target may be missing if they have one, or if users type its symbol; the default source is that of the first
        of them with this target. A model without symbols has those directions alone. Raise UserError, listing the
        languages, if one is unknown or missing.
        """
        (source, to), known = given, self.source.languages
        fits = any(source in (each[0], None) and to in (each[-1], None) for each in trained)
        if (source or to) and not known and not fits:
            problem = f"{'-'.join(filter(None, given))}: this model has no choice of languages"
            raise UserError(problem, f"it translates from {', or from '.join(map(' to '.join, trained))}")
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

    def equals(self, other: Tokenizer) -> bool:
        """Return whether both tokenizers map the same subwords to the same ids, and encode the same languages alike."""
        same = self.source.listing() == other.source.listing() and self.target.listing() == other.target.listing()
        return same and self._additions() == other._additions()

    @classmethod
    def load(cls, directory: Path, target: type[TargetVocabulary] = Vocabulary) -> Tokenizer:
        """Load a directory's `tokenizer.model`, or its `source.model` and the file of a `target` vocabulary.

        If there is a `source.spm`, load a Marian tokenizer. Raise UserError naming a missing or damaged file.
        """
        known = known_files(directory)
        found = cls._load(directory, target, known)
        for added in checked(Additions, *_read(directory / NEW), DAMAGED).root if NEW in known else ():
            found = found.with_languages(added)
        return found

    @classmethod
    def _load(cls, directory: Path, target: type[TargetVocabulary], known: set[str]) -> Tokenizer:
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

        `known` lists the folder's file names. Raise UserError if tokens are added to the vocabularies.
        """
        separate = CONFIG in known and checked(TokenizerConfig, *_read(directory / CONFIG)).separate_vocabs
        names = [*SPM, *VOCAB[: 1 + separate], *({CONFIG} & known)]
        files = {name: content(directory / name) for name in names}
        tables = [checked(Ids, files[name], directory / name, DAMAGED).root for name in VOCAB[: 1 + separate]]
        ids = chain.from_iterable(table.items() for table in tables)
        symbols = {(index, token) for token, index in ids if token in CONTROLS or is_tag(token)}
        refuse_added_tokens(directory, known, symbols)
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
        pieces = _m2m_ids(files, directory)
        if ADDED in files:
            ids = checked(Ids, files[ADDED], directory / ADDED, DAMAGED).root
            symbols = {index: token for token, index in ids.items()}
        else:
            symbols = m2m_symbols(directory, known, len(pieces[0]))
        controls = {index: token for token, index in pieces[0].items() if token in CONTROLS}
        refuse_added_tokens(directory, known, (controls | symbols).items())
        if ADDED not in files:
            symbols = with_all_rows(directory, symbols)
        added = {token: index for index, token in symbols.items()}
        files.setdefault(ADDED, json.dumps(added).encode())
        both = M2MVocabulary(pieces[0], added, pieces[1])
        return cls(both, both, files)

    # --- new languages

    def check_extensible(self, languages: Iterable[str], say: Callable[[str], None]) -> None:
        """Say that `languages` are new, beside known ones with codes like theirs.

        Raise UserError unless they can be added: if there are two vocabularies, or those of OPUS-MT.
        """
        if self.source is not self.target or self.typed or not self.source.languages:
            problem = "tokenizer.new_languages: need a model of several languages with one vocabulary for both sides"
            raise UserError(problem, "start from NLLB-200, M2M-100, or such a model of yours")
        for language in languages:
            near = ", ".join(get_close_matches(language, self.source.languages, cutoff=0.5))
            say(f"tokenizer: {language} is new to this model" + (f", which has {near}" if near else ""))

    def with_languages(self, added: Added) -> Tokenizer:
        """Return a tokenizer with symbols and pieces for new languages, which encodes others as this one does."""
        both, files, where = self.source, dict(self._files), Path(NEW)
        if isinstance(both, M2MVocabulary):
            table, count = checked(Ids, files[ADDED], where).root, len(added.pieces)
            files[M2M] = with_pieces(files[M2M], added.pieces)
            symbols = [f"__{code}__" if VOCAB[0] in files else code for code in added.languages]
            table = {symbol: index + count for symbol, index in table.items()}
            table |= {symbol: index for index, symbol in enumerate(symbols, max(table.values()) + 1)}
            files[ADDED] = json.dumps(table).encode()
            if VOCAB[0] in files:
                ids = checked(Ids, files[VOCAB[0]], where).root
                ids |= {piece: len(ids) + number for number, piece in enumerate(added.pieces)}
                files[VOCAB[0]] = json.dumps(ids, ensure_ascii=False).encode()
            ids, processor = _m2m_ids(files, where)
            both = M2MVocabulary(ids, table, processor, both)
        else:
            model = with_pieces(both.serialized, added.pieces)
            both = Vocabulary(with_pieces(model, (f">>{each}<<" for each in added.languages), CONTROL), NEW)
            both.older = self.source
        found = type(self)(both, both, files)
        found.older, found.added = self, added
        return found

    def of(self, language: str | None) -> Tokenizer:
        """Return the oldest of this tokenizer and those before it that has all that texts of a language need."""
        return self if self.older is None or language in self.added.languages else self.older.of(language)

    def sizes(self) -> list[int]:
        """Return for each symbol the size of the target vocabulary of its language; the own size for all others."""
        of_symbol = {index: len(self.of(code).target) for code, index in self.source.languages.items()}
        return [of_symbol.get(index, len(self.target)) for index in range(len(self.source))]

    def before(self, languages: Sequence[str]) -> Tokenizer:
        """Return the tokenizer to which new `languages` are added, or were added last."""
        return self.older if self.older and self.added.languages == list(languages) else self

    @property
    def new_languages(self) -> list[str]:
        """Languages added to the first tokenizer, oldest first."""
        return [code for added in self._additions() for code in added["languages"]]

    def _additions(self) -> list[dict[str, Any]]:
        return [] if self.older is None else [*self.older._additions(), self.added.model_dump()]

    def files(self) -> dict[str, bytes]:
        """Return the contents of the files that `load` reads, by name."""
        if self.older is None:
            return self.merged_files()
        return self.of(None).files() | {NEW: json.dumps(self._additions(), ensure_ascii=False, indent=1).encode()}

    def merged_files(self) -> dict[str, bytes]:
        """Return the contents of the files of a tokenizer that encodes all languages as it does new ones."""
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
        """Learn subwords from (source, target) pairs.

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


def unknown_language(language: str, known: Collection[str], where: str = "", extensible: bool = False) -> UserError:
    """Return an error about a language that a model lacks; `where` precedes its message.

    The hint says how an `extensible` model gets it, and lists the `known` ones, those like it first.
    """
    hint = f"its languages are {', '.join(known)}"
    stems = {code: code.partition("_")[0].lower() for code in known}
    asked = language.strip("_").partition("_")[0].lower()
    in_other_scripts = [code for code, stem in stems.items() if stem == asked]
    alike = [
        code for code, stem in stems.items() if stem.startswith(asked) or asked.startswith(stem)
    ]  # en, eng, english
    near = in_other_scripts or alike or get_close_matches(language, known, cutoff=0.5)
    if near:
        hint = f"did you mean {' or '.join(near)}? {hint}"
    if extensible:
        hint = f"--set 'tokenizer.new_languages=[{language}]' adds one that is new; {hint}"
    return UserError(f"{where}{language}: this model has no symbol for this language", hint)


def _read(path: Path) -> tuple[bytes, str]:
    """Return a file's content, and its name for errors."""
    return content(path), str(path)


def _m2m_ids(files: Mapping[str, bytes], directory: Path) -> tuple[dict[str, int], Any]:
    """Return the id of each piece of M2M-100 or NLLB-200, and their SentencePiece processor."""
    processor = read_processor(files[M2M], str(directory / M2M))
    if VOCAB[0] in files:
        return checked(Ids, files[VOCAB[0]], directory / VOCAB[0], DAMAGED).root, processor
    pieces = processor.id_to_piece(list(range(3, processor.get_piece_size())))
    return {piece: index for index, piece in enumerate(("<s>", "<pad>", "</s>", "<unk>", *pieces))}, processor


def _own(models: Sequence[tuple[bytes, str]], tables: Sequence[Mapping[str, int]]) -> list[Vocabulary] | None:
    """Return our own vocabularies, one for each table, if both `models` are ours and agree with `tables`, else None."""
    try:
        sides = [Vocabulary(*model) for model in models]
    except UserError:
        return None
    listings = [{piece: index for index, piece in enumerate(side.listing())} for side in sides]
    is_own = listings == [tables[0], tables[-1]] and all("<0x00>" in table for table in tables)
    return sides[: len(tables)] if is_own else None
