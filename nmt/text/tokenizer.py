"""A model's tokenizer: training its source and target vocabularies with SentencePiece, and loading them.

Text is not normalised, and characters without an entry use byte fallback, so only Marian vocabularies can lose text. A
parser's target vocabulary, of tree symbols, is passed in.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from random import Random

from nmt.recipe import TokenizerSettings
from nmt.system.errors import UserError
from nmt.system.files import remedy
from nmt.system.integrity import content, known_files
from nmt.text.opus_mt_tokenizer import SPM, VOCAB, read_vocabularies
from nmt.text.subwords import train_model
from nmt.text.vocabulary import BOS, EOS, PAD, SPACE_MARK, STAND_IN, UNK, TargetVocabulary, Vocabulary

SHARED, SOURCE = "tokenizer.model", "source.model"
"""File names of a shared vocabulary and of a separate source vocabulary"""
THREADS = 16
"""Fixed number of SentencePiece threads: the model file records it, and the rounding of unigram sums depends on it"""
COVERAGE, FREQUENT, ALPHABET = 0.9995, 20, 500
"""For tokenizer.character_coverage auto: fraction of characters, occurrences of a frequent one, number of these"""
LONGEST = 4192  # maximum bytes of a text that SentencePiece trains on: its max_sentence_length
CUT = re.compile(rf"(?s).{{1,{LONGEST // 4}}}(?: |\Z)|.{{1,{LONGEST // 4}}}")
RESERVED = 260  # entries for control symbols and bytes
FORBIDDEN = {SPACE_MARK, "\u2585", "\0"}  # SentencePiece uses the first two itself, and the last ends its option
PRINTABLE = frozenset(string.printable) - frozenset(string.whitespace)


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

    def starts(self) -> tuple[list[bool], list[bool]]:
        """Return a list for source and for target: whether the symbol of each id begins a word or is a tree leaf."""
        return self.source.starts(), self.target.starts()

    def equals(self, other: Tokenizer) -> bool:
        """Return whether both tokenizers map the same subwords to the same ids."""
        return self.source.listing() == other.source.listing() and self.target.listing() == other.target.listing()

    @classmethod
    def load(cls, directory: Path, target: type[TargetVocabulary] = Vocabulary) -> Tokenizer:
        """Load a directory's `tokenizer.model`, or its `source.model` and the file of a `target` vocabulary.

        If there is a `source.spm`, load a Marian tokenizer (`nmt/text/opus_mt_tokenizer.py`). Raise UserError naming a
        missing or damaged file.
        """

        def read(name: str) -> tuple[bytes, str]:
            return content(directory / name), str(directory / name)

        known = known_files(directory)
        if SPM[0] in known:
            return cls(*read_vocabularies(known, read))
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
    ) -> Tokenizer:
        """Learn subwords from (source, target) pairs, or from (target,) tuples if the vocabulary is shared.

        `target` builds another kind of target vocabulary, such as tree symbols. `pairs` is read once per vocabulary, so
        it must not be an iterator. `say` receives progress messages. At most `threads` cores are used, which does not
        affect the result. Raise UserError naming `tokenizer.vocab_size` if the text has too few subwords to fill it, or
        needs more.
        """
        if settings.shared:
            both = _train("all text", (text for pair in pairs for text in pair), settings, say, threads)
            return cls(both, both)
        source = _train("source", (source for source, _ in pairs), settings, say, threads)
        targets = (text for _, text in pairs)
        return cls(source, target(targets) if target else _train("target", targets, settings, say, threads))


def _train(
    which: str, texts: Iterator[str], settings: TokenizerSettings, say: Callable[[str], None], threads: int | None
) -> Vocabulary:
    kind = f"tokenizer: {settings.algorithm}, {settings.vocab_size:,} pieces, {which}"
    say(f"{kind}: reading the training data")
    sample, seen = draw(cut_long(texts), settings.sample)
    say(f"{kind}: training on {len(sample):,} of {seen:,} sentences")
    coverage, required = settings.character_coverage, frozenset[str]()
    if coverage == "auto":
        coverage, required = COVERAGE, alphabet(sample, settings.vocab_size)
    model = train_model(
        _feed(sample),
        threads,
        model_type=settings.algorithm,
        vocab_size=settings.vocab_size,
        character_coverage=coverage,
        required_chars="".join(sorted(required)),
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
    if isinstance(model, str):
        raise _explain(model, settings)
    return Vocabulary(model, "the trained model")


def alphabet(texts: Sequence[str], vocab_size: int) -> frozenset[str]:
    """Return the characters that need entries: printable ASCII, and the frequent ones of an alphabetic script.

    Return none if they would fill a tiny vocabulary.
    """
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    frequent = {character for character, count in counts.items() if count >= FREQUENT} - set(string.whitespace)
    wanted = PRINTABLE | (frequent - FORBIDDEN if len(frequent) <= ALPHABET else set())
    return wanted if len(wanted) < vocab_size - RESERVED else frozenset()


def cut_long(texts: Iterable[str]) -> Iterator[str]:
    """Cut texts that SentencePiece would leave out as too long, at spaces where possible."""
    for text in texts:
        if len(text) * 4 > LONGEST and len(text.encode()) > LONGEST:
            yield from (part.rstrip(" ") for part in CUT.findall(text))
        else:
            yield text


def draw(texts: Iterator[str], size: int) -> tuple[list[str], int]:
    """Draw a uniform, reproducible sample of at most `size` texts; return it and the number of texts.

    SentencePiece's own sample differs between processes. Only the sample is kept in memory (Vitter 1985, algorithm R).
    """
    sample = list(islice(texts, size))
    random = Random(1).random
    seen = len(sample)
    for seen, text in enumerate(texts, size + 1):
        place = int(random() * seen)
        if place < size:
            sample[place] = text
    return sample, seen


def _feed(texts: list[str]) -> Iterator[str]:
    """Yield texts to the trainer, freeing each one because the trainer keeps a copy."""
    texts.reverse()
    while texts:
        yield texts.pop().replace(SPACE_MARK, STAND_IN)


def _explain(error: str, settings: TokenizerSettings) -> UserError:
    key = f"tokenizer.vocab_size: {settings.vocab_size}"
    if most := re.search(r"too high.*value <= (\d+)", error):
        return UserError(
            f"{key} is more than the training text can fill, which is {most[1]}",
            f"--set tokenizer.vocab_size={most[1]}",
        )
    if least := re.search(r"required_chars\. \d+ vs (\d+)", error):
        return UserError(
            f"{key} is less than the {least[1]} that bytes and single characters need",
            f"--set tokenizer.vocab_size={least[1]}, or lower tokenizer.character_coverage",
        )
    if "sentences_.empty()" in error:
        return UserError(
            "data.train: holds no text to train the tokenizer on",
            "name files that have sentences in them; all lines of these are blank",
        )
    return UserError(
        f"tokenizer: SentencePiece could not be trained: {' '.join(error.split())}",
        f"try another tokenizer.vocab_size than {settings.vocab_size}, or a smaller tokenizer.sample",
    )
