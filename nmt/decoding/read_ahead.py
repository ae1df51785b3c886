"""Lines that are read ahead in windows, split into parts for a search, and given out in order.

A thread reads lines as fast as they come and splits them into parts. An engine takes the parts of a window as sources,
long ones first, and returns hypotheses in any order. This module knows no model and no task, and imports no torch.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeVar

from nmt.decoding.engine import Hypothesis, Pool, Prefix, Required, Source
from nmt.text.terms import Phrase, Terms

# Number of lines that are sorted together: few at first, for an early answer. A very long line counts as several.
FIRST_WINDOW, LARGEST_WINDOW, SUBWORDS_OF_A_LINE = 64, 2048, 64
IN_FLIGHT = 3 * LARGEST_WINDOW  # limit of lines that are read and not yet given out
PATIENCE = 0.05  # seconds to wait for a slow input before a window is handed out that is not full
END = object()  # marks the end of an iterator

Output = TypeVar("Output")
Rest = TypeVar("Rest")


@dataclass(frozen=True)
class Request:
    """A line to translate, and what is asked of its translation."""

    text: str
    prefix: str = ""
    """The translation begins with this."""
    terms: Terms | None = None
    """What must stand in the translation, if it differs from line to line."""

    def __post_init__(self) -> None:
        """Raise TypeError where something else than text was given: above all None, which must not count as the end."""
        for given in (self.text, self.prefix):
            if not isinstance(given, str):
                raise TypeError(f"a line must be str, not {type(given).__name__}")


@dataclass(frozen=True)
class Part:
    """A line, or a piece of one that is too long for one search."""

    ids: list[int]
    """Subwords without `</s>`, from 1 to decoding.max_source of them."""
    words: int = 0
    """Number of leaves of a tree over the part."""
    space: str = ""
    """What stands between it and the next part of the line."""
    prefix: Prefix | None = None
    """How its output must begin."""
    phrases: Sequence[Phrase] = ()
    """What its output must hold."""
    required: Sequence[Required] = ()
    """The same for the search."""

    @property
    def longest(self) -> int:
        """How many subwords it has, or the most of what its output must hold, if these are more."""
        prefix = self.prefix.longest if self.prefix else 0
        return max(len(self.ids), prefix + sum(phrase.longest for phrase in self.required))


class Line:
    """A line that has been read and not yet given out."""

    def __init__(self, text: str, parts: list[Part]) -> None:
        self.text, self.parts = text, parts
        self.hypotheses: list[list[Hypothesis]] = [[] for _ in parts]
        """The hypotheses of each part, best first; empty until the part has been searched"""
        self.missing = len(parts)
        """Number of parts that have not been searched"""
        self.weight = 1 + sum(len(part.ids) for part in parts) // SUBWORDS_OF_A_LINE


@dataclass(frozen=True)
class Wanted:
    """Which outputs of a line are wanted."""

    count: int = 1
    samples: bool = False
    """Whether they are drawn at random. Otherwise they are the best ones, no two alike."""

    def ranks(self, line: Line) -> range:
        """Return the ranks that all parts of a line have; a line without parts has as many as it has outputs."""
        return range(min(map(len, line.hypotheses), default=self.count if self.samples else 1))

    def tokens(self, line: Line) -> int:
        """Count the symbols of all samples of a line, or of its best hypothesis, with `</s>` of each part."""
        counted = [found if self.samples else found[:1] for found in line.hypotheses]
        return sum(len(hypothesis.ids) + hypothesis.finished for part in counted for hypothesis in part)

    def choose(self, found: Iterable[tuple[Output, Rest]]) -> list[tuple[Output, Rest]]:
        """Return the outputs that are wanted of those in order of rank, each with what came with it first.

        Hypotheses of different symbols can be the same text, since there are several ways to split a word into
        subwords.
        """
        if self.samples:
            return list(found)
        kept: dict[Output, Rest] = {}
        for output, rest in found:
            kept.setdefault(output, rest)
            if len(kept) == self.count:
                break
        return list(kept.items())


class ReadAhead:
    """The queue of a stream of lines: a thread reads and splits them into windows, ahead of the engine.

    A window is handed out when it is full, so that a fast input is searched in the same way in every run. Once an
    input has kept its window waiting for PATIENCE, lines are handed out at once until a window is full again.
    """

    def __init__(
        self, lines: Iterable[str | Request], split: Callable[[Request], list[Part]], cap: Callable[[int], int]
    ) -> None:
        """`split` returns the parts of a line, none if it is blank; `cap` the most symbols of an output, by length."""
        self._split, self._cap = split, cap
        self._lines: deque[Line] = deque()  # in flight, in order
        self._load = 0  # their weight
        self._wanted: dict[int, tuple[Line, int]] = {}  # the line of each source, and which part of it
        self._numbers = count()
        self._windows: deque[Pool] = deque()
        self._size = FIRST_WINDOW  # of the window that is being filled
        self._filled = 0  # weight of the lines in it
        self._filling: list[Source] = []
        self._patience = PATIENCE
        self._asked: float | None = None  # when the thread began to wait for the input
        self._taken = 0  # sources that the engine has and did not give back
        self._ended = self._closed = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        threading.Thread(target=self._read, args=(iter(lines),), name="read-ahead", daemon=True).start()

    def take(self, tokens: int, wait: bool) -> list[Source]:
        """See `SourceQueue`."""
        with self._changed:
            while not self._closed:
                if wait and self._is_due():
                    return []
                if self._hand_out_late():
                    continue
                if self._windows:
                    taken = self._windows[0].take(tokens, at_least=int(wait))
                    self._taken += len(taken)
                    if not self._windows[0]:
                        self._windows.popleft()
                    return taken
                if self._filling or (wait and self._filled):
                    self._changed.wait(self._patience_left())
                elif not wait or self._ended:
                    return []
                else:
                    self._changed.wait()
            return []

    def put(self, number: int, hypotheses: list[Hypothesis]) -> Line:
        """Take the hypotheses for a source, best first; returns its line."""
        with self._changed:
            line, part = self._wanted.pop(number)
            line.hypotheses[part] = hypotheses
            line.missing -= 1
            self._taken -= 1
        return line

    def due(self) -> list[Line]:
        """Remove and return the lines that can be given out now."""
        found = []
        with self._changed:
            while self._is_due():
                found.append(self._lines.popleft())
                self._load -= found[-1].weight
            self._changed.notify_all()
        return found

    def wait(self) -> bool:
        """Wait, between two searches, for sources or for lines that can be given out without a search.

        Returns False when all lines have been given out; raises what reading them raised.
        """
        with self._changed:
            assert self._taken == 0, "the engine ended its search before all that it took was done"
            while not (self._is_due() or self._windows or self._ended):
                if not self._hand_out_late():
                    self._changed.wait(self._patience_left() if self._filled else None)
            over = self._ended and not self._lines
        if over and self._error is not None:
            raise self._error
        return not over

    def close(self) -> None:
        """End the thread; if it is waiting for input, it ends when that arrives."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._ended or self._asked is not None)

    def _is_due(self) -> bool:
        """Tell whether the first line is done; a blank one is when its window is handed out.

        If blank lines were given out one by one, the two threads would wait for each other all the time.
        """
        return self._load > self._filled and self._lines[0].missing == 0

    def _patience_left(self) -> float:
        """Return the seconds for which to wait for the rest of a window that holds something."""
        waiting = 0.0 if self._asked is None else time.monotonic() - self._asked
        return self._patience - waiting

    def _hand_out_late(self) -> bool:
        """Hand out what is there if the input has kept it waiting for too long; tells whether it has."""
        late = self._filled > 0 and self._patience_left() <= 0.0
        if late:
            self._patience = 0.0
            self._hand_out()
        return late

    def _hand_out(self) -> None:
        if self._filling:
            self._windows.append(Pool(self._filling))
        self._filling, self._filled = [], 0
        self._changed.notify_all()

    # --- the thread

    def _read(self, lines: Iterator[str | Request]) -> None:
        try:
            while self._begin_to_wait():
                line: Any = next(lines, END)
                self._end_to_wait()
                if line is END or self._closed:
                    break
                request = line if isinstance(line, Request) else Request(line)
                self._add(Line(request.text, self._split(request)))
        except BaseException as error:
            self._error = error
        with self._changed:
            self._ended = True
            self._hand_out()

    def _begin_to_wait(self) -> bool:
        """Wait for room; tells whether another line is needed.

        Room for all of a window is there when it is begun, unless the last one was handed out late, and this one has
        been begun without a question.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._load + self._size - self._filled <= IN_FLIGHT)
            self._asked = time.monotonic()
            return not self._closed

    def _end_to_wait(self) -> None:
        with self._changed:
            if self._filled:
                self._patience = self._patience_left()
            self._asked = None

    def _add(self, line: Line) -> None:
        with self._changed:
            if not self._filled:
                self._changed.notify_all()
            for index, part in enumerate(line.parts):
                number = next(self._numbers)
                self._wanted[number] = (line, index)
                room = self._cap(part.longest)
                self._filling.append(Source(number, part.ids, room, part.words, part.prefix, part.required))
            self._lines.append(line)
            self._load += line.weight
            self._filled += line.weight
            if self._filled >= self._size:
                self._size = min(4 * self._size, LARGEST_WINDOW)
                self._patience = PATIENCE
                self._hand_out()
