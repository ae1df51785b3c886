"""What is said on stderr while work goes on: plain lines, and a display that is redrawn where a person watches.

All commands look alike because all of them speak through this module. Text is in the terminal's own colour; of its
sixteen colours only magenta is used, which is as readable on white as on black.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Protocol

from nmt.errors import printable

if TYPE_CHECKING:
    from rich.console import Console as RichConsole
    from rich.console import ConsoleOptions
    from rich.text import Text

PLAIN_SECONDS = 60.0  # between two lines about the progress of the same work, in logs
REDRAWS = 5  # per second
NARROWEST, GAP = 10, "  "  # cells of a progress bar; what stands between the parts of a line


class Advance(Protocol):
    """Moves the progress of some work on."""

    def __call__(self, more: int, figures: str | None = None, left: float | None = None) -> None:
        """Counts `more` as done; `figures` and `left` stay as they were if they are None.

        `figures` are parts with two spaces between them, the most important first: where the terminal is narrow, the
        last are left out. `left` is the time in seconds that the rest will take, if the caller knows it better than
        by the mean speed so far.
        """
        ...


def unseen(more: int, figures: str | None = None, left: float | None = None) -> None:
    """The `Advance` of work whose progress is not shown."""


def clock(seconds: float) -> str:
    """A duration as people write it: 45s, 12m, 3h05m, 2d04h."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f}s"
    if minutes < 60:
        return f"{minutes}m"
    if minutes < 48 * 60:
        return f"{minutes // 60}h{minutes % 60:02}m"
    return f"{minutes // 1440}d{minutes % 1440 // 60:02}h"


def can_redraw() -> bool:
    """Whether stderr is a terminal that can redraw lines and that somebody watches: no log, TERM=dumb or CI."""
    watched = os.environ.get("CI", "").lower() in ("", "0", "false")
    return sys.stderr.isatty() and watched and os.environ.get("TERM") not in ("dumb", "unknown")


