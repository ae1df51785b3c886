"""Messages and progress on stderr: plain lines in logs, a live display on terminals; and logs of JSON lines.

All commands write through this module, which gives them a uniform look. Terminals break lines between words and show
errors, hints and the best checkpoint in colours that are readable on both white and black; files and pipes get plain
lines.
"""

from __future__ import annotations

import errno
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from textwrap import TextWrapper
from typing import IO, TYPE_CHECKING, Any, Protocol

from nmt.system.errors import printable

if TYPE_CHECKING:
    from rich.console import Console as RichConsole
    from rich.console import Group

PLAIN_SECONDS = 60.0  # between progress lines in logs
REDRAWS = 5  # per second
BEYOND = 1e300  # perplexities above it are not measured, but the highest that a float can tell
NARROWEST = 10  # minimum width of a progress bar
GAP = "  "  # separator of a line's parts
BAR = "magenta"
COLOURS = {"error:": "\x1b[1;31m", "hint:": "\x1b[1;35m"}  # bold red and magenta
BEST = "\x1b[1;32m"  # bold green
PLAIN = "\x1b[0m"  # the terminal's default
DUMB = ("dumb", "unknown")  # values of TERM for terminals that show escape sequences as they are


class Advance(Protocol):
    """Callback that reports progress."""

    def __call__(self, more: int, figures: str | None = None, left: float | None = None) -> None:
        """Add `more` to the amount done; None leaves `figures` or `left` unchanged.

        `figures` are statistics to display, separated by two spaces, the most important first: narrow terminals
        truncate them. `left` is the remaining time in seconds, if the caller can estimate it better than by the mean
        speed.
        """
        ...


def unseen(more: int, figures: str | None = None, left: float | None = None) -> None:
    """Ignore progress: a no-op `Advance`."""


def clock(seconds: float) -> str:
    """Format a duration in seconds as 45s, 12m, 3h05m or 2d04h."""
    if seconds < 90:
        return f"{seconds:.0f}s"
    hours, minutes = divmod(round(seconds / 60), 60)
    if hours == 0:
        return f"{minutes}m"
    if hours < 48:
        return f"{hours}h{minutes:02}m"
    return f"{hours // 24}d{hours % 24:02}h"


def figure(value: float) -> str:
    """Format a score with two decimals, in scientific notation from a million on, and no further than `BEYOND`."""
    if value >= BEYOND:
        return f"above {BEYOND:.0e}"
    return f"{value:.2f}" if value < 1e6 else f"{value:.2e}"


def can_redraw() -> bool:
    """Return whether stderr is a terminal that can redraw lines, not a CI log."""
    watched = os.environ.get("CI", "").lower() in ("", "0", "false")
    return sys.stderr.isatty() and watched and os.environ.get("TERM") not in DUMB


def width_of(stream: IO[str]) -> int:
    """Return the width of the terminal behind a stream, in columns; 0 if there is none or it is unknown."""
    with suppress(OSError):
        if stream.isatty():
            return os.get_terminal_size(stream.fileno()).columns
    return 0


def tabulated(rows: Sequence[dict[str, str]], width: int = 0) -> list[str]:
    """Format rows of cells by heading as lines; all columns but the first and the last are right-aligned.

    If a line is wider than `width`, unless that is 0, each cell gets a line of its own.
    """
    lines = _table(rows)
    if 0 < width < max(map(len, lines)):
        lines = _records(rows)
    return lines


def _table(cells: Sequence[dict[str, str]]) -> list[str]:
    """Return a line of headings, and one for each row."""
    rows = [list(cells[0]), *(list(row.values()) for row in cells)]
    first, *widths, _ = (max(map(len, column)) for column in zip(*rows, strict=True))
    lines = []
    for name, *figures, last in rows:
        aligned = GAP.join(map(str.rjust, figures, widths))
        lines.append(f"{name:{first}}{GAP}{aligned}{GAP}{last}".rstrip())
    return lines


