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
    """For each symbol, the index of the source subword with the largest attention weight; empty if not asked for."""
    log_probabilities: list[float] = field(default_factory=list)
    """Of each symbol given those before it, in nats; empty if not asked for."""
    kept_from_repeating: bool = False
    """Whether `decoding.no_repeat` forbade the most probable symbol at some step."""


@dataclass(frozen=True)
class Prefix:
    """How an output begins."""

    ids: list[int]
    """The first symbols."""
    rest: str
    """Text that the next subwords spell; the last of them may go on beyond it."""
    rest_ids: list[int]
    """Symbols of `rest`, bytes for example, used if no subwords spell it."""

    @property
    def longest(self) -> int:
        """Return the most symbols that it takes."""
        return len(self.ids) + max(len(self.rest), len(self.rest_ids))


@dataclass(frozen=True)
class Spelling:
    """One way to write a phrase in an output."""

    ids: list[int]
    begins_word: bool
    """Whether a word must begin at its first symbol."""
    ends_word: bool
    """Whether a word must end at its last symbol."""


@dataclass(frozen=True)
class Required:
    """A phrase that an output must contain."""

    spellings: list[Spelling]
    """Any of these counts."""
    times: int
    """Number of occurrences, besides those inside other phrases."""
    exactly: bool
    """Whether more occurrences are forbidden."""

    @property
    def longest(self) -> int:
        """Return the most symbols that its occurrences take."""
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
    """Number of leaves of its tree, less than `cap`; used by parsers only."""
    prefix: Prefix | None = None
    """How its outputs must begin; used by translators only."""
    required: Sequence[Required] = ()
    """What its outputs must contain; used by translators only."""


class SourceQueue(Protocol):
    """Where an engine gets its sources; any thread may call it."""

    def take(self, tokens: int, wait: bool) -> list[Source]:
        """Remove and return sources, long ones first, whose padded size, count × (longest + 1), is at most `tokens`.

        With `wait`, block until there is a source and return at least one; [] ends the search. Without it, [] means
        that no source fits now.
        """


class Engine(Protocol):
    """Searches for the best outputs of sources. It runs one search after another."""

    def search(self, queue: SourceQueue, n_best: int) -> Generator[tuple[int, list[Hypothesis]], None, None]:
        """Yield (number, hypotheses best first) for each source of the queue, in any order.

        Wait for the queue only when all sources taken are done. The caller closes the generator to end the search
        early.
        """

    def sample(self, queue: SourceQueue, count: int) -> Generator[tuple[int, list[Hypothesis]], None, None]:
        """Do as `search` does, but yield `count` hypotheses drawn at random, in the order of the draws."""


class Pool:
    """Sources that wait for an engine, sorted by length."""

    def __init__(self, sources: Iterable[Source] = ()) -> None:
        self._sources: list[Source] = []  # longest last
        self.add(sources)

    def __len__(self) -> int:
        return len(self._sources)

    @property
    def tokens(self) -> int:
        """Return the size of all sources, `</s>` counted and padding not."""
        return sum(len(source.ids) + 1 for source in self._sources)

    def add(self, sources: Iterable[Source]) -> None:
        """Add sources."""
        self._sources += sources
        self._sources.sort(key=lambda source: (len(source.ids), -source.number))

    def take(self, tokens: int, at_least: int) -> list[Source]:
        """Remove and return the longest sources: as many as fit into `tokens` when padded, or `at_least` so many."""
        if not self._sources:
            return []
        count = max(tokens // (len(self._sources[-1].ids) + 1), at_least)
        first = max(0, len(self._sources) - count)
        taken = self._sources[first:][::-1]
        del self._sources[first:]
        return taken