class Console:
    """Speaks to stderr unless quiet; `live` tells whether it can redraw what it has written there."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self.live = not quiet and can_redraw()
        self._terminal: RichConsole | None = None  # set while the display is on the screen
        self._pinned: Sequence[tuple[str, str]] = ()

    def say(self, text: str) -> None:
        """Writes one line; control characters in it are escaped."""
        if self.quiet:
            return
        text = printable(text)
        try:
            if self._terminal is not None:  # the terminal wraps the line, so that it is copied as one
                self._terminal.print(text, markup=False, highlight=False, soft_wrap=True)
            else:
                print(text, file=sys.stderr, flush=True)
        except OSError:  # the terminal is gone or the disk under a log is full, and the work goes on
            self.quiet = True

    def pin(self, rows: Sequence[tuple[str, str]]) -> None:
        """Shows labelled texts above the progress line until there are others, each cut to one line; not in logs."""
        self._pinned = [(label, printable(text)) for label, text in rows]

    @contextmanager
    def progress(
        self, task: str, total: int | None, unit: str, done: int = 0, every: float | None = PLAIN_SECONDS
    ) -> Iterator[Advance]:
        """Shows the progress of some work, which begins at `done` of `total`; None where the end is not known.

        On a terminal this is a line that is redrawn and disappears at the end; in logs it is a plain line each `every`
        seconds, or none.
        """
        work = Work(task, total, unit, done)
        if self.live:
            with self._displayed(work):
                yield work.advance
        elif self.quiet or every is None:
            yield unseen
        else:
            yield self._logged(work, every)

    def _logged(self, work: Work, every: float) -> Advance:
        due = time.monotonic() + every

        def advance(more: int, figures: str | None = None, left: float | None = None) -> None:
            nonlocal due
            work.advance(more, figures, left)
            if (now := time.monotonic()) >= due:
                self.say(work.plain())
                due = now + every

        return advance

    @contextmanager
    def _displayed(self, work: Work) -> Iterator[None]:
        from rich.console import Console as RichConsole
        from rich.live import Live

        terminal = RichConsole(stderr=True, force_terminal=True, force_interactive=True, emoji=False)
        display = _Display(work, lambda: self._pinned)
        # What is written to stdout is a result, and goes where stdout goes.
        live = Live(display, console=terminal, refresh_per_second=REDRAWS, transient=True, redirect_stdout=False)
        try:
            live.start()  # hides the cursor, and may be interrupted after that
            self._terminal = terminal
            yield
        finally:
            self._terminal = None
            with suppress(OSError):  # the terminal is gone, which is no error of the work
                live.stop()


class Work:
    """Some work in progress: how much is done, how fast it goes, how long the rest will take."""

    def __init__(self, task: str, total: int | None, unit: str, done: int = 0) -> None:
        self.task, self.total, self.done = task, total, done
        self._unit, self._first, self._began = unit, done, time.monotonic()
        self._figures: list[str] | None = None
        self._end: float | None = None  # by the caller's estimate

    def advance(self, more: int, figures: str | None = None, left: float | None = None) -> None:
        """See `Advance`."""
        self.done += more
        if figures is not None:
            self._figures = figures.split(GAP) if figures else []
        if left is not None:
            self._end = time.monotonic() + left

    def plain(self) -> str:
        """The progress as a line of a log."""
        return GAP.join([self.task, self._count(self._unit), *self._measures(), *self._time()])

    def fitted(self, width: int) -> tuple[int, str]:
        """The cells of a bar and the text after it that fit beside the task in a line of `width` cells.

        Where there is little room, the unit is left out, then the last figures, then the bar, which has no cells then.
        There is no bar where no end is known.
        """
        measures, left, taken = self._measures(), self._time(), len(self.task) + len(GAP)
        narrowest = NARROWEST + len(GAP) if self.total else 0
        for unit, count in [(self._unit, len(measures)), *(("", count) for count in range(len(measures), -1, -1))]:
            text = GAP.join([self._count(unit), *measures[:count], *left])
            if (room := width - taken - len(text)) >= narrowest:
                return (room - len(GAP) if self.total else 0), text
        return 0, text

    def _count(self, unit: str) -> str:
        count = f"{self.done:,}"
        if self.total is not None:
            total = f"{self.total:,}"
            count = f"{count:>{len(total)}}/{total}"  # so that the bar keeps its length
        return f"{count} {unit}" if unit else count

    def _measures(self) -> list[str]:
        """The caller's figures, or else the speed where it is high enough to mean something."""
        if self._figures is not None:
            return self._figures
        speed = (self.done - self._first) / max(time.monotonic() - self._began, 1e-9)
        return [f"{speed:,.0f} {self._unit}/s"] if speed >= 10 else []

    def _time(self) -> list[str]:
        """How long the rest will take, as far as that can be known; where no end is known, how long it has taken."""
        now, did = time.monotonic(), self.done - self._first
        if self._end is not None:
            return [f"{clock(max(self._end - now, 0))} left"]
        if self.total is None:
            return [f"{clock(now - self._began)} so far"]
        return [f"{clock((now - self._began) / did * max(self.total - self.done, 0))} left"] if did else []


class _Display:
    """Pinned rows and the progress line as rich draws them, each in one line of the terminal."""

    def __init__(self, work: Work, pinned: Callable[[], Sequence[tuple[str, str]]]) -> None:
        self._work, self._pinned = work, pinned

    def __rich_console__(self, terminal: RichConsole, options: ConsoleOptions) -> Iterator[Text]:
        from rich.text import Text

        work, width = self._work, options.max_width - 1  # some terminals wrap after a character in the last column
        marks = "#-" if options.ascii_only else "━─"
        pinned = self._pinned()
        margin = max((len(label) for label, _ in pinned), default=0)
        rows = [Text.assemble((f"{label:{margin}}", "bold"), GAP, text) for label, text in pinned]
        cells, text = work.fitted(width)
        line = Text.assemble((work.task, "bold"), GAP)
        if cells:
            done = int(cells * min(work.done / work.total, 1)) if work.total else 0
            line.append(marks[0] * done, "magenta").append(marks[1] * (cells - done) + GAP)
        for row in (*rows, line.append(text)):
            row.truncate(width, overflow="crop" if options.ascii_only else "ellipsis")
            row.no_wrap = True
            yield row
