"""What goes into a search and what comes out: sources, hypotheses, and the interface of engines between them.

An engine knows nothing of lines: it takes sources, longest first, and returns hypotheses in any order. This module
imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from nmt.formats.alignment import Aligned
from nmt.formats.terms import Phrase


@dataclass(frozen=True)
class Hypothesis:
    """One output of a search."""

    ids: list[int]  # symbols without `<s>` and `</s>`
    score: float  # length-normalised log-probability, in nats
    finished: bool  # whether it ended with `</s>` rather than at the cap
    # For each symbol, the index of the source subword with the largest attention weight; empty unless requested. It is
    # None for symbols beyond the model's last position.
    alignment: Sequence[int | None] = field(default_factory=list)
    # Log-probability of each symbol given those before it, in nats; empty or None as in `alignment`.
    log_probabilities: Sequence[float | None] = field(default_factory=list)
    aligned: Aligned | None = None  # its words and those of its source; None unless requested
    text: str | None = None  # its text, where terms were written into it; otherwise that of `ids`
    deleted: Sequence[str] = ()  # placeholders and the like that the model invented

    def log_probability(self, alpha: float) -> float:
        """Return its log-probability with `</s>`, in nats, given the exponent of the score's length penalty."""
        penalty: float = ((5.0 + self.symbols) / 6.0) ** alpha
        return self.score * penalty

    @property
    def symbols(self) -> int:
        """Number of symbols, counting `</s>`."""
        return len(self.ids) + self.finished

    def decoded(self, decode: Callable[[list[int]], str]) -> str:
        """Return its text, by `decode` unless it has one of its own."""
        return decode(self.ids) if self.text is None else self.text


@dataclass(frozen=True)
class Prefix:
    """Forced beginning of an output."""

    ids: list[int]  # first symbols
    rest: str  # rest of the text, which the next subwords spell; the last one may extend beyond it
    rest_ids: list[int]  # fallback encoding of `rest`, for example as bytes, if no subwords spell it
    text: str = ""  # as it was given

    @property
    def longest(self) -> int:
        """Upper bound on its length in symbols."""
        return len(self.ids) + max(len(self.rest), len(self.rest_ids))


@dataclass(frozen=True)
class Source:
    """One input of a search: a line, or a part of one."""

    number: int  # identifier, which the queue gives it and the engine returns with the result
    ids: list[int]  # subwords without `</s>`, at least one
    cap: int  # maximum output length in symbols, including `</s>`
    kinds: Sequence[int] = ()  # of its words, which the leaves of its tree must fit; parsers only
    text: str = ""  # translators only, as all below
    full_stop: str = ""  # what `ids` have behind `text`, since the model knows few sources that lack it
    is_small: bool = False  # whether outputs begin in a small letter, as `text` does: the model always writes a capital
    start: int = 0  # offset of `text` in its line
    first: Sequence[int] = ()  # symbols before its outputs that are no part of their text, length or score
    prefix: Prefix | None = None  # forced beginning of its outputs
    phrases: Sequence[Phrase] = ()  # what its outputs must contain
    aligned: bool = False  # whether its hypotheses need `aligned`
    whole: Source | None = None  # the source as first asked for, if this one is it without its text to keep

    @property
    def words(self) -> int:
        """Number of leaves in its tree, less than `cap`."""
        return len(self.kinds)

    @property
    def end(self) -> int:
        """Offset of the end of `text` in its line."""
        return self.start + len(self.text)


Found = tuple[Source, list[Hypothesis]]


class SourceQueue(Protocol):
    """Thread-safe queue from which an engine takes its sources."""

    def take_sources(self, tokens: int, wait: bool) -> list[Source]:
        """Remove and return sources, longest first, whose padded size, count × (longest + 1), is at most `tokens`.

        With `wait`, block until a source is available and return at least one; [] ends the search. Without `wait`, []
        means that none is available now or none fits.
        """


class Engine(Protocol):
    """Search engine; runs one search at a time."""

    def search(
        self, queue: SourceQueue, n_best: int, sample: bool = False
    ) -> Generator[tuple[int, list[Hypothesis]], None, None]:
        """Yield (number, hypotheses), best first, for each source in the queue; sources may finish in any order.

        With `sample`, they are `n_best` random samples of each source, unsorted.

        There are none if all have probability 0, or none that is a number: a prefix that the vocabulary cannot spell,
        or weights that overflow.

        Block on the queue only when all sources taken so far are done. The caller may end the search early by closing
        the generator.
        """


class Pool:
    """Sources waiting for an engine, sorted by length."""

    def __init__(self, sources: Iterable[Source] = ()) -> None:
        self._sources: list[Source] = []  # longest last
        self.add(sources)

    def __len__(self) -> int:
        return len(self._sources)

    @property
    def tokens(self) -> int:
        """Number of tokens of all sources, including `</s>` but not padding."""
        return sum(len(source.ids) + 1 for source in self._sources)

    def add(self, sources: Iterable[Source]) -> None:
        """Add sources and restore the order."""
        self._sources += sources
        self._sources.sort(key=lambda source: (len(source.ids), -source.number))

    def take_sources(self, tokens: int, at_least: int) -> list[Source]:
        """Remove and return the longest sources: as many as fit in `tokens` when padded, but at least `at_least`."""
        if not self._sources:
            return []
        count = max(tokens // (len(self._sources[-1].ids) + 1), at_least)
        first = max(0, len(self._sources) - count)
        taken = self._sources[first:][::-1]
        del self._sources[first:]
        return taken
