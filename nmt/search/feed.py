"""What an engine is fed and what it gives back: sources in, hypotheses out. Knows no lines; imports no torch."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class Hypothesis:
    """One output of a search."""

    ids: list[int]
    """Symbols without `<s>` and `</s>`."""
    score: float
    """Length-normalised log-probability, in nats; the order of hypotheses."""
    finished: bool
    """Whether it ended by itself, rather than at the cap."""
    alignment: list[int] = field(default_factory=list)
    """For each symbol the index of the source subword that it attends to most; empty unless asked for."""


@dataclass(frozen=True)
class Source:
    """One input of a search."""

    number: int
    """The engine hands it back with the result."""
    ids: list[int]
    """Subwords without `</s>`, at least one."""
    cap: int
    """Most symbols of an output, `</s>` counted."""
    words: int = 0
    """Leaves that its tree must have, fewer than `cap`; of no meaning to a search for anything else."""


class Feed(Protocol):
    """Where an engine gets its sources; any thread may ask."""

    def take(self, tokens: int, wait: bool) -> list[Source]:
        """Removes sources whose padded size, count × (longest + 1), is at most `tokens`; long ones first.

        With `wait` blocks until there is one and gives at least one; [] is the end of this search. Without, [] says
        that none that fits is there now.
        """
        ...


class Engine(Protocol):
    """What searches."""

    def search(self, feed: Feed, n_best: int) -> Generator[tuple[int, list[Hypothesis]], None, None]:
        """(number, hypotheses best first) of each source of the feed, in whatever order they are done.

        Waits for the feed only when all that it took is done; is closed where no more is wanted. One search follows
        another on the same engine.
        """
        ...


class Pool:
    """Sources that wait for an engine."""

    def __init__(self, sources: Iterable[Source] = ()) -> None:
        self._sources: list[Source] = []  # the longest last
        self.tokens = 0
        """Of all of them, `</s>` counted and padding not"""
        self.add(sources)

    def __len__(self) -> int:
        return len(self._sources)

    def add(self, sources: Iterable[Source]) -> None:
        """Lets more of them wait."""
        self._sources += sources
        self._sources.sort(key=lambda source: (len(source.ids), -source.number))
        self.tokens = sum(len(source.ids) + 1 for source in self._sources)

    def take(self, tokens: int, at_least: int) -> list[Source]:
        """Removes the longest ones: as many as fit into `tokens` when padded, but `at_least` so many if there are."""
        if not self._sources:
            return []
        count = max(tokens // (len(self._sources[-1].ids) + 1), at_least)
        first = max(0, len(self._sources) - count)
        taken = self._sources[first:][::-1]
        del self._sources[first:]
        self.tokens -= sum(len(source.ids) + 1 for source in taken)
        return taken
