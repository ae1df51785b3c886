"""What is said on stderr, and to whom."""

from __future__ import annotations

import io
import re
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from reverse_task import BARE, sets, shell
from rich.cells import cell_len

from nmt.system.console import Console, Work, figure, shown


def test_work_goes_on_when_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Gone())
    console = Console()
    console.say("lost")
    assert console.quiet
    console.say("not even tried")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def watched(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal in place of stderr that somebody watches, whatever the machine that runs the tests sets."""
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    for name in ("CI", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    return terminal


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time in seconds, which stands still unless a test changes it."""
    now = [1000.0]
    monkeypatch.setattr("nmt.system.console.time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_a_terminal_shows_how_far_work_is_and_lines_above_it(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = watched(monkeypatch)
    console = Console()
    with console.progress("folding", 20, "sheets", done=5) as advance:
        advance(3)
        advance(1, "2 a minute [s]")
        console.say("a word")
        advance(1)
    shown = terminal.getvalue()
    assert "a word" in shown
    last = shown[shown.rindex("folding") :]
    assert "10/20" in last
    assert "sheets" in last
    assert "2 a minute [s]" in last  # figures stay until there are others
    console.say("after")
    assert terminal.getvalue().endswith("after\n")


def test_a_terminal_breaks_lines_between_words_and_colours_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = watched(monkeypatch)
    monkeypatch.setattr("nmt.system.console.width_of", lambda stream: 30)
    signature = "nrefs:1|bs:1000|seed:12345|case:mixed"
    assert shown(f"  {signature}", terminal) == "  nrefs:1|bs:1000|seed:12345|\n    case:mixed"
    assert (
        shown("  next    nmt average runs/de-en/ckpts", terminal) == "  next    nmt average\n          runs/de-en/ckpts"
    )
    assert shown("error: a name", terminal) == "\x1b[1;31merror:\x1b[0m a name"
    assert shown("saved", terminal, best=True) == "\x1b[1;32msaved\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert shown("error: a\x1bname", terminal) == "error: a\\x1bname"
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert shown("hint: a name", terminal, best=True) == "hint: a name"
    assert shown("error: " + "word " * 20, io.StringIO(), best=True) == "error: " + "word " * 20


def frames(written: str) -> list[str]:
    """What a terminal was told to show, line by line, without the codes that colour and clear."""
    return [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", line) for line in re.split(r"[\r\n]+", written)]


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_the_display_fits_the_terminal_and_uses_its_width(
    width: int, monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    terminal = watched(monkeypatch)
    monkeypatch.setenv("COLUMNS", str(width))
    console = Console()
    console.pin([("source", "a dog " * 50), ("ours", "日本" * 60), ("reference", "short\x1b[2J")])
    with console.progress("training", 100_000, "updates", done=40_000) as advance:
        clock[0] += 10
        advance(10_000, "loss 3.214  12,345 tok/s  ppl 24.88  lr 5.12e-04", 700.0)
    shown = frames(terminal.getvalue())
    assert max(map(cell_len, shown)) < width
    source, ours, reference, line = [row for row in shown if row][-4:]
    assert source.startswith("source     a dog")
    assert ours.endswith("…")
    assert reference.startswith("reference  short\\x")  # what a corpus holds cannot clear the screen
    if width >= 80:
        assert len(line) == width - 1
        assert re.match(r"training  ━+[╸╺]━* +50,000/100,000", line)
        assert line.endswith("  12m left")
    assert ("updates  loss 3.214" in line, "  12,345 tok/s  " in line) == (width >= 80, width == 200)


def test_the_cursor_comes_back_and_the_display_disappears(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = watched(monkeypatch)
    with suppress(KeyboardInterrupt), Console().progress("folding", 20, "sheets"):
        raise KeyboardInterrupt
    hidden, shown = terminal.getvalue().rindex("\x1b[?25l"), terminal.getvalue().rindex("\x1b[?25h")
    assert hidden < shown
    assert terminal.getvalue().endswith("\x1b[2K")  # the line is cleared


@pytest.mark.parametrize("variables", [{"TERM": "dumb"}, {"CI": "true"}])
def test_a_terminal_that_cannot_redraw_gets_plain_lines(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    terminal = watched(monkeypatch)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    console = Console()
    assert not console.live
    with console.progress("folding", 20, "sheets"):
        console.say("a word")
    assert terminal.getvalue() == "a word\n"


def test_a_log_gets_a_line_a_minute_and_no_more(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    with Console().progress("folding", 12_000, "sheets") as advance:
        for _ in range(6):
            clock[0] += 25
            advance(1000)
    with Console().progress("pressing", None, "sheets", done=1) as advance:
        clock[0] += 60
        advance(1, "2 a minute")
    assert log.getvalue() == (
        "folding   3,000/12,000 sheets  40 sheets/s  4m left\n"
        "folding   6,000/12,000 sheets  40 sheets/s  2m left\n"
        "pressing  2 sheets  2 a minute  60s so far\n"
    )


def test_what_is_left_is_what_the_caller_knows_or_else_follows_from_the_speed(clock: list[float]) -> None:
    work = Work("folding", 20, "sheets", done=5)
    assert work.plain() == "folding   5/20 sheets"
    clock[0] += 10
    work.advance(5)
    assert work.plain() == "folding  10/20 sheets  20s left"
    work.advance(0, left=45)
    clock[0] += 5
    assert work.plain() == "folding  10/20 sheets  40s left"


def test_a_bar_without_a_total_is_one_of_time(clock: list[float]) -> None:
    work = Work("training", None, "updates", done=40)
    assert work.bar() == (None, 40)
    clock[0] += 10
    work.advance(1, left=30)
    clock[0] += 5
    assert work.bar() == (40, 15)
    assert work.plain() == "training  41 updates  25s left"


def test_a_run_outlives_the_reader_of_its_messages(task: Path) -> None:
    settings = " ".join(sets(*BARE, "training.updates=30", "training.log_updates=1"))
    done = shell(f"nmt train recipe.yaml {settings} 2>&1 >/dev/null | head -3; echo ${{PIPESTATUS[0]}}", task)
    assert done.stdout.endswith(b"\n0\n")
    assert (task / "ckpts/step-00000030").is_dir()


@pytest.mark.parametrize(
    ("value", "text"), [(2.5, "2.50"), (1e6, "1.00e+06"), (9.9e299, "9.90e+299"), (1.01e304, "above 1e+300")]
)
def test_a_figure_beyond_what_is_measured_is_not_shown_as_one(value: float, text: str) -> None:
    assert figure(value) == text
