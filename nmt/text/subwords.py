"""Training of subword vocabularies by SentencePiece, in a child: a signal ends it at once, and its death is an error.

As a program, this module is the child. It imports little, because training may take less than a second.
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
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from itertools import chain, islice
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

import sentencepiece

from nmt.system.children import Child, ending
from nmt.system.errors import UserError
from nmt.text.vocabulary import BOS, EOS, PAD, SPACE_MARK, STAND_IN, UNK, Vocabulary

if TYPE_CHECKING:
    from nmt.recipe import TokenizerSettings

THREADS = 16
"""Fixed number of SentencePiece threads: the model file records it, and the rounding of unigram sums depends on it"""
COVERAGE, FREQUENT, ALPHABET = 0.9995, 20, 500
"""For tokenizer.character_coverage auto: fraction of characters, occurrences of a frequent one, number of these"""
LONGEST = 4192  # maximum bytes of a text that SentencePiece trains on: its max_sentence_length
CUT = re.compile(rf"(?s).{{1,{LONGEST // 4}}}(?: |\Z)|.{{1,{LONGEST // 4}}}")
RESERVED = 260  # entries for control symbols and bytes
FORBIDDEN = {SPACE_MARK, "\u2585", "\0"}  # SentencePiece uses the first two itself, and the last ends its option
PRINTABLE = frozenset(string.printable) - frozenset(string.whitespace)


def train_vocabulary(
    which: str, texts: Iterator[str], settings: TokenizerSettings, say: Callable[[str], None], threads: int | None
) -> Vocabulary:
    """Learn the subwords of texts on at most `threads` cores; `which` names the texts in the messages to `say`.

    Raise UserError naming `tokenizer.vocab_size` if the texts have too few subwords to fill it, or need more.
    """
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


def train_model(texts: Iterator[str], threads: int | None, **options: object) -> bytes | str:
    """Train a model with SentencePiece's `options` on at most `threads` cores; return its file, or an error message.

    Raise UserError if the child dies.
    """
    with closing(Child("nmt.text.subwords")) as child:
        with suppress(ConnectionError):  # it has ended, and may have said why
            child.connection.send((options, threads))
            while batch := list(islice(texts, 1000)):
                child.connection.send(batch)
            child.connection.send([])
        try:
            answer: bytes | str = child.connection.recv()
            return answer
        except (EOFError, OSError):  # OSError: it died while answering
            hint = "if memory ran out, use a smaller tokenizer.sample; otherwise, try another tokenizer.vocab_size"
            raise UserError(f"tokenizer: SentencePiece {ending(child.wait())}", hint) from None


def main() -> None:
    """Train a model on the texts that the parent sends; answer as `train_model` returns it."""
    connection, model = Connection(0), io.BytesIO()
    options, threads = connection.recv()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: end with the parent, even while training
        # The model depends on SentencePiece's number of threads. Drawn, so that other processes rarely use the same.
        cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, random.sample(sorted(cores), min(threads or len(cores), len(cores))))
    texts = chain.from_iterable(iter(connection.recv, []))
    try:
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=texts, model_writer=model, **options)
        connection.send(model.getvalue())
    except Exception as error:
        connection.send(str(error))


if __name__ == "__main__":
    main()