def _records(cells: Sequence[dict[str, str]]) -> list[str]:
    """Return each row's first cell and, below it, a line for each of its other cells with their headings."""
    heads = max(map(len, cells[0]))
    lines = []
    for row in cells:
        (_, name), *named = row.items()
        lines.append(name)
        for heading, cell in named:
            lines.append(f"  {heading:{heads}}  {cell}")
    return lines


def has_colours(stream: IO[str]) -> bool:
    """Return whether a stream is a terminal on which colours are wanted."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") not in DUMB


class Wrapper(TextWrapper):
    """A `TextWrapper` that breaks lines only at spaces and after the bars of a metric's signature."""

    # The pattern that TextWrapper uses if it does not break on hyphens
    wordsep_simple_re = re.compile(r"(\s+|(?<=\|))")


def shown(text: str, stream: IO[str], best: bool = False) -> str:
    """Return a line as `stream` shows it: with control characters escaped and, on a terminal, wrapped and coloured.

    Continuation lines are aligned with what follows a label and two spaces. Colours obey NO_COLOR.
    """
    text = printable(text)
    if not stream.isatty():
        return text
    width = width_of(stream)
    if width:
        text = _wrapped(text, width)
    if not has_colours(stream):
        return text
    word = text.partition(" ")[0]
    if word in COLOURS:
        return COLOURS[word] + word + PLAIN + text.removeprefix(word)
    return BEST + text + PLAIN if best else text


