"""What is said on stderr while work goes on: plain lines, and progress bars where a person watches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from nmt.errors import printable


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


class Advance(Protocol):
    """Moves a progress bar on."""

    def __call__(self, more: int, figures: str | None = None) -> None:
        """By so many, with other figures beside it unless None."""
        ...


class Console:
    """Speaks to stderr unless quiet; `live` tells whether stderr is a terminal that can redraw."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self.live = not quiet and sys.stderr.isatty()
        self._say: Callable[[str], None] | None = None  # set while a live display owns the terminal

    def say(self, text: str) -> None:
        """One line for whoever watches; control characters in it are escaped."""
        if self.quiet:
            return
        text = printable(text)
        try:
            if self._say is not None:
                self._say(text)
            else:
                print(text, file=sys.stderr, flush=True)
        except OSError:  # the terminal is gone or the disk under a log is full, and the work goes on
            self.quiet = True

    @contextmanager
    def owned_by(self, say: Callable[[str], None]) -> Iterator[None]:
        """Sends lines through a live display while it is on screen."""
        self._say = say
        try:
            yield
        finally:
            self._say = None

    @contextmanager
    def progress(
        self, task: str, total: int | None, unit: str, done: int = 0, remaining: bool = True
    ) -> Iterator[Advance]:
        """A progress bar on a terminal, nothing elsewhere, which begins at `done` of `total`.

        With `remaining` it says how long the rest will take.
        """
        if not self.live:
            yield lambda more, figures=None: None
            return
        from rich.console import Console as RichConsole
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        terminal = RichConsole(stderr=True)
        columns = [
            TextColumn(task),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn(unit),
            TextColumn("{task.fields[figures]}", markup=False),
            *([TimeRemainingColumn()] if remaining else []),
        ]
        bar = Progress(*columns, console=terminal, transient=True)
        handle = bar.add_task(task, total=total, completed=done, figures="")

        def advance(more: int, figures: str | None = None) -> None:
            if figures is not None:
                bar.update(handle, figures=figures)
            bar.advance(handle, more)

        bar.start()
        try:
            with self.owned_by(lambda text: terminal.print(text, markup=False, highlight=False)):
                yield advance
        finally:
            with suppress(OSError):  # the terminal is gone, which is no error of the work
                bar.stop()
