"""A model's tokenizer: its source and target vocabularies, trained here, or of OPUS-MT, M2M-100 or NLLB-200.

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
    m2m_symbols,
    read_config,
    refuse_added_tokens,
    with_all_rows,
)
from nmt.text.marian import M2MVocabulary, MarianVocabulary, is_tag
from nmt.text.new_languages import CONTROL, Added, Additions, with_pieces
from nmt.text.vocabulary import DAMAGED, TargetVocabulary, Vocabulary, numbered, read_processor

SHARED = "tokenizer.model"
"""File name of a shared vocabulary"""
SOURCE = "source.model"
"""File name of a separate source vocabulary"""
SPM = ("source.spm", "target.spm")
"""File names of a Marian folder's SentencePiece models for source and target"""
M2M = "sentencepiece.bpe.model"
"""File name of the SentencePiece model of M2M-100 and NLLB-200"""
ADDED = "added_symbols.json"
"""File name of our table of symbols that are no pieces, with their ids, beside such a model"""
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

    def first(self, direction: Direction) -> tuple[list[int], list[int]]:
        """Return the symbols that begin a source and a target of a direction; none without a target language.

        Raise UserError listing the languages if there is no symbol for one of these.
        """
        source, target = direction
        if not self.source.languages or target is None:
            return [], []
        if self.forced:
            return [self._symbol(source)], [self._symbol(target)]
        return [self._symbol(target)], []

    def _symbol(self, language: str | None) -> int:
        known = self.source.languages
        name = str(language)
        if name not in known:
            raise unknown_language(name, known)
        return known[name]

    def complete(self, given: Direction, trained: Sequence[Sequence[str]]) -> Direction:
        """Complete a direction by the directions that the model was `trained` on.

        The target may be missing if they have one, or if users type its symbol; the default source is that of the first
        of them with this target. A model without symbols has those directions alone. Raise UserError, listing the
        languages, if one is unknown or missing.
        """
        source, target = given
        if (source or target) and not self.source.languages:
            _check_trained(source, target, trained)
        target = target or self._only_target(trained)
        source = source or self._usual_source(target, trained)
        self.first((source, target))
        return source, target

    def _only_target(self, trained: Sequence[Sequence[str]]) -> str | None:
        """Return the target language of the directions if they have one; else None if users need not name it.

        Raise UserError, listing the targets, if they must.
        """
        known = self.source.languages
        targets: list[str] = []
        for _, target in trained:
            if target not in targets and (target in known or not known):
                targets.append(target)
        if len(targets) == 1:
            return targets[0]
        if known and not self.typed:
            problem = f"this model translates to several languages: {', '.join(targets or known)}"
            raise UserError(problem, "name one: nmt translate --to CODE, or translate(lines, to=CODE)")
        return None

    def _usual_source(self, target: str | None, trained: Sequence[Sequence[str]]) -> str | None:
        """Return the source of the first direction with this target or, without one, of the first of all.

        Raise UserError if sources begin with a symbol, and this language has none.
        """
        sources = [each for each, of in trained if of == target] or [each for each, _ in trained]
        source = sources[0] if sources else None
        if self.forced and source not in self.source.languages:
            problem = f"this model translates from several languages: {', '.join(self.source.languages)}"
            raise UserError(problem, "name one: nmt translate --from CODE, or translate(lines, source=CODE)")
        return source

    def equals(self, other: Tokenizer) -> bool:
        """Return whether both tokenizers have the same subwords with the same ids, and got the same new languages."""
        is_same_source = self.source.listing() == other.source.listing()
        is_same_target = self.target.listing() == other.target.listing()
        return is_same_source and is_same_target and self._additions() == other._additions()

    @classmethod
    def load(cls, directory: Path, target: type[TargetVocabulary] = Vocabulary) -> Tokenizer:
        """Load a directory's `tokenizer.model`, or its `source.model` and the file of a `target` vocabulary.

        If there is a `source.spm`, load a Marian tokenizer. Raise UserError naming a missing or damaged file.
        """
        known = known_files(directory)
        found = cls._load(directory, target, known)
        if NEW in known:
            additions = checked(Additions, *_read(directory / NEW), DAMAGED).root
            for added in additions:
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
        separate = read_config(directory, known).separate_vocabs
        names = VOCAB if separate else VOCAB[:1]
        files = {name: content(directory / name) for name in (*SPM, *names)}
        if CONFIG in known:
            files[CONFIG] = content(directory / CONFIG)
        symbols: set[tuple[int, str]] = set()
        for name in names:
            for token, index in _table(files, name, directory).items():
                if token in CONTROLS or is_tag(token):
                    symbols.add((index, token))
        refuse_added_tokens(directory, known, symbols)
        return cls.of_marian(files, directory)

    @classmethod
    def of_marian(cls, files: Mapping[str, bytes], directory: Path) -> Tokenizer:
        """Return the tokenizer of a Marian folder with these `files`; errors cite them as files of `directory`."""
        separate = VOCAB[1] in files
        tables = [_table(files, name, directory) for name in VOCAB[: 1 + separate]]
        models = [(files[name], str(directory / name)) for name in SPM]
        own = _own(models, tables)
        if own:
            return cls(own[0], own[-1])
        source = read_processor(*models[0])
        target = read_processor(*models[1])
        decoder = target if separate else source  # MarianTokenizer decodes a joint vocabulary with the source model
        return cls(MarianVocabulary(tables[0], source, source), MarianVocabulary(tables[-1], target, decoder), files)

    @classmethod
    def _load_m2m(cls, directory: Path, known: set[str]) -> Tokenizer:
        """Load the tokenizer of M2M-100, whose pieces have their ids in vocab.json, or of NLLB-200, which has none.

        Symbols of languages follow the pieces; rows of the embeddings that are left get symbols such as <256206>.
        """
        files = {name: content(directory / name) for name in sorted({M2M, VOCAB[0], ADDED} & known)}
        ids, processor = _m2m_ids(files, directory)
        if ADDED in files:
            table = _table(files, ADDED, directory)
            symbols = {index: symbol for symbol, index in table.items()}
        else:
            symbols = m2m_symbols(directory, known, len(ids))
        controls = {index: token for token, index in ids.items() if token in CONTROLS}
        refuse_added_tokens(directory, known, (controls | symbols).items())
        if ADDED not in files:
            symbols = with_all_rows(directory, symbols)
        added = {symbol: index for index, symbol in symbols.items()}
        files.setdefault(ADDED, json.dumps(added).encode())
        both = M2MVocabulary(ids, added, processor)
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
            message = f"tokenizer: {language} is new to this model"
            near = get_close_matches(language, self.source.languages, cutoff=0.5)
            if near:
                message += f"; codes most like it: {', '.join(near)}"
            say(message)

    def with_languages(self, added: Added) -> Tokenizer:
        """Return a tokenizer with symbols and pieces for new languages, which encodes others as this one does."""
        older = self.source
        files = dict(self._files)
        if isinstance(older, M2MVocabulary):
            _extend_m2m(files, added)
            ids, processor = _m2m_ids(files, Path(NEW))
            both: Vocabulary = M2MVocabulary(ids, _table(files, ADDED, Path(NEW)), processor, older)
        else:
            symbols = [f">>{language}<<" for language in added.languages]
            model = with_pieces(older.serialized, added.pieces)
            both = Vocabulary(with_pieces(model, symbols, CONTROL), NEW)
            both.older = older
        found = type(self)(both, both, files)
        found.older = self
        found.added = added
        return found

    def of(self, language: str | None) -> Tokenizer:
        """Return the oldest of this tokenizer and those before it that has the symbol and the pieces of a language.

        For None, that is the one before all additions.
        """
        if self.older is None or language in self.added.languages:
            return self
        return self.older.of(language)

    def sizes(self) -> list[int]:
        """Return by id the size of the target vocabulary of a symbol's language; of other subwords, the full size."""
        sizes = [len(self.target)] * len(self.source)
        for language, symbol in self.source.languages.items():
            sizes[symbol] = len(self.of(language).target)
        return sizes

    def before(self, languages: Sequence[str]) -> Tokenizer:
        """Return the tokenizer without new `languages`: this one, or that before if they are what was added last."""
        if self.older and self.added.languages == list(languages):
            return self.older
        return self

    @property
    def new_languages(self) -> list[str]:
        """Languages added to the first tokenizer, oldest first."""
        if self.older is None:
            return []
        return [*self.older.new_languages, *self.added.languages]

    def _additions(self) -> list[dict[str, Any]]:
        if self.older is None:
            return []
        return [*self.older._additions(), self.added.model_dump()]

    def files(self) -> dict[str, bytes]:
        """Return the contents of the files that `load` reads, by name."""
        if self.older is None:
            return self.merged_files()
        return self.of(None).files() | {NEW: json.dumps(self._additions(), ensure_ascii=False, indent=1).encode()}

    def merged_files(self) -> dict[str, bytes]:
        """Return the contents of files of one tokenizer without a history, which encodes all languages as new ones."""
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

        The source vocabulary gets symbols for the target `languages`. `target` builds a target vocabulary of another
        kind from its texts. `pairs` is read once per vocabulary, so it must not be an iterator. `say` receives progress
        messages. At most `threads` cores are used, which does not affect the result. Raise UserError naming
        `tokenizer.vocab_size` if the text has too few subwords to fill it, or needs more.
        """
        if settings.shared:
            both = Vocabulary.train("all text", chain.from_iterable(pairs), settings, say, threads, languages)
            return cls(both, both)
        of_source = Vocabulary.train("source", (source for source, _ in pairs), settings, say, threads, languages)
        targets = (text for _, text in pairs)
        if target:
            return cls(of_source, target(targets))
        return cls(of_source, Vocabulary.train("target", targets, settings, say, threads))


def unknown_language(language: str, known: Collection[str], where: str = "", extensible: bool = False) -> UserError:
    """Return an error about a language that a model lacks; `where` precedes its message.

    The hint says how an `extensible` model gets it, and lists the `known` ones, those like it first.
    """
    hint = f"its languages are {', '.join(known)}"
    asked = _without_script(language.strip("_"))
    in_other_scripts = []
    alike = []  # en, eng, english
    for code in dict.fromkeys(known):
        name = _without_script(code)
        if name == asked:
            in_other_scripts.append(code)
        elif name.startswith(asked) or asked.startswith(name):
            alike.append(code)
    near = in_other_scripts or alike or get_close_matches(language, known, cutoff=0.5)
    if near:
        hint = f"did you mean {' or '.join(near)}? {hint}"
    if extensible:
        hint = f"--set 'tokenizer.new_languages=[{language}]' adds one that is new; {hint}"
    return UserError(f"{where}{language}: this model has no symbol for this language", hint)


def _without_script(code: str) -> str:
    return code.partition("_")[0].lower()


def _read(path: Path) -> tuple[bytes, str]:
    """Return a file's content, and its name for errors."""
    return content(path), str(path)


