"""Engines that compute their outputs without a model, and a tokenizer for them; workers import them by name."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Generator, Iterable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

from nmt.decoding.translator import Translator
from nmt.decoding.workers import Loaded
from nmt.recipe import Decoding
from nmt.search.sources import Hypothesis, Source, SourceQueue
from nmt.system.errors import UserError
from nmt.text.tokenizer import Direction
from nmt.text.vocabulary import SPACE_MARK

Found = tuple[int, list[Hypothesis]]


class Characters:
    """A vocabulary of characters whose ids are code points; capitals count as unknown."""

    def encode(self, text: str) -> list[int]:
        return [ord(character) for character in text]

    def decode(self, ids: list[int]) -> str:
        return "".join(map(chr, ids))

    def pieces(self, ids: Iterable[int]) -> list[str]:
        return [chr(index).replace(" ", SPACE_MARK) for index in ids]

    def ends_in(self, text: str, ids: list[int]) -> list[int]:
        return list(range(1, len(ids) + 1))

    def language(self, text: str) -> str:
        return ""

    def count_unknown(self, ids: Iterable[int]) -> int:
        return sum(chr(index).isupper() for index in ids)

    def lacking(self, characters: str) -> str:
        return ""


class Alphabet:
    """A tokenizer whose subwords are characters."""

    source = target = Characters()
    older = None
    forced = False

    def of(self, language: str | None) -> Alphabet:
        return self

    def complete(self, given: Direction, trained: object) -> Direction:
        return given

    def first(self, direction: object) -> tuple[list[int], list[int]]:
        return [], []


class Searched(Loaded):
    """Models that an engine searches with, whatever the rules."""

    def __init__(self, engine: Any, positions: int | None = None) -> None:
        self._engine = engine
        self.configs: Any = [SimpleNamespace(positions="learned", max_positions=positions)] if positions else []

    def open(self, make: object) -> Any:
        return nullcontext(self._engine)

    def only(self) -> Any:
        raise AssertionError("there is no model")


def pipeline(engine: Any, positions: int | None = None, **settings: Any) -> Translator:
    """What translates characters with an engine."""
    tokenizer: Any = Alphabet()
    return Translator(Searched(engine, positions), tokenizer, Decoding(**settings))


def mirrored(source: Source, n_best: int) -> list[Hypothesis]:
    """The source reversed, followed by ever shorter ends of it."""
    ids = source.ids[::-1]
    alignment = list(range(len(ids)))[::-1]
    return [Hypothesis(ids[n:], -1.0 - n, len(ids) < source.cap - 3, alignment[n:]) for n in range(n_best)]


class Mirror:
    """Returns `mirrored` sources, batch by batch."""

    def __init__(self, tokens: int = 1000) -> None:
        self.tokens = tokens
        self.batches: list[list[str]] = []
        self.closed = False

    def search(self, queue: SourceQueue, n_best: int, sample: bool = False) -> Generator[Found, None, None]:
        try:
            while batch := queue.take_sources(self.tokens, wait=True):
                self.batches.append([Characters().decode(source.ids) for source in batch])
                yield from ((source.number, mirrored(source, n_best)) for source in self.order(batch))
        finally:
            self.closed = True

    def order(self, batch: list[Source]) -> list[Source]:
        """The order in which the sources of a batch are returned."""
        return batch


class Shuffling(Mirror):
    """Returns sources in random order, and holds some of them back while it takes more."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = random.Random(seed)

    def search(self, queue: SourceQueue, n_best: int, sample: bool = False) -> Generator[Found, None, None]:
        held: list[Source] = []
        while batch := queue.take_sources(self.random.randint(1, 300), wait=not held) or held:
            if batch is not held:
                held += batch
            self.random.shuffle(held)
            for _ in range(self.random.randint(0, len(held))):
                source = held.pop()
                yield source.number, mirrored(source, n_best)


# --- engines of workers, which are numbered from 0 to count - 1 -----------------------------------------------


def shuffling(number: int, count: int) -> Shuffling:
    """A `Shuffling` engine for each worker."""
    return Shuffling(number)


class Fateful(Mirror):
    """Raises, dies or hangs if a line tells it to."""

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
    """A `Fateful` engine for each worker."""
    return Fateful(number)


def second_refuses(number: int, count: int) -> Mirror:
    """An engine for the first worker; the second one fails to start."""
    if number == 1:
        raise UserError("no such device", "--devices 1")
    return Mirror()
