"""Subword vocabularies: encoding text as ids and decoding them, without loss, and their training by SentencePiece.

Invisible differences are normalised by rules in the vocabulary's file (normalization.py). Byte fallback encodes
characters without an entry. `<s>` and `</s>` are added when batches are made. Training is in a child: a signal
ends it at once, and its death is an error. As a program, this module is the child. It imports little, because training
may take less than a second.
"""

from __future__ import annotations

import ctypes
import io
import os
import random
import re
import signal
import string
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from itertools import accumulate, chain, islice
from multiprocessing.connection import Connection
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, Protocol, Self, cast

import sentencepiece

from nmt.system.errors import UserError
from nmt.system.processes import Child, ending
from nmt.text.normalization import has_hangul, rules

if TYPE_CHECKING:
    from nmt.recipe import TokenizerSettings

PAD, UNK, BOS, EOS = 0, 1, 2, 3  # <pad>, <unk>, <s>, </s>: the same ids in every vocabulary
DAMAGED = "the file is damaged; take it from another copy of the model"

# SentencePiece writes a space as U+2581 and would decode a real U+2581 as a space. The stand-in for a real one is a
# noncharacter, which Unicode reserves for internal use.
SPACE_MARK = "\u2581"
STAND_IN = "\ufdd0"
_BYTE = re.compile("<0x([0-9A-F]{2})>")


