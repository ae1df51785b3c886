"""Messages and progress on stderr: plain lines, and on a terminal a display that is redrawn.

All commands look alike because all of them write through this module. Text is in the terminal's own colour; of its
sixteen colours only magenta is used, which is as readable on white as on black.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Protocol

from nmt.system.errors import printable

if TYPE_CHECKING:
    from rich.console import Console as RichConsole
    from rich.console import Group

PLAIN_SECONDS = 60.0  # between two lines about the progress of the same work, in logs
REDRAWS = 5  # per second
NARROWEST, GAP = 10, "  "  # cells of a progress bar; what stands between the parts of a line
BAR = "magenta"  # as readable on white as on black


class Advance(Protocol):
    """A function that advances the progress of some work."""

    def __call__(self, more: int, figures: str | None = None, left: float | None = None) -> None:
        """Count `more` as done; `figures` and `left` stay as they were if they are None.

        `figures` are parts with two spaces between them, the most important first: where the terminal is narrow, the
        last are left out. `left` is the time in seconds that the rest will take, if the caller knows it better than
        by the mean speed so far.
        """
        ...


def unseen(more: int, figures: str | None = None, left: float | None = None) -> None:
    """Do nothing: the `Advance` of work whose progress is not shown."""


def clock(seconds: float) -> str:
    """Format a duration: 45s, 12m, 3h05m, 2d04h."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f}s"
    if minutes < 60:
        return f"{minutes}m"
    if minutes < 48 * 60:
        return f"{minutes // 60}h{minutes % 60:02}m"
    return f"{minutes // 1440}d{minutes % 1440 // 60:02}h"


def can_redraw() -> bool:
    """Return whether stderr is a terminal that can redraw lines, and not a log of CI."""
    watched = os.environ.get("CI", "").lower() in ("", "0", "false")
    return sys.stderr.isatty() and watched and os.environ.get("TERM") not in ("dumb", "unknown")


class Console:
    """Messages and progress on stderr, unless `quiet`; `live` if lines there can be redrawn."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self.live = not quiet and can_redraw()
        self._terminal: RichConsole | None = None  # set while the display is on the screen
        self._pinned: Sequence[tuple[str, str]] = ()

    def say(self, text: str) -> None:
        """Write one line, with control characters escaped."""
        if self.quiet:
            return
        text = printable(text)
        try:
            if self._terminal is not None:  # the terminal wraps the line, so that it is copied as one
                self._terminal.print(text, markup=False, highlight=False, soft_wrap=True)
            else:
                print(text, file=sys.stderr, flush=True)
        except OSError:  # the terminal is gone, or the disk of the log is full; the work goes on
            self.quiet = True

    def pin(self, rows: Sequence[tuple[str, str]]) -> None:
        """Show labelled texts above the progress line, each cut to one line, until the next call; not in logs."""
        self._pinned = [(label, printable(text)) for label, text in rows]

    @contextmanager
    def progress(
        self, task: str, total: int | None, unit: str, done: int = 0, every: float | None = PLAIN_SECONDS
    ) -> Iterator[Advance]:
        """Show the progress of some work, from `done` to `total`, which is None if the end is not known.

        On a terminal, a line is redrawn and disappears at the end; in logs, a plain line is written each `every`
        seconds, or none.
        """
        work = Work(task, total, unit, done)
        if not (self.live or self.quiet or every is None):
            work.say, work.every = self.say, every
        with self._displayed(work) if self.live else nullcontext():
            yield work.advance

    @contextmanager
    def _displayed(self, work: Work) -> Iterator[None]:
        from rich.console import Console as RichConsole
        from rich.live import Live

        terminal = RichConsole(stderr=True, force_terminal=True, force_interactive=True, emoji=False)
        live = Live(
            console=terminal,
            get_renderable=lambda: self._drawn(work, terminal.width - 1),  # some wrap after their last column
            refresh_per_second=REDRAWS,
            transient=True,
            redirect_stdout=False,  # what is written there is a result, and goes where stdout goes
        )
        try:
            live.start()  # hides the cursor, and may be interrupted after that
            self._terminal = terminal
            yield
        finally:
            self._terminal = None
            with suppress(OSError):  # the terminal is gone, which is no error of the work
                live.stop()

    def _drawn(self, work: Work, width: int) -> Group:
        """Lay out the pinned rows and the progress line, each in one line of the terminal."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        rows, line = (Table.grid(padding=(0, len(GAP), 0, 0), expand=True) for _ in range(2))
        rows.width = line.width = width
        rows.add_column(style="bold", no_wrap=True)
        for label, text in self._pinned:
            rows.add_row(label, Text(text, no_wrap=True, overflow="ellipsis"))
        line.add_column(style="bold", no_wrap=True)
        line.add_column(ratio=1, width=NARROWEST)
        line.add_column(no_wrap=True)
        line.add_column()  # cut if the terminal is narrow
        line.add_column(no_wrap=True)
        bar = ProgressBar(work.total, work.done, complete_style=BAR, finished_style=BAR, pulse_style=BAR)
        figures = Text(GAP.join(work.measures()), no_wrap=True, overflow="ellipsis")
        line.add_row(work.task, bar, Text(work.count()), figures, Text(GAP.join(work.time())))
        return Group(rows, line)


class Work:
    """Work in progress: how much is done, its speed, and the time left."""

    def __init__(self, task: str, total: int | None, unit: str, done: int = 0) -> None:
        self.task, self.total, self.done = task, total, done
        self._unit, self._first, self._began = unit, done, time.monotonic()
        self.say: Callable[[str], None] | None = None
        """A function that is called with a line of progress each `every` seconds"""
        self.every, self._said = PLAIN_SECONDS, self._began
        self._figures: list[str] | None = None
        self._end: float | None = None  # by the caller's estimate

    def advance(self, more: int, figures: str | None = None, left: float | None = None) -> None:
        """Count `more` as done, as `Advance` does."""
        now = time.monotonic()
        self.done += more
        if figures is not None:
            self._figures = figures.split(GAP) if figures else []
        if left is not None:
            self._end = now + left
        if self.say and now >= self._said + self.every:
            self.say(self.plain())
            self._said = now

    def plain(self) -> str:
        """Format the progress as a line of a log."""
        return GAP.join([self.task, self.count(), *self.measures(), *self.time()])

    def count(self) -> str:
        """Format how much is done, and of how much."""
        if self.total is None:
            return f"{self.done:,} {self._unit}"
        total = f"{self.total:,}"
        return f"{self.done:>{len(total)},}/{total} {self._unit}"  # padded, so that the bar keeps its length

    def measures(self) -> list[str]:
        """Return the caller's figures, else the speed if it is at least 10 per second."""
        if self._figures is not None:
            return self._figures
        speed = (self.done - self._first) / max(time.monotonic() - self._began, 1e-9)
        return [f"{speed:,.0f} {self._unit}/s"] if speed >= 10 else []

    def time(self) -> list[str]:
        """Return the time left as far as it is known; without a known end, the time taken."""
        now, did = time.monotonic(), self.done - self._first
        if self._end is not None:
            return [f"{clock(max(self._end - now, 0))} left"]
        if self.total is None:
            return [f"{clock(now - self._began)} so far"]
        return [f"{clock((now - self._began) / did * max(self.total - self.done, 0))} left"] if did else []
