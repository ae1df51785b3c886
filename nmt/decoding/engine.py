"""The interface of engines: sources in, hypotheses out. Knows no lines; imports no torch."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class Hypothesis:
    """One output of a search."""

    ids: list[int]
    """Symbols without `<s>` and `</s>`."""
    score: float
    """Length-normalised log-probability, in nats."""
    finished: bool
    """Whether it ended with `</s>`, rather than at the cap."""
    alignment: list[int] = field(default_factory=list)
    """For each symbol, the index of the source subword that it attends to most; empty if not asked for."""
    log_probabilities: list[float] = field(default_factory=list)
    """Of each symbol, in nats, given those before it; empty if not asked for."""
    kept_from_repeating: bool = False
    """Whether the most probable symbol was once forbidden by `decoding.no_repeat`."""


@dataclass(frozen=True)
class Prefix:
    """How an output begins."""

    ids: list[int]
    """With these symbols."""
    rest: str
    """Then with subwords that spell this, the last of which may go on beyond it."""
    rest_ids: list[int]
    """Symbols of the rest, bytes for example, that are used if no subwords spell it."""

    @property
    def longest(self) -> int:
        """The most symbols that it takes."""
        return len(self.ids) + max(len(self.rest), len(self.rest_ids))


@dataclass(frozen=True)
class Spelling:
    """A way in which a phrase may stand in an output."""

    ids: list[int]
    begins_word: bool
    """Whether no word may go on before it."""
    ends_word: bool
    """Whether no word may go on after it."""


@dataclass(frozen=True)
class Required:
    """A phrase that an output must hold."""

    spellings: list[Spelling]
    """Any of these."""
    times: int
    """How often, besides those that are part of another phrase."""
    exactly: bool
    """Whether it may not come more often."""

    @property
    def longest(self) -> int:
        """The most symbols that it takes."""
        return self.times * max(len(spelling.ids) for spelling in self.spellings)


@dataclass(frozen=True)
class Source:
    """One input of a search."""

    number: int
    """Returned with the result."""
    ids: list[int]
    """Subwords without `</s>`, at least one."""
    cap: int
    """Most symbols of an output, `</s>` counted."""
    words: int = 0
    """Leaves that its tree must have, fewer than `cap`; only a parser's search uses it."""
    prefix: Prefix | None = None
    """How its outputs must begin; only a translator's search uses it."""
    required: Sequence[Required] = ()
    """What its outputs must hold; only a translator's search uses it."""


class SourceQueue(Protocol):
    """Where an engine gets its sources; any thread may ask."""

    def take(self, tokens: int, wait: bool) -> list[Source]:
        """Removes sources whose padded size, count × (longest + 1), is at most `tokens`; long ones first.

        With `wait`, blocks until there is a source and returns at least one; [] ends the search. Without it, [] means
        that no source that fits is there now.
        """


class Engine(Protocol):
    """Searches for the best outputs of sources."""

    def search(self, queue: SourceQueue, n_best: int) -> Generator[tuple[int, list[Hypothesis]], None, None]:
        """Yields (number, hypotheses best first) for each source of the queue, in the order in which they are done.

        Waits for the queue only when all that it took is done. The caller closes the generator to end the search early.
        An engine runs one search after another.
        """

    def sample(self, queue: SourceQueue, count: int) -> Generator[tuple[int, list[Hypothesis]], None, None]:
        """Does as `search` does, but yields `count` hypotheses that are drawn at random, in the order of the draws."""


class Pool:
    """Sources that wait for an engine, sorted by length."""

    def __init__(self, sources: Iterable[Source] = ()) -> None:
        self._sources: list[Source] = []  # the longest last
        self.tokens = 0
        """Of all sources, `</s>` counted and padding not."""
        self.add(sources)

    def __len__(self) -> int:
        return len(self._sources)

    def add(self, sources: Iterable[Source]) -> None:
        """Adds sources."""
        self._sources += sources
        self._sources.sort(key=lambda source: (len(source.ids), -source.number))
        self.tokens = sum(len(source.ids) + 1 for source in self._sources)

    def take(self, tokens: int, at_least: int) -> list[Source]:
        """Removes the longest ones: as many as fit into `tokens` when padded, but `at_least` so many, if there are."""
        if not self._sources:
            return []
        count = max(tokens // (len(self._sources[-1].ids) + 1), at_least)
        first = max(0, len(self._sources) - count)
        taken = self._sources[first:][::-1]
        del self._sources[first:]
        self.tokens -= sum(len(source.ids) + 1 for source in taken)
        return taken