def numbered(symbols: Iterable[str], first: int = 0) -> dict[str, int]:
    """Return the ids of symbols that are in order, from `first` on."""
    return {symbol: index for index, symbol in enumerate(symbols, first)}


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
    """Noun phrase, in messages, for texts that are not spelled; empty if all are"""
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

    def spells(self, text: str, ids: Sequence[int]) -> bool:
        """Return whether the ids of a text, as `encode` returns them, hold all of it."""
        return UNK not in ids

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

    languages: dict[str, int]
    """Id of each language's symbol, such as >>fra<<; empty for one direction"""
    older: Vocabulary | None = None
    """The vocabulary before its newest languages, which encodes texts of others; its ids are the first ones of this"""

    def __init__(self, serialized: bytes, name: str) -> None:
        """Load a SentencePiece model from bytes; raise UserError, citing `name`, if they do not hold one of ours."""
        self.serialized = serialized
        self._encoder = sp = read_processor(serialized, name)
        if (sp.pad_id(), sp.unk_id(), sp.bos_id(), sp.eos_id()) != (PAD, UNK, BOS, EOS):
            raise UserError(f"{name}: its control symbols do not have the ids {PAD} to {EOS}", DAMAGED)
        self._symbols = sp.id_to_piece(list(range(sp.get_piece_size())))
        self._ids = numbered(self._symbols)
        self.languages = {symbol[2:-2]: i for i, symbol in enumerate(self._symbols) if i > EOS and sp.is_control(i)}
        self._unknown = {UNK}
        """Ids of which encoded text has one for each character without an entry: those of UTF-8's first bytes"""
        for lead_byte in (*range(0x80), *range(0xC0, 0x100)):
            self._unknown.add(self._ids.get(f"<0x{lead_byte:02X}>", UNK))

    @classmethod
    def train(
        cls,
        side: str,
        texts: Iterator[str],
        settings: TokenizerSettings,
        say: Callable[[str], None],
        cores: int | None,
        languages: Sequence[str] = (),
    ) -> Self:
        """Learn the subwords of texts on at most `cores` cores; `side` names the texts in the messages to `say`.

        `languages` get symbols, which no text is encoded as and which are decoded as nothing.
        Raise UserError naming `tokenizer.vocab_size` if the texts have too few subwords to fill it, or need more.
        """
        kind = f"tokenizer: {settings.algorithm}, {settings.vocab_size:,} pieces, {side}"
        say(f"{kind}: reading the training data")
        sample, seen = draw(cut_long(texts), settings.sample)
        say(f"{kind}: training on {len(sample):,} of {seen:,} sentences")
        coverage = settings.character_coverage
        required: frozenset[str] = frozenset()
        if coverage == "auto":
            coverage = COVERAGE
            required = alphabet(sample, settings.vocab_size)
        normalization = ""
        if settings.normalization == "plain":
            normalization = rules(any(map(has_hangul, sample)))
        model = train_model(
            _feed(sample),
            cores,
            model_type=settings.algorithm,
            vocab_size=settings.vocab_size,
            character_coverage=coverage,
            required_chars="".join(sorted(required)),
            byte_fallback=True,
            rules=normalization,
            remove_extra_whitespaces=False,
            pad_id=PAD,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            control_symbols=[f">>{language}<<" for language in languages],
            num_threads=THREADS,
            minloglevel=2,
        )
        if isinstance(model, str):
            raise _explain(model, settings)
        return cls(model, "the trained model")

    def encode(self, text: str) -> list[int]:
        """Encode one line, without `</s>`."""
        return list(self._encoder.encode(text.replace(SPACE_MARK, STAND_IN)))

    def encode_like(self, text: str, ids: Sequence[int]) -> list[int]:
        """Encode a line as a text of the same language as one with these `ids`.

        It begins with their symbol of a language, if any; the oldest vocabulary that has all of them encodes it.
        """
        symbols: list[int] = []
        if ids and ids[0] in self.languages.values() and not self.language(text):
            symbols = [ids[0]]
        largest = max(ids[len(symbols) :], default=0)
        encoder = self
        while encoder.older and largest < len(encoder.older):
            encoder = encoder.older
        return symbols + encoder.encode(text)

    def normalized(self, text: str) -> str:
        """Return a normalised text as its pieces spell it, with spaces as U+2581: "a b" becomes "▁a▁b"."""
        return str(self._encoder.normalize(text.replace(SPACE_MARK, STAND_IN)))

    def plain(self, text: str) -> str:
        """Return a text as it is encoded, which is the text itself unless the vocabulary has rules of normalisation."""
        return self.normalized(text).removeprefix(SPACE_MARK).replace(SPACE_MARK, " ").replace(STAND_IN, SPACE_MARK)

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode lines on one thread; thread-safe."""
        lines = [text.replace(SPACE_MARK, STAND_IN) for text in texts]
        return list(self._encoder.encode(lines, num_threads=1))

    def decode(self, ids: Sequence[int]) -> str:
        """Decode ids to text, skipping control symbols."""
        decoded = str(self._encoder.decode([int(i) for i in ids if i > EOS]))
        return decoded.replace(STAND_IN, SPACE_MARK)

    def ends_in(self, text: str, ids: Sequence[int]) -> list[int]:
        """Return the offset at which each subword of an encoded text ends.

        A byte that does not complete a character ends with the subword before it. Where encoding normalises the text,
        offsets are those of the nearest equal characters. What `ids` spell behind the text ends with it.
        """
        symbols = set() if self.language(text) else set(self.languages.values())
        spelled = ""
        ends = []
        held = b""
        for index, piece in zip(ids, self.pieces(ids), strict=True):
            byte = _BYTE.fullmatch(piece)
            if byte:
                held += bytes.fromhex(byte[1])
                character = held.decode(errors="ignore")
                spelled += character
                if character:
                    held = b""
            elif index not in symbols:
                spelled += piece.replace(SPACE_MARK, " ").replace(STAND_IN, SPACE_MARK)
            ends.append(len(spelled))
        for added in (0, 1):  # 1 for the space before the first word
            if spelled.startswith(text, added):
                return [min(max(0, end - added), len(text)) for end in ends]
        offsets = _offsets(spelled, text)
        return [offsets[end] for end in ends]

    def spellings(self) -> list[str]:
        """Return each subword's text by id, with spaces as U+2581; empty for control symbols and bytes."""
        spellings: list[str] = []
        for index, symbol in enumerate(self._symbols):
            spellings.append(symbol if self._has_text(index) else "")
        return spellings

    def _has_text(self, index: int) -> bool:
        return index > EOS and not (self._encoder.is_byte(index) or self._encoder.is_control(index))

    def encode_beginning(self, text: str) -> tuple[list[int], str, list[int]]:
        """Encode a prefix of a line, ignoring leading space; its last word may be incomplete.

        Return the ids of all words but the last, the last word preceded by U+2581 (U+2581 alone if the text ends with a
        space), and the last word's ids in case it is complete.
        """
        text = self.plain(text).lstrip()
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

    def lacking(self, characters: str) -> str:
        """Return the characters without an entry."""
        ids = self.encode_all(list(characters))
        return "".join(each for each, own in zip(characters, ids, strict=True) if self.count_unknown(own))

    def starts(self) -> list[bool]:
        """Return whether each subword, by id, begins a word."""
        return [symbol.startswith(SPACE_MARK) for symbol in self._symbols]


