"""The queue between lines and an engine, which a thread fills, and the turns of streams at their engine.

`ReadAhead` feeds an engine from a thread that reads lines as they arrive and splits them into parts, and returns the
lines in order. This module imports no torch.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import count, tee
from typing import Any, Self

from nmt.decoding.splitter import clean
from nmt.formats.segments import Segment
from nmt.formats.tags import read_tagged_lines
from nmt.formats.terms import Terms
from nmt.recipe import Model
from nmt.search.sources import Engine, Hypothesis, Pool, Source
from nmt.system.errors import UserError
from nmt.text.tokenizer import Direction

FIRST_WINDOW = 64  # lines per window, which are sorted together: few at first, for low latency
LARGEST_WINDOW = 2048  # lines per window later
SUBWORDS_OF_A_LINE = 64  # a longer line counts as several
IN_FLIGHT = 3 * LARGEST_WINDOW  # upper bound on lines read but not yet returned
PATIENCE = 0.05  # seconds to wait for slow input before releasing an incomplete window
END = object()  # sentinel: no more lines


def most_positions(models: Iterable[Model]) -> int:
    """Return the maximum sequence length, in positions, that all models support; `sys.maxsize` if unlimited."""
    limits = [model.max_positions for model in models if model.positions == "learned"]
    return min(limits, default=sys.maxsize)


# --- lines --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    """Input line with constraints on its translation; lone surrogates, which UTF-8 lacks, become question marks."""

    text: str
    prefix: str = ""  # forced beginning of the translation
    terms: Terms | None = None  # terms for this line; by default the translator's
    segment: Segment | None = None  # the line with its codes, if `text` is one without them
    direction: Direction = (None, None)  # its language and that of the translation, if given
    origin: Any = None  # whatever the caller wants back with the line's result

    def __post_init__(self) -> None:
        """Raise TypeError unless both texts are str; None is the usual mistake."""
        for name in ("text", "prefix"):
            given = getattr(self, name)
            if not isinstance(given, str):
                raise TypeError(f"a line must be str, not {type(given).__name__}")
            object.__setattr__(self, name, clean(given))  # otherwise frozen

    @classmethod
    def of(cls, line: str | Request) -> Request:
        """Return a line as a request, which it may be already."""
        if isinstance(line, Request):
            return line
        return cls(line)

    def of_segment(self, segment: Segment) -> Request:
        """Return the request for a text that was taken apart, whose codes are put into the translation."""
        return replace(self, text=segment.text, segment=segment)


def read_tagged(lines: Iterable[str | Request]) -> Iterator[Request]:
    """Yield lines of HTML or XML without their tags, as `read_tagged_lines` reads them."""
    requests, ahead = tee(map(Request.of, lines))  # a tag may go on over lines, so that some are read ahead
    segments = read_tagged_lines(request.text for request in ahead)
    return map(Request.of_segment, requests, segments)


class SplitLine:
    """Line that has been read and split, with the hypotheses found so far."""

    def __init__(self, request: Request, parts: list[Source]) -> None:
        self.request = request
        self.parts = parts
        # Hypotheses of each part, best first; empty until the part has been searched.
        self.hypotheses: list[list[Hypothesis]] = [[] for _ in parts]
        self.missing = len(parts)  # number of parts not yet searched
        subwords = sum(len(part.ids) for part in parts)
        self.weight = 1 + subwords // SUBWORDS_OF_A_LINE

    def of_rank(self, rank: int) -> list[Hypothesis]:
        """Return one hypothesis of each part."""
        return [found[rank] for found in self.hypotheses]

    @property
    def best(self) -> list[tuple[Source, Hypothesis]]:
        """Parts with their best hypotheses, or first samples."""
        return list(zip(self.parts, self.of_rank(0), strict=True))


class ReadAhead:
    """`SourceQueue` over a stream of lines, which a thread reads and splits ahead of the engine, window by window.

    A window is released when full, so that fast input is batched the same way in every run. Once a window has waited
    for input longer than PATIENCE, lines are released immediately until a window fills up again. As a context manager,
    it reads from entry to exit.
    """

    def __init__(
        self, lines: Iterable[str | Request], split: Callable[[Request], list[Source]], before: int = 0
    ) -> None:
        """`split` returns a line's parts; its errors number the lines after `before` ones that precede them."""
        self._input = iter(lines)
        self._split = split
        self._number = before  # of the last line read
        self._lines: deque[SplitLine] = deque()  # read but not yet returned, in order
        self._load = 0  # total weight of `_lines`
        self._searching: dict[int, tuple[SplitLine, int]] = {}  # source number to line and part index
        self._source_numbers = count()
        self._windows: deque[Pool] = deque()
        self._size = FIRST_WINDOW  # target weight of the window being filled
        self._filled = 0  # weight of the lines in that window
        self._filling: list[Source] = []
        self._patience = PATIENCE  # seconds that the window being filled may still wait for input
        self._asked: float | None = None  # when the thread began to wait for input; None if not waiting
        self._ended = self._closed = False
        self._has_taken = self._pauses = False  # in the current turn
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read, name="read-ahead", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        """Stop the thread; if it is waiting for input, it stops at the next line."""
        self._closed = True
        if not self._thread.is_alive():  # it has ended, or it runs in the process of which this one is a fork
            return
        with self._changed:
            self._changed.notify_all()
            if threading.current_thread() is not self._thread:  # which may collect this as garbage
                self._changed.wait_for(lambda: self._ended or self._asked is not None)

    def begin_turn(self) -> None:
        """Have `take_sources` give sources, once at least before `pause` takes effect: every turn gets somewhere."""
        self._has_taken = self._pauses = False

    def pause(self) -> None:
        """Have `take_sources` give no more sources in this turn, so that the engine ends its search."""
        with self._changed:
            self._pauses = True
            self._changed.notify_all()

    def take_sources(self, tokens: int, wait: bool) -> list[Source]:
        """Remove and return sources, as in `SourceQueue`; with `wait`, also return [] when a line is ready."""
        with self._changed:
            while not (self._closed or (self._pauses and self._has_taken) or (wait and self._is_due())):
                if self._windows:
                    self._has_taken = True
                    taken = self._windows[0].take_sources(tokens, at_least=int(wait))
                    if not self._windows[0]:
                        self._windows.popleft()
                    return taken
                if not self._filling and (self._ended or not wait):
                    break
                self._wait_for_window()
        return []

    def put(self, number: int, hypotheses: list[Hypothesis]) -> SplitLine:
        """Store a source's hypotheses, best first; return its line."""
        with self._changed:
            line, part = self._searching.pop(number)
            line.hypotheses[part] = hypotheses
            line.missing -= 1
        return line

    def due(self) -> list[SplitLine]:
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
                self._wait_for_window()
            over = self._ended and not self._lines
        if over and self._error is not None:
            raise self._error
        return not over

    def _is_due(self) -> bool:
        """Return whether the first line is finished; blank lines finish when their window is released.

        Returning blank lines one at a time would make the two threads take turns. So lines of the window that is being
        filled, the last `_filled` of the load, do not count.
        """
        return self._load > self._filled and self._lines[0].missing == 0

    def _wait_for_window(self) -> None:
        """Wait for a change; release an incomplete window that has waited too long."""
        if not self._filled:
            self._changed.wait()
        elif self._patience_left() <= 0.0:
            self._patience = 0.0
            self._release()
        else:
            self._changed.wait(self._patience_left())

    def _patience_left(self) -> float:
        """Return the seconds left before an incomplete window is released."""
        if self._asked is None:
            return self._patience
        waiting = time.monotonic() - self._asked
        return self._patience - waiting

    def _release(self) -> None:
        if self._filling:
            self._windows.append(Pool(self._filling))
        self._filling = []
        self._filled = 0
        self._changed.notify_all()

    # --- reader thread

    def _read(self) -> None:
        try:
            while self._wait_for_room():
                line: Any = next(self._input, END)
                with self._changed:
                    if self._filled:
                        self._patience = self._patience_left()
                    self._asked = None
                if line is END or self._closed:
                    break
                self._add(Request.of(line))
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

    def _add(self, request: Request) -> None:
        self._number += 1
        try:
            line = SplitLine(request, self._split(request))
        except UserError as error:
            raise UserError(f"line {self._number:,}: {error.message}", error.hint) from None
        with self._changed:
            if not self._filled:
                self._changed.notify_all()
            for index, part in enumerate(line.parts):
                number = next(self._source_numbers)
                self._searching[number] = (line, index)
                self._filling.append(replace(part, number=number))
            self._lines.append(line)
            self._load += line.weight
            self._filled += line.weight
            if self._filled >= self._size:
                self._size = min(4 * self._size, LARGEST_WINDOW)
                self._patience = PATIENCE
                self._release()


