"""The queue between an input and an engine: lines are read ahead, split into parts, and given out in order.

A thread reads lines as they come and splits them into parts. An engine takes the parts of a window as sources, long
ones first, and returns hypotheses in any order. This module knows no model and no task, and imports no torch.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from nmt.decoding.engine import Hypothesis, Pool, Prefix, Required, Source
from nmt.text.terms import Phrase, Terms

# Lines sorted together: few at first, for an early answer. A very long line counts as several.
FIRST_WINDOW, LARGEST_WINDOW, SUBWORDS_OF_A_LINE = 64, 2048, 64
IN_FLIGHT = 3 * LARGEST_WINDOW  # most lines that are read and not yet given out
PATIENCE = 0.05  # seconds to wait for a slow input before an incomplete window is handed out
END = object()  # marks the end of an iterator


@dataclass(frozen=True)
class Request:
    """An input line, with constraints on its translation."""

    text: str
    prefix: str = ""
    """How the translation begins."""
    terms: Terms | None = None
    """Terms of this line; by default those of the translator."""

    def __post_init__(self) -> None:
        """Raise TypeError for anything but text, above all for None."""
        for given in (self.text, self.prefix):
            if not isinstance(given, str):
                raise TypeError(f"a line must be str, not {type(given).__name__}")


@dataclass(frozen=True)
class Part:
    """A line, or a piece of a split one, encoded for a search."""

    ids: list[int]
    """Subwords without `</s>`, from 1 to decoding.max_source of them."""
    words: int = 0
    """Number of leaves of its tree; used by parsers only."""
    space: str = ""
    """Whitespace between it and the next part of the line."""
    prefix: Prefix | None = None
    """How its output must begin."""
    phrases: Sequence[Phrase] = ()
    """What its output must contain."""
    required: Sequence[Required] = ()
    """The same, encoded for the search."""

    @property
    def longest(self) -> int:
        """Return the number of its subwords, or the most that its prefix and phrases take, if these are more."""
        prefix = self.prefix.longest if self.prefix else 0
        return max(len(self.ids), prefix + sum(phrase.longest for phrase in self.required))


class Line:
    """A line that has been read and not yet given out."""

    def __init__(self, text: str, parts: list[Part]) -> None:
        self.text, self.parts = text, parts
        self.hypotheses: list[list[Hypothesis]] = [[] for _ in parts]
        """The hypotheses of each part, best first; empty until the part has been searched."""
        self.missing = len(parts)
        """Number of parts that have not been searched."""
        self.weight = 1 + sum(len(part.ids) for part in parts) // SUBWORDS_OF_A_LINE

    @property
    def best(self) -> list[tuple[Part, Hypothesis]]:
        """Return each part with its best hypothesis, or its first sample."""
        return [(part, found[0]) for part, found in zip(self.parts, self.hypotheses, strict=True)]


class ReadAhead:
    """The `SourceQueue` of a stream of lines: a thread reads and splits them into windows, ahead of the engine.

    A window is handed out when it is full, so that a fast input is searched in the same way in every run. If a window
    has waited for its input longer than PATIENCE, lines are handed out at once until a window is full again.
    """

    def __init__(
        self, lines: Iterable[str | Request], split: Callable[[Request], list[Part]], cap: Callable[[int], int]
    ) -> None:
        """Start reading; `split` returns the parts of a line, and `cap` the most symbols of an output, by length."""
        self._split, self._cap = split, cap
        self._lines: deque[Line] = deque()  # in flight, in order
        self._load = 0  # their weight
        self._searching: dict[int, tuple[Line, int]] = {}  # for each source not yet searched, its line and part
        self._numbers = count()
        self._windows: deque[Pool] = deque()
        self._size = FIRST_WINDOW  # of the window that is being filled
        self._filled = 0  # weight of the lines in it
        self._filling: list[Source] = []
        self._patience = PATIENCE
        self._asked: float | None = None  # when the thread began to wait for the input
        self._ended = self._closed = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        threading.Thread(target=self._read, args=(iter(lines),), name="read-ahead", daemon=True).start()

    def take(self, tokens: int, wait: bool) -> list[Source]:
        """Remove and return sources, as `SourceQueue` says; with `wait`, [] also if a line can be given out."""
        with self._changed:
            while not self._closed:
                if wait and self._is_due():
                    return []
                if self._hand_out_late():
                    continue
                if self._windows:
                    taken = self._windows[0].take(tokens, at_least=int(wait))
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
        """Store the hypotheses of a source, best first; return its line."""
        with self._changed:
            line, part = self._searching.pop(number)
            line.hypotheses[part] = hypotheses
            line.missing -= 1
        return line

    def due(self) -> list[Line]:
        """Remove and return the finished lines before the first unfinished one."""
        found = []
        with self._changed:
            while self._is_due():
                found.append(self._lines.popleft())
                self._load -= found[-1].weight
            self._changed.notify_all()
        return found

    def wait(self) -> bool:
        """Wait, between two searches, for sources or for lines that need no search.

        Return False when all lines have been given out; raise what reading them raised.
        """
        with self._changed:
            waiting = len(self._filling) + sum(map(len, self._windows))
            assert len(self._searching) == waiting, "the engine ended its search before all sources taken were done"
            while not (self._is_due() or self._windows or self._ended):
                if not self._hand_out_late():
                    self._changed.wait(self._patience_left() if self._filled else None)
            over = self._ended and not self._lines
        if over and self._error is not None:
            raise self._error
        return not over

    def close(self) -> None:
        """End the thread; if it is waiting for input, it ends when a line arrives."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._ended or self._asked is not None)

    def _is_due(self) -> bool:
        """Return whether the first line is finished; a blank one is once its window is handed out.

        If blank lines were given out one by one, the two threads would wait for each other all the time.
        """
        return self._load > self._filled and self._lines[0].missing == 0

    def _patience_left(self) -> float:
        """Return the seconds left to wait for the rest of an incomplete window."""
        waiting = 0.0 if self._asked is None else time.monotonic() - self._asked
        return self._patience - waiting

    def _hand_out_late(self) -> bool:
        """Hand out an incomplete window if it has waited too long; return whether it has."""
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
            while self._wait_for_room():
                line: Any = next(lines, END)
                with self._changed:
                    if self._filled:
                        self._patience = self._patience_left()
                    self._asked = None
                if line is END or self._closed:
                    break
                request = line if isinstance(line, Request) else Request(line)
                self._add(Line(request.text, self._split(request)))
        except BaseException as error:
            self._error = error
        with self._changed:
            self._ended = True
            self._hand_out()

    def _wait_for_room(self) -> bool:
        """Wait for room and start the clock; return False if the queue was closed.

        There is room for a whole window when it is begun, unless the last one was handed out late.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._load + self._size - self._filled <= IN_FLIGHT)
            self._asked = time.monotonic()
            return not self._closed

    def _add(self, line: Line) -> None:
        with self._changed:
            if not self._filled:
                self._changed.notify_all()
            for index, part in enumerate(line.parts):
                number = next(self._numbers)
                self._searching[number] = (line, index)
                cap = self._cap(part.longest)
                self._filling.append(Source(number, part.ids, cap, part.words, part.prefix, part.required))
            self._lines.append(line)
            self._load += line.weight
            self._filled += line.weight
            if self._filled >= self._size:
                self._size = min(4 * self._size, LARGEST_WINDOW)
                self._patience = PATIENCE
                self._hand_out()
