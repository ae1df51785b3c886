"""Queue between the input and an engine: lines are read ahead, split into parts and returned in order.

A thread reads lines as they arrive and splits them into parts. An engine takes a window's parts as sources, longest
first, and returns hypotheses in any order. This module knows no model or task, and imports no torch.
"""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from nmt.decoding.engine import Hypothesis, Pool, Prefix, Source
from nmt.text.markup import TAGS, Markup
from nmt.text.terms import Phrase, Terms

# Lines per window, which are sorted together: few at first, for low latency. A long line counts as several.
FIRST_WINDOW, LARGEST_WINDOW, SUBWORDS_OF_A_LINE = 64, 2048, 64
IN_FLIGHT = 3 * LARGEST_WINDOW  # upper bound on lines read but not yet returned
PATIENCE = 0.05  # seconds to wait for slow input before releasing an incomplete window
END = object()  # sentinel: no more lines


@dataclass(frozen=True)
class Request:
    """Input line with constraints on its translation."""

    text: str
    prefix: str = ""  # forced beginning of the translation
    terms: Terms | None = None  # terms for this line; by default the translator's
    markup: Markup | None = None  # the line with its tags, if `text` is one without them

    def __post_init__(self) -> None:
        """Raise TypeError unless both texts are str; None is the usual mistake."""
        for given in (self.text, self.prefix):
            if not isinstance(given, str):
                raise TypeError(f"a line must be str, not {type(given).__name__}")

    @classmethod
    def of(cls, line: str | Request) -> Request:
        """Return a line as a request, which it may be already."""
        return line if isinstance(line, Request) else cls(line)

    def without_tags(self, tags: re.Pattern[str] = TAGS) -> Request:
        """Return the request with the tags taken out of its text, to be put into the translation."""
        markup = Markup(self.text, tags)
        return replace(self, text=markup.text, markup=markup)


@dataclass(frozen=True)
class Part:
    """A line, or a piece of a split line, encoded for a search."""

    ids: list[int]  # subwords without `</s>`: at least one, at most decoding.max_source
    words: int = 0  # number of leaves in its tree; parsers only
    kinds: Sequence[int] = ()  # of its words, which leaves must fit; parsers only
    start: int = 0  # offset of `text` in the line; translators only, as all below
    text: str = ""
    prefix: Prefix | None = None  # forced beginning of its output
    phrases: Sequence[Phrase] = ()  # what its output must contain
    aligned: bool = False  # whether its hypotheses need `aligned`

    @property
    def end(self) -> int:
        """Offset of the end of `text` in the line."""
        return self.start + len(self.text)

    @property
    def longest(self) -> int:
        """Length that determines the output's cap: its subwords, or the prefix if it may take more."""
        return max(len(self.ids), self.prefix.longest if self.prefix else 0)


class Line:
    """Line that has been read but not yet returned."""

    def __init__(self, text: str, parts: list[Part], markup: Markup | None = None) -> None:
        self.text, self.parts, self.markup = text, parts, markup
        # Hypotheses of each part, best first; empty until the part has been searched.
        self.hypotheses: list[list[Hypothesis]] = [[] for _ in parts]
        self.missing = len(parts)  # number of parts not yet searched
        self.weight = 1 + sum(len(part.ids) for part in parts) // SUBWORDS_OF_A_LINE

    @property
    def best(self) -> list[tuple[Part, Hypothesis]]:
        """Parts with their best hypotheses, or first samples."""
        return [(part, found[0]) for part, found in zip(self.parts, self.hypotheses, strict=True)]