NEAR = 8  # characters of a spelling to skip at most until it is like its text again
AHEAD = 64  # characters of the text to skip at most for that
ALIKE = 4  # characters that are equal then


def _offsets(spelled: str, text: str) -> list[int]:
    """Return the offset in a text for each one in its normalised spelling, in linear time.

    For the text "ﬁn" and its spelling " fin", these are [0, 0, 0, 1, 2]: before the space, f, i and n, and behind n.
    """
    offsets = [0] * (len(spelled) + 1)
    at = 0  # in the spelling
    text_at = 0
    while at < len(spelled) and text_at < len(text):
        size, spelled_size = _spelled_here(spelled, at, text, text_at)
        if size:
            text_at += size
            at += spelled_size
        elif at == 0 and spelled[0] == " ":
            at += 1  # before the first word
        elif text[text_at].isspace() or not text[text_at].isprintable():
            text_at += 1
        else:
            more, text_at = _next_alike(spelled, at, text, text_at)
            at += more
        offsets[at] = text_at
    return list(accumulate(offsets, max))


def _spelled_here(spelled: str, at: int, text: str, text_at: int) -> tuple[int, int]:
    """Return how many characters of the text from `text_at` on the spelling has at `at`, and in how many; 0 if none.

    The spelling has them as they are or in NFKC.
    """
    if spelled.startswith(text[text_at], at):
        return 1, 1
    for size in range(1, ALIKE):
        form = unicodedata.normalize("NFKC", text[text_at : text_at + size])
        if form and spelled.startswith(form, at):
            return size, len(form)
    return 0, 0