def _m2m_ids(files: Mapping[str, bytes], directory: Path) -> tuple[dict[str, int], Any]:
    """Return the id of each piece of M2M-100 or NLLB-200, and their SentencePiece processor."""
    processor = read_processor(files[M2M], str(directory / M2M))
    if VOCAB[0] in files:
        return _table(files, VOCAB[0], directory), processor
    pieces = processor.id_to_piece(list(range(3, processor.get_piece_size())))  # behind its own control symbols
    return numbered([*CONTROLS, *pieces]), processor


def _extend_m2m(files: dict[str, bytes], added: Added) -> None:
    """Add new languages to the `files` of a tokenizer of M2M-100 or NLLB-200: pieces, and symbols behind all pieces."""
    files[M2M] = with_pieces(files[M2M], added.pieces)
    symbols = added.languages
    if VOCAB[0] in files:
        symbols = [f"__{language}__" for language in symbols]
        ids = _table(files, VOCAB[0], Path(NEW))
        ids |= numbered(added.pieces, len(ids))
        files[VOCAB[0]] = json.dumps(ids, ensure_ascii=False).encode()
    older = _table(files, ADDED, Path(NEW))
    table = {symbol: index + len(added.pieces) for symbol, index in older.items()}
    table |= numbered(symbols, max(table.values()) + 1)
    files[ADDED] = json.dumps(table).encode()


def _table(files: Mapping[str, bytes], name: str, directory: Path) -> dict[str, int]:
    """Return the ids in one of `files`; raise UserError, citing its path, if it is damaged."""
    return checked(Ids, files[name], directory / name, DAMAGED).root


def _check_trained(source: str | None, target: str | None, trained: Sequence[Sequence[str]]) -> None:
    """Raise UserError, listing the directions, if none has this source and this target, which may be None."""
    for trained_source, trained_target in trained:
        if source in (trained_source, None) and target in (trained_target, None):
            return
    names = "-".join(filter(None, (source, target)))
    choices = ", or from ".join(map(" to ".join, trained))
    raise UserError(f"{names}: this model has no choice of languages", f"it translates from {choices}")


def _own(models: Sequence[tuple[bytes, str]], tables: Sequence[Mapping[str, int]]) -> list[Vocabulary] | None:
    """Return vocabularies trained here, one for each table; None unless `models` are ours and agree with `tables`."""
    try:
        sides = [Vocabulary(*model) for model in models]
    except UserError:
        return None
    for side, table in zip(sides, (tables[0], tables[-1]), strict=True):
        if numbered(side.listing()) != table or "<0x00>" not in table:  # only ours have byte fallback
            return None
    return sides[: len(tables)]
