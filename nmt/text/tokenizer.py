"""Text to subword ids and back, by SentencePiece; every string survives the round trip.

Text is not normalised, and characters without an entry are spelled in bytes, so nothing is unknown and nothing is lost.
The target of a parser has the symbols of trees instead. `</s>` and `<s>` are added where batches are made.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from random import Random

import sentencepiece

from nmt.errors import UserError
from nmt.files import remedy
from nmt.integrity import content, known_files
from nmt.recipe import TokenizerSettings
from nmt.text.linear import DAMAGED, TreeVocabulary
from nmt.text.symbols import BOS, EOS, PAD, UNK
from nmt.text.terms import joins

SHARED, SOURCE = "tokenizer.model", "source.model"
"""Names of the files that hold the vocabulary of both sides, or that of the source alone."""
THREADS = 16
"""Threads of SentencePiece on any machine: its file records the number, and the sums for unigrams depend on it."""

# SentencePiece writes a space as U+2581 and would turn a real U+2581 into a space. A noncharacter, which Unicode
# reserves for internal use, replaces it.
_SPACE_MARK, _STAND_IN = "\u2581", "\ufdd0"


class Vocabulary:
    """One SentencePiece model: the subwords of one side, or of both if they share it."""

    FILE = "target.model"
    """Name of the file that holds the vocabulary of a target alone."""
    UNSEEN = ""
    """No text has symbols that are not in the vocabulary: bytes spell every character."""

    def __init__(self, serialized: bytes, name: str) -> None:
        """`name` is what errors call it. Raises UserError if the bytes are no SentencePiece model of ours."""
        self.serialized = serialized
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.load_from_serialized_proto(serialized)
        except (RuntimeError, TypeError, ValueError):
            raise UserError(f"{name}: is not a SentencePiece model", DAMAGED) from None
        sp = self._processor
        if (sp.pad_id(), sp.unk_id(), sp.bos_id(), sp.eos_id()) != (PAD, UNK, BOS, EOS):
            raise UserError(f"{name}: its control symbols do not have the ids {PAD} to {EOS}", DAMAGED)
        lead_bytes = (f"<0x{byte:02X}>" for byte in (*range(0x80), *range(0xC0, 0x100)))  # one for each character
        self._unknown = frozenset((UNK, *map(sp.piece_to_id, lead_bytes)))

    def __len__(self) -> int:
        return int(self._processor.get_piece_size())

    def encode(self, text: str) -> list[int]:
        """Encode one line, without `</s>`."""
        return list(self._processor.encode(text.replace(_SPACE_MARK, _STAND_IN)))

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode many lines on one thread; other threads may call this at the same time."""
        lines = [text.replace(_SPACE_MARK, _STAND_IN) for text in texts]
        return (
            list(self._processor.encode(lines, num_threads=1)) if lines else []
        )  # it starts a thread even for no line

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, without control symbols."""
        return str(self._processor.decode([int(i) for i in ids if i > EOS])).replace(_STAND_IN, _SPACE_MARK)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Return the subwords of ids; the first subword of a word begins with U+2581."""
        return [str(self._processor.id_to_piece(int(i))) for i in ids]

    def listing(self) -> list[str]:
        """Return all subwords, by id."""
        return self.pieces(range(len(self)))

    def find(self, word: str) -> tuple[int | None, bool]:
        """Find the subword `word`, else that with a space before; returns its id and whether it is `word` itself."""
        for piece, exact in ((word, True), (_SPACE_MARK + word, False)):
            index = int(self._processor.piece_to_id(piece))
            if index > EOS:
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
        return self.encode(words), _SPACE_MARK + last.replace(_SPACE_MARK, _STAND_IN), self.encode(last)

    def word_ends(self) -> tuple[list[bool], list[bool]]:
        """Tell for every symbol, by id, whether a word may begin after it, and whether a word ends before it.

        Bytes of characters that have several do not tell, so that neither is certain.
        """
        sp, spellings = self._processor, self.spellings()
        for character in map(chr, range(0x80)):
            if sp.is_byte(index := sp.piece_to_id(f"<0x{ord(character):02X}>")):
                spellings[index] = character
        begin = [bool(text) and not joins(text[-1]) for text in spellings]
        end = [bool(text) and not joins(text[0]) for text in spellings]
        end[EOS] = True
        return begin, end

    def encode_within(self, text: str) -> list[int] | None:
        """Encode a text before which there is no space; None if the vocabulary has no subwords for that."""
        first, *rest = self.encode(text)
        if (piece := self.pieces([first])[0]) == _SPACE_MARK:
            return rest
        index, exact = self.find(piece.removeprefix(_SPACE_MARK))
        return [index, *rest] if index is not None and exact else None

    def count_unknown(self, ids: Iterable[int]) -> int:
        """Count the characters that have no subword, so that they are spelled in bytes."""
        return sum(index in self._unknown for index in ids)

    def starts(self) -> list[bool]:
        """Tell for every subword, by id, whether it begins a word."""
        return [self.starts_word(index) for index in range(len(self))]

    def starts_word(self, index: int) -> bool:
        """Tell whether the subword begins a word."""
        return str(self._processor.id_to_piece(index)).startswith(_SPACE_MARK)


AnyVocabulary = Vocabulary | TreeVocabulary
"""The vocabulary of a target. Both kinds turn texts into ids and ids into symbols."""


