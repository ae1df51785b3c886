"""What is said on stderr while work goes on: plain lines, and a display that is redrawn where a person watches.

All commands look alike because all of them speak through this module. Text is in the terminal's own colour; of its
sixteen colours only magenta is used, which is as readable on white as on black.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
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
        """Pinned rows and the progress line as rich draws them, each in one line of the terminal."""
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
        line.add_column()  # the one that is cut where the terminal is narrow
        line.add_column(no_wrap=True)
        bar = ProgressBar(work.total, work.done, complete_style=BAR, finished_style=BAR, pulse_style=BAR)
        figures = Text(GAP.join(work.measures()), no_wrap=True, overflow="ellipsis")
        line.add_row(work.task, bar, Text(work.count()), figures, Text(GAP.join(work.time())))
        return Group(rows, line)


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
        return GAP.join([self.task, self.count(), *self.measures(), *self.time()])

    def count(self) -> str:
        """How much is done, and of how much."""
        count = f"{self.done:,}"
        if self.total is not None:
            total = f"{self.total:,}"
            count = f"{count:>{len(total)}}/{total}"  # so that the bar keeps its length
        return f"{count} {self._unit}"

    def measures(self) -> list[str]:
        """The caller's figures, or else the speed where it is high enough to mean something."""
        if self._figures is not None:
            return self._figures
        speed = (self.done - self._first) / max(time.monotonic() - self._began, 1e-9)
        return [f"{speed:,.0f} {self._unit}/s"] if speed >= 10 else []

    def time(self) -> list[str]:
        """How long the rest will take, as far as that can be known; where no end is known, how long it has taken."""
        now, did = time.monotonic(), self.done - self._first
        if self._end is not None:
            return [f"{clock(max(self._end - now, 0))} left"]
        if self.total is None:
            return [f"{clock(now - self._began)} so far"]
        return [f"{clock((now - self._began) / did * max(self.total - self.done, 0))} left"] if did else []