def _next_alike(spelled: str, at: int, text: str, text_at: int) -> tuple[int, int]:
    """Return how many characters of the spelling to skip from `at`, and the offset in the text where it goes on alike.

    The jump is the shortest one in both; if there is none, one character of the spelling is skipped.
    """
    jumps = []
    for more in range(min(NEAR, len(spelled) - at)):
        place = text.find(spelled[at + more : at + more + ALIKE], text_at, text_at + AHEAD)
        if place >= 0:
            jumps.append((more, place))
    is_behind = at * len(text) > (text_at + AHEAD // 2) * len(spelled)  # then the text moves too, to keep up
    return min(jumps, key=sum, default=(1, text_at + is_behind))


# --- training ---------------------------------------------------------------------------------------------------

THREADS = 16
"""Fixed number of SentencePiece threads: the model file records it, and the rounding of unigram sums depends on it"""
COVERAGE = 0.9995
"""Fraction of characters that get entries, for tokenizer.character_coverage auto"""
FREQUENT = 20  # occurrences of a frequent character
ALPHABET = 500  # maximum frequent characters of alphabetic scripts; with more, a text is Chinese or the like
LONGEST_TEXT = 4192  # maximum bytes of a text that SentencePiece trains on: its max_sentence_length
CUT = re.compile(rf"(?s).{{1,{LONGEST_TEXT // 4}}}(?: |\Z)|.{{1,{LONGEST_TEXT // 4}}}")
"""Pattern for parts of a text that are no longer, at 4 bytes a character, and end at spaces if they can"""
RULES = 99  # file descriptor of the rules of normalisation, whose name the model records
IDENTITY = {"normalization_rule_name": "identity"}
RESERVED = 260  # entries for 4 control symbols and 256 bytes
FORBIDDEN = {SPACE_MARK, "\u2585", "\0"}  # SentencePiece uses the first two itself, and the last ends its option
PRINTABLE = frozenset(string.printable) - frozenset(string.whitespace)


def alphabet(texts: Sequence[str], vocab_size: int) -> frozenset[str]:
    """Return the characters that need entries: printable ASCII, and the frequent ones of an alphabetic script.

    Return none if they would fill a tiny vocabulary.
    """
    counts = Counter(chain.from_iterable(texts))
    frequent = {character for character, count in counts.items() if count >= FREQUENT} - set(string.whitespace)
    wanted = PRINTABLE
    if len(frequent) <= ALPHABET:
        wanted |= frequent - FORBIDDEN
    if len(wanted) >= vocab_size - RESERVED:
        return frozenset()
    return wanted


def cut_long(texts: Iterable[str]) -> Iterator[str]:
    """Cut texts that SentencePiece would leave out as too long, at spaces where possible."""
    for text in texts:
        if len(text) * 4 > LONGEST_TEXT and len(text.encode()) > LONGEST_TEXT:
            for part in CUT.findall(text):
                yield part.rstrip(" ")
        else:
            yield text


def draw(texts: Iterator[str], size: int) -> tuple[list[str], int]:
    """Draw a uniform, reproducible sample of at most `size` texts; return it and the number of texts.

    SentencePiece's own sample differs between processes. Only the sample is kept in memory (Vitter 1985, algorithm R).
    """
    sample = list(islice(texts, size))
    chance = random.Random(1).random
    seen = len(sample)
    for seen, text in enumerate(texts, size + 1):
        place = int(chance() * seen)
        if place < size:
            sample[place] = text
    return sample, seen


def _feed(texts: list[str]) -> Iterator[str]:
    """Yield texts to the trainer, freeing each one because the trainer keeps a copy."""
    texts.reverse()
    while texts:
        yield texts.pop().replace(SPACE_MARK, STAND_IN)


def _explain(error: str, settings: TokenizerSettings) -> UserError:
    """Return what SentencePiece's message means for a recipe."""
    setting = "tokenizer.new_vocab_size" if settings.new_languages else "tokenizer.vocab_size"
    key = f"{setting}: {settings.vocab_size}"
    most = re.search(r"too high.*value <= (\d+)", error)
    least = re.search(r"required_chars\. \d+ vs (\d+)", error)
    if most:
        problem = f"{key} is more than the training text can fill, which is {most[1]}"
        hint = f"--set {setting}={most[1]}"
    elif least:
        problem = f"{key} is less than the {least[1]} that bytes and single characters need"
        hint = f"--set {setting}={least[1]}, or lower tokenizer.character_coverage"
    elif "sentences_.empty()" in error:
        problem = "data.train: holds no text to train the tokenizer on"
        hint = "name files that have sentences in them; all lines of these are blank"
    else:
        problem = f"tokenizer: SentencePiece could not be trained: {' '.join(error.split())}"
        hint = f"try another {setting} than {settings.vocab_size}, or a smaller tokenizer.sample"
    return UserError(problem, hint)


def train_model(texts: Iterator[str], threads: int | None, **options: object) -> bytes | str:
    """Train a model with SentencePiece's `options` on at most `threads` cores; return its file, or an error message.

    Raise UserError if the child dies.
    """
    with closing(Child("nmt.text.vocabulary")) as child:
        with suppress(ConnectionError):  # it has ended, and may have said why
            child.connection.send((options, threads))
            while batch := list(islice(texts, 1000)):
                child.connection.send(batch)
            child.connection.send([])
        try:
            return cast("bytes | str", child.connection.recv())
        except (EOFError, OSError):  # OSError: it died while answering
            hint = "if memory ran out, use a smaller tokenizer.sample; otherwise, try another tokenizer.vocab_size"
            raise UserError(f"tokenizer: SentencePiece {ending(child.wait())}", hint) from None


def main() -> None:
    """Train a model on the texts that the parent sends; answer as `train_model` returns it."""
    connection = Connection(0)
    model = io.BytesIO()
    options, threads = connection.recv()
    normalization = options.pop("rules", "")
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: end with the parent, even while training
        # The model depends on SentencePiece's number of threads. Drawn, so that other processes rarely use the same.
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, random.sample(cores, min(threads or len(cores), len(cores))))
    texts = chain.from_iterable(iter(connection.recv, []))
    try:
        with TemporaryFile("w+", encoding="utf-8") as file:  # which a killed child does not leave behind
            file.write(normalization)
            file.flush()
            file.seek(0)
            os.dup2(file.fileno(), RULES)
            how = IDENTITY
            if normalization:
                how = {"normalization_rule_tsv": f"/dev/fd/{RULES}"}
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=texts, model_writer=model, **options, **cast("Any", how)
            )
        connection.send(model.getvalue())
    except Exception as error:
        connection.send(str(error))


if __name__ == "__main__":
    main()