class Tokenizer:
    """The vocabularies of both sides; the same object twice if they share it, or if there is only one side."""

    def __init__(self, source: Vocabulary, target: AnyVocabulary) -> None:
        self.source = source
        self.target = target

    @property
    def shared(self) -> bool:
        """Whether both sides use the same vocabulary."""
        return self.source is self.target

    def starts(self) -> tuple[list[bool], list[bool]]:
        """Tell for the symbols of source and target, by id, whether each begins a word, or in a tree stands for one."""
        return self.source.starts(), self.target.starts()

    def equals(self, other: Tokenizer) -> bool:
        """Tell whether both give the same ids to the same subwords."""
        return self.source.listing() == other.source.listing() and self.target.listing() == other.target.listing()

    @classmethod
    def load(cls, directory: Path) -> Tokenizer:
        """Read `tokenizer.model`, or `source.model` with `target.model` or `tree.json`, from a directory.

        Raises UserError naming the file that is missing or damaged.
        """

        def read(name: str) -> tuple[bytes, str]:
            return content(directory / name), str(directory / name)

        known = known_files(directory)
        target = TreeVocabulary if TreeVocabulary.FILE in known else Vocabulary
        if SHARED in known and target is Vocabulary:
            both = Vocabulary(*read(SHARED))
            return cls(both, both)
        if known.isdisjoint((SOURCE, target.FILE)):
            raise UserError(
                f"{directory}: holds neither {SHARED} nor {SOURCE} and {target.FILE}", remedy(directory / SHARED)
            )
        return cls(Vocabulary(*read(SOURCE)), target(*read(target.FILE)))

    def files(self) -> dict[str, bytes]:
        """Return the contents of the files that `load` reads, by name."""
        if self.shared:
            return {SHARED: self.source.serialized}
        return {SOURCE: self.source.serialized, self.target.FILE: self.target.serialized}

    @classmethod
    def train(
        cls,
        pairs: Iterable[tuple[str, ...]],
        settings: TokenizerSettings,
        say: Callable[[str], None] = lambda line: None,
        trees: bool = False,
        pos_tags: bool = False,
    ) -> Tokenizer:
        """Learn the subwords of (source, target) pairs, or of (target,) alone if the vocabulary is shared.

        If the targets are `trees`, their symbols are collected instead, with `pos_tags` also the tags. `pairs` is read
        once for each vocabulary, so it must not be an iterator. `say` reports how much text is used. Raises UserError
        naming `tokenizer.vocab_size` if the text has too few subwords for it, or needs more.
        """
        if settings.shared:
            both = _train("all text", (text for pair in pairs for text in pair), settings, say)
            return cls(both, both)
        source = _train("source", (source for source, _ in pairs), settings, say)
        if trees:
            return cls(source, TreeVocabulary.train((target for _, target in pairs if target), pos_tags))
        return cls(source, _train("target", (target for _, target in pairs), settings, say))


def _train(which: str, texts: Iterator[str], settings: TokenizerSettings, say: Callable[[str], None]) -> Vocabulary:
    kind = f"tokenizer: {settings.algorithm}, {settings.vocab_size:,} pieces, {which}"
    say(f"{kind}: reading the training data")
    sample, seen = draw(texts, settings.sample)
    say(f"{kind}: training on {len(sample):,} of {seen:,} sentences")
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(text.replace(_SPACE_MARK, _STAND_IN) for text in _emptied(sample)),
            model_writer=model,
            model_type=settings.algorithm,
            vocab_size=settings.vocab_size,
            character_coverage=settings.character_coverage,
            byte_fallback=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            pad_id=PAD,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            num_threads=THREADS,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise _explained(error, settings) from None
    return Vocabulary(model.getvalue(), "the trained model")


def draw(texts: Iterator[str], size: int) -> tuple[list[str], int]:
    """Draw at most `size` texts, each equally likely and always the same ones; also returns how many there were.

    SentencePiece would draw others in every process. Only the sample is in memory (Vitter 1985, algorithm R).
    """
    sample = list(islice(texts, size))
    random = Random(1).random
    seen = len(sample)
    for seen, text in enumerate(texts, size + 1):
        place = int(random() * seen)
        if place < size:
            sample[place] = text
    return sample, seen


def _emptied(texts: list[str]) -> Iterator[str]:
    """Yield the texts and free each one, since the trainer keeps its own copy."""
    texts.reverse()
    while texts:
        yield texts.pop()


def _explained(error: RuntimeError, settings: TokenizerSettings) -> UserError:
    key = f"tokenizer.vocab_size: {settings.vocab_size}"
    if most := re.search(r"too high.*value <= (\d+)", str(error)):
        return UserError(
            f"{key} is more than the training text can fill, which is {most[1]}",
            f"--set tokenizer.vocab_size={most[1]}",
        )
    if least := re.search(r"required_chars\. \d+ vs (\d+)", str(error)):
        return UserError(
            f"{key} is less than the {least[1]} that bytes and single characters need",
            f"--set tokenizer.vocab_size={least[1]}, or lower tokenizer.character_coverage",
        )
    if "sentences_.empty()" in str(error):
        return UserError(
            "data.train: holds no text to train the tokenizer on",
            "name files that have sentences in them; all lines of these are blank",
        )
    return UserError(
        f"tokenizer: SentencePiece could not be trained: {' '.join(str(error).split())}",
        f"try another tokenizer.vocab_size than {settings.vocab_size}, or a smaller tokenizer.sample",
    )