# --- turns --------------------------------------------------------------------------------------------------


class _Turn:
    """The search of one stream, which another stream may finish."""

    def __init__(self, steps: Generator[None, None, None], ahead: ReadAhead) -> None:
        self.steps = steps
        self.ahead = ahead
        self._error: Exception | None = None

    def step(self) -> bool:
        """Search on until a source is done; return False at the end. Raise what ended the search, if anything did."""
        if self._error:
            raise self._error
        return next(self.steps, END) is not END

    def finish(self) -> None:
        """Search on until all sources that were taken are done; keep an error for the stream whose turn it is."""
        self.ahead.pause()
        try:
            for _ in self.steps:
                pass
        except Exception as error:
            self._error = error


class Turns:
    """Turns of streams at an engine that runs one search at a time.

    A stream may be suspended amid its search, and its input may come from another stream of the same model. So a stream
    that begins a search first finishes that of another one, which keeps what was found and later begins anew.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # held while a search goes on
        self._turn: _Turn | None = None

    def search(
        self, engine: Engine, ahead: ReadAhead, n_best: int, sample: bool, put: Callable[[int, list[Hypothesis]], None]
    ) -> Generator[None, None, None]:
        """Search with the engine; yield after each source, once `put` has stored its hypotheses.

        The search may end before the queue does, but not before all sources that were taken are done.
        """
        other = self._turn
        if other:
            other.ahead.pause()  # if its stream waits for input amid its search, it leaves the lock
        with self._lock:
            if self._turn:
                self._turn.finish()
            ahead.begin_turn()
            turn = self._turn = _Turn(_stored(engine.search(ahead, n_best, sample), put), ahead)
        try:
            while self._goes_on(turn):
                yield
        finally:
            # The lock is not waited for, since garbage may be collected in any thread. Where it is held, another search
            # goes on, which has finished this one.
            if self._lock.acquire(blocking=False):
                turn.steps.close()
                if self._turn is turn:
                    self._turn = None
                self._lock.release()

    def _goes_on(self, turn: _Turn) -> bool:
        with self._lock:
            return turn.step()


def _stored(
    search: Generator[tuple[int, list[Hypothesis]], None, None], put: Callable[[int, list[Hypothesis]], None]
) -> Generator[None, None, None]:
    with closing(search):
        for number, hypotheses in search:
            put(number, hypotheses)
            yield
