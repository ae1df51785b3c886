"""What is said on stderr, and to whom."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from pathlib import Path

import pytest
from reverse_task import BARE, sets, shell

from nmt.console import Console
from nmt.errors import Interrupted


def test_a_line_goes_to_stderr_unless_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    Console().say("one")
    Console(quiet=True).say("two")
    assert capsys.readouterr() == ("", "one\n")


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


def test_a_terminal_shows_how_far_work_is_and_lines_above_it(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
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


def test_a_terminal_that_is_gone_hides_no_reason_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    class HangsUp(Terminal):
        gone = False

        def write(self, text: str) -> int:
            if self.gone:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return super().write(text)

    terminal = HangsUp()
    monkeypatch.setattr(sys, "stderr", terminal)

    def hang_up() -> None:
        with Console().progress("folding", 20, "sheets"):
            terminal.gone = True
            raise Interrupted("hung up", signal.SIGHUP)

    with pytest.raises(Interrupted):
        hang_up()


def test_nobody_is_shown_a_bar_who_cannot_watch_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream, quiet in ((io.StringIO(), False), (Terminal(), True)):
        monkeypatch.setattr(sys, "stderr", stream)
        with Console(quiet).progress("folding", None, "sheets") as advance:
            advance(1, "fast")
        assert stream.getvalue() == ""


def test_a_run_outlives_the_reader_of_its_messages(task: Path) -> None:
    settings = " ".join(sets(*BARE, "training.updates=30", "training.log_updates=1"))
    done = shell(f"nmt train recipe.yaml {settings} 2>&1 >/dev/null | head -3; echo ${{PIPESTATUS[0]}}", task)
    assert done.stdout.endswith(b"\n0\n")
    assert (task / "ckpts/step-00000030").is_dir()