def _wrapped(text: str, width: int) -> str:
    """Break a line between words, unless it has none after its label, as a path, or Chinese."""
    label = re.match(r" *(\S.{0,24}?  +)?", text)
    assert label is not None
    if not re.search("[ |]", text[label.end() :]):
        return text
    indent = label.end()
    if label[1] is None:
        indent += 2
    wrapper = Wrapper(width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join(wrapper.wrap(text))


class Console:
    """Writer of messages and progress to stderr, unless `quiet`; `live` if stderr can redraw lines."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self.live = not quiet and can_redraw()
        self._terminal: RichConsole | None = None  # set while the live display is shown
        self._pinned: Sequence[tuple[str, str]] = ()

    def say(self, text: str, best: bool = False) -> None:
        """Write one line, in green if it is about the best checkpoint."""
        if self.quiet:
            return
        text = shown(text, sys.stderr, best)
        try:
            if self._terminal is not None:  # soft-wrapped: rich must neither fold nor crop it
                self._terminal.print(text, markup=False, highlight=False, soft_wrap=True)
            else:
                print(text, file=sys.stderr, flush=True)
        except OSError:  # the terminal is gone or the log's disk is full: carry on without messages
            self.quiet = True

    def pin(self, rows: Sequence[tuple[str, str]]) -> None:
        """Set the labelled texts above the live progress line, each truncated to one line."""
        self._pinned = [(label, printable(text)) for label, text in rows]

    @contextmanager
    def progress(
        self, task: str, total: int | None, unit: str, done: int = 0, every: float | None = PLAIN_SECONDS
    ) -> Iterator[Advance]:
        """Display progress from `done` to `total` (None if unknown) while the block runs; yield the callback.

        On a terminal, a line is redrawn, and erased at the end. In logs, a plain line is written every `every` seconds,
        or never if None.
        """
        work = Work(task, total, unit, done)
        if not self.live:
            if every is not None:
                work.say = self.say
                work.every = every
            yield work.advance
            return
        from rich.console import Console as RichConsole
        from rich.live import Live

        terminal = RichConsole(stderr=True, force_terminal=True, force_interactive=True, emoji=False)
        live = Live(
            console=terminal,
            get_renderable=lambda: self._drawn(work, terminal.width - 1),  # some terminals wrap full lines
            refresh_per_second=REDRAWS,
            transient=True,
            redirect_stdout=False,  # stdout carries results, which the display must not capture
        )
        try:
            live.start()  # inside `try`: it hides the cursor, which must be restored after an interrupt
            self._terminal = terminal
            yield work.advance
        finally:
            self._terminal = None
            with suppress(OSError):  # the terminal may be gone
                live.stop()

    def _drawn(self, work: Work, width: int) -> Group:
        """Render the pinned rows and the progress line, one terminal line each."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        padding = (0, len(GAP), 0, 0)
        rows = Table.grid(padding=padding, expand=True)
        rows.width = width
        rows.add_column(style="bold", no_wrap=True)
        for label, text in self._pinned:
            rows.add_row(label, Text(text, no_wrap=True, overflow="ellipsis"))
        line = Table.grid(padding=padding, expand=True)
        line.width = width
        line.add_column(style="bold", no_wrap=True)
        line.add_column(ratio=1, width=NARROWEST)
        line.add_column(no_wrap=True)
        line.add_column()  # truncated on narrow terminals
        line.add_column(no_wrap=True)
        bar = ProgressBar(*work.bar(), complete_style=BAR, finished_style=BAR, pulse_style=BAR)
        figures = Text(GAP.join(work.measures()), no_wrap=True, overflow="ellipsis")
        line.add_row(work.task, bar, Text(work.count()), figures, Text(GAP.join(work.time())))
        return Group(rows, line)


class Work:
    """State of a task: amount done, speed and remaining time."""

    def __init__(self, task: str, total: int | None, unit: str, done: int = 0) -> None:
        self.task = task
        self.total = total
        self.done = done
        self._unit = unit
        self._first = done
        self._began = time.monotonic()
        self.say: Callable[[str], None] | None = None  # gets a progress line every `every` seconds
        self.every = PLAIN_SECONDS
        self._said = self._began
        self._figures: list[str] | None = None
        self._end: float | None = None  # completion time estimated by the caller

    def advance(self, more: int, figures: str | None = None, left: float | None = None) -> None:
        """Update the progress; this is the task's `Advance`."""
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
        """Format the progress as a log line."""
        return GAP.join([self.task, self.count(), *self.measures(), *self.time()])

    def bar(self) -> tuple[float | None, float]:
        """Return the total, if known, and how much is done; without a total, of the time until the estimated end."""
        if self.total is not None or self._end is None:
            return self.total, self.done
        return self._end - self._began, time.monotonic() - self._began

    def count(self) -> str:
        """Format the amount done as `done/total unit`, or `done unit` without a total."""
        if self.total is None:
            return f"{self.done:,} {self._unit}"
        total = f"{self.total:,}"
        return f"{self.done:>{len(total)},}/{total} {self._unit}"  # padded, to keep the bar's width

    def measures(self) -> list[str]:
        """Return the caller's figures; by default the speed, if at least 10 per second."""
        if self._figures is not None:
            return self._figures
        speed = (self.done - self._first) / max(time.monotonic() - self._began, 1e-9)
        if speed < 10:
            return []
        return [f"{speed:,.0f} {self._unit}/s"]

    def time(self) -> list[str]:
        """Return the time left, if known yet; without a total, the elapsed time."""
        now = time.monotonic()
        if self._end is not None:
            return [f"{clock(max(self._end - now, 0))} left"]
        elapsed = now - self._began
        if self.total is None:
            return [f"{clock(elapsed)} so far"]
        did = self.done - self._first
        if did == 0:
            return []
        left = elapsed / did * max(self.total - self.done, 0)
        return [f"{clock(left)} left"]


class JsonLines:
    """A log of JSON lines. Lines that cannot be written are lost, which is reported once, and no others."""

    def __init__(self, path: Path, say: Callable[[str], None], head: Any = None) -> None:
        """Append to `path`; `say` reports a failure. An empty file gets the line `head` first, unless it is None."""
        self.path = path
        self.head = b"" if head is None else _line(head)
        self._say = say
        self._failed = False

    def append(self, value: Any) -> None:
        """Append a whole line or, if the disk is full for example, nothing."""
        try:
            with self.path.open("ab", buffering=0) as file:
                end = file.tell()
                text = _line(value)
                if end == 0:
                    text = self.head + text
                if file.write(text) < len(text):  # the disk or a quota is full, or the file as large as may be
                    file.truncate(end)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            if not self._failed:
                self._say(f"{self.path}: lines cannot be written, but the run continues: {error.strerror}")
            self._failed = True


def _line(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode(errors="backslashreplace") + b"\n"