class ReadAhead:
    """`SourceQueue` over a stream of lines, which a thread reads and splits ahead of the engine, window by window.

    A window is released when full, so that fast input is batched the same way in every run. Once a window has waited
    for input longer than PATIENCE, lines are released immediately until a window fills up again.
    """

    def __init__(
        self, lines: Iterable[str | Request], split: Callable[[Request], list[Part]], cap: Callable[[int], int]
    ) -> None:
        """Start reading; `split` returns a line's parts, `cap` the maximum output length by input length."""
        self._split, self._cap = split, cap
        self._lines: deque[Line] = deque()  # read but not yet returned, in order
        self._load = 0  # total weight of `_lines`
        self._searching: dict[int, tuple[Line, int]] = {}  # source number to line and part index
        self._numbers = count()
        self._windows: deque[Pool] = deque()
        self._size = FIRST_WINDOW  # target weight of the window being filled
        self._filled = 0  # weight of the lines in that window
        self._filling: list[Source] = []
        self._patience = PATIENCE
        self._asked: float | None = None  # when the thread began to wait for input; None if not waiting
        self._ended = self._closed = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        threading.Thread(target=self._read, args=(iter(lines),), name="read-ahead", daemon=True).start()

    def take(self, tokens: int, wait: bool) -> list[Source]:
        """Remove and return sources, as in `SourceQueue`; with `wait`, also return [] when a line is ready."""
        with self._changed:
            while not self._closed:
                if wait and self._is_due():
                    return []
                if self._release_late():
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
        """Store a source's hypotheses, best first; return its line."""
        with self._changed:
            line, part = self._searching.pop(number)
            line.hypotheses[part] = hypotheses
            line.missing -= 1
        return line

    def due(self) -> list[Line]:
        """Remove and return the finished lines that precede the first unfinished one."""
        found = []
        with self._changed:
            while self._is_due():
                found.append(self._lines.popleft())
                self._load -= found[-1].weight
            self._changed.notify_all()
        return found

    def wait(self) -> bool:
        """Between searches, wait for sources or for lines that need no search.

        Return False once all lines have been returned. Re-raise an error from reading them.
        """
        with self._changed:
            waiting = len(self._filling) + sum(map(len, self._windows))
            assert len(self._searching) == waiting, "the engine ended its search before all sources taken were done"
            while not (self._is_due() or self._windows or self._ended):
                if not self._release_late():
                    self._changed.wait(self._patience_left() if self._filled else None)
            over = self._ended and not self._lines
        if over and self._error is not None:
            raise self._error
        return not over

    def close(self) -> None:
        """Stop the thread; if it is waiting for input, it stops at the next line."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._ended or self._asked is not None)

    def _is_due(self) -> bool:
        """Return whether the first line is finished; blank lines finish when their window is released.

        Returning blank lines one at a time would make the two threads take turns.
        """
        return self._load > self._filled and self._lines[0].missing == 0

    def _patience_left(self) -> float:
        """Return the seconds left before an incomplete window is released."""
        waiting = 0.0 if self._asked is None else time.monotonic() - self._asked
        return self._patience - waiting

    def _release_late(self) -> bool:
        """Release an incomplete window if it has waited too long; return whether it has."""
        late = self._filled > 0 and self._patience_left() <= 0.0
        if late:
            self._patience = 0.0
            self._release()
        return late

    def _release(self) -> None:
        if self._filling:
            self._windows.append(Pool(self._filling))
        self._filling, self._filled = [], 0
        self._changed.notify_all()

    # --- reader thread

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
                request = Request.of(line)
                self._add(Line(request.text, self._split(request), request.markup))
        except BaseException as error:
            self._error = error
        with self._changed:
            self._ended = True
            self._release()

    def _wait_for_room(self) -> bool:
        """Wait until IN_FLIGHT allows the whole current window, then time the next wait; return False if closed."""
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
                text = part.text if part.phrases or part.aligned else ""  # else no engine needs it
                told = part.prefix, text, part.phrases, part.aligned, part.kinds
                self._filling.append(Source(number, part.ids, cap, part.words, *told))
            self._lines.append(line)
            self._load += line.weight
            self._filled += line.weight
            if self._filled >= self._size:
                self._size = min(4 * self._size, LARGEST_WINDOW)
                self._patience = PATIENCE
                self._release()
