"""Engines that only seem to search, and a tokenizer to go with them; workers import them by name."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any

from nmt.errors import UserError
from nmt.recipe import Decoding
from nmt.search.feed import Feed, Hypothesis, Source
from nmt.tasks.pipeline import Pipeline
from nmt.tasks.translating import Translating, Translation

Found = tuple[int, list[Hypothesis]]


class Characters:
    """A vocabulary of characters: their code points; a capital has no subword."""

    def encode(self, text: str) -> list[int]:
        return [ord(character) for character in text]

    def decode(self, ids: list[int]) -> str:
        return "".join(map(chr, ids))

    def starts_word(self, index: int) -> bool:
        return chr(index) == " "

    def count_unknown(self, ids: Iterable[int]) -> int:
        return sum(chr(index).isupper() for index in ids)


class Alphabet:
    """A tokenizer of characters."""

    source = target = Characters()


def pipeline(engine: Any, positions: int | None = None, **settings: Any) -> Pipeline[Translation]:
    """A pipeline of characters."""
    tokenizer: Any = Alphabet()
    decoding = Decoding(**settings)
    return Pipeline(Translating(tokenizer, decoding), decoding, engine, positions)


def mirrored(source: Source, n_best: int) -> list[Hypothesis]:
    """The source reversed, and after it shorter and shorter ends of that."""
    ids = source.ids[::-1]
    alignment = list(range(len(ids)))[::-1]
    return [Hypothesis(ids[n:], -1.0 - n, len(ids) < source.cap - 3, alignment[n:]) for n in range(n_best)]


class Mirror:
    """Finds `mirrored`, batch by batch."""

    def __init__(self, tokens: int = 1000) -> None:
        self.tokens = tokens
        self.batches: list[list[str]] = []
        self.closed = False

    def search(self, feed: Feed, n_best: int) -> Generator[Found, None, None]:
        try:
            while batch := feed.take(self.tokens, wait=True):
                self.batches.append([Characters().decode(source.ids) for source in batch])
                yield from ((source.number, mirrored(source, n_best)) for source in self.order(batch))
        finally:
            self.closed = True

    def order(self, batch: list[Source]) -> list[Source]:
        """In which a batch is done."""
        return batch


class Shuffling(Mirror):
    """Holds back what it can, and gives it in no order, some of it when more has been taken."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = random.Random(seed)

    def search(self, feed: Feed, n_best: int) -> Generator[Found, None, None]:
        held: list[Source] = []
        while batch := feed.take(self.random.randint(1, 300), wait=not held) or held:
            if batch is not held:
                held += batch
            self.random.shuffle(held)
            for _ in range(self.random.randint(0, len(held))):
                source = held.pop()
                yield source.number, mirrored(source, n_best)


# --- of workers: numbers from 0 to count - 1 ------------------------------------------------------------------


def shuffling(number: int, count: int) -> Shuffling:
    """An engine of each worker."""
    return Shuffling(number)


class Fateful(Mirror):
    """Does what a line says."""

    def __init__(self, number: int) -> None:
        super().__init__(tokens=1)
        self.number = number

    def order(self, batch: list[Source]) -> list[Source]:
        word = Characters().decode(batch[0].ids)
        if word == "raise":
            raise ValueError("out of\nmemory")
        if word == "refuse":
            raise UserError("no such key", "try another")
        if word == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if word == "hang":
            signal.pause()
        return batch


def fateful(number: int, count: int) -> Fateful:
    """An engine of each worker."""
    return Fateful(number)


def second_refuses(number: int, count: int) -> Mirror:
    """An engine of the first worker only."""
    if number == 1:
        raise UserError("no such device", "--devices 1")
    return Mirror()


class Numbered(Mirror):
    """Says which worker it is by the score of each hypothesis, and waits until all workers have something to do."""

    def __init__(self, folder: Path, number: int, count: int) -> None:
        super().__init__(tokens=20)
        self.folder, self.number, self.count = folder, number, count

    def search(self, feed: Feed, n_best: int) -> Generator[Found, None, None]:
        while batch := feed.take(self.tokens, wait=True):
            (self.folder / str(self.number)).touch()
            while len(list(self.folder.iterdir())) < self.count:
                pass
            for source in batch:
                yield source.number, [Hypothesis(source.ids[::-1], self.number, True)]


def numbered(folder: Path, number: int, count: int) -> Numbered:
    """An engine of each worker."""
    return Numbered(folder, number, count)
