"""What is said to somebody who types the input, at a terminal; and what is counted of a search and warned of."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from nmt.commands import streams as counts
from nmt.commands.streams import Statistics
from nmt.decoding.translator import Translation, Translator
from nmt.recipe import Decoding
from nmt.system.errors import UserError
from nmt.text.terms import Phrase

WAITS = b"reading from the terminal: one sentence per line, Ctrl-D to end"
END = b"\x04"


class Typist:
    """A person at the terminal of a command."""

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        self.shown = b""

    def types(self, line: bytes) -> None:
        os.write(self._terminal, line)

    def sees(self, wanted: bytes, seconds: float = 120) -> None:
        """Waits until the terminal has shown it."""
        deadline = time.monotonic() + seconds
        while wanted not in self.shown:
            assert time.monotonic() < deadline, self.shown
            if select.select([self._terminal], [], [], 0.2)[0]:
                self.shown += os.read(self._terminal, 4096)


@contextmanager
def typing(cwd: Path, *command: str, to_terminal: bool = True) -> Iterator[tuple[Typist, subprocess.Popen[bytes]]]:
    """Runs `nmt` with its input from a terminal, and stderr there; stdout too, or into a pipe."""
    terminal, end = pty.openpty()
    output = end if to_terminal else subprocess.PIPE
    environment = {**os.environ, "TERM": "xterm-256color"}
    environment.pop("CI", None)
    line = [sys.executable, "-m", "nmt", *command]
    process = subprocess.Popen(
        line, cwd=cwd, stdin=end, stdout=output, stderr=end, env=environment, start_new_session=True
    )
    os.close(end)
    try:
        yield Typist(terminal), process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
        with suppress(OSError):
            os.close(terminal)


def test_translate_says_what_it_waits_for_and_answers_each_line(reverse_run: Path) -> None:
    with typing(reverse_run, "translate", "--beam", "1") as (person, process):
        person.sees(WAITS + b"\r\n")
        person.types(b"a b c\n")
        person.sees(b"c b a\r\n")
        person.types(b"j i h\n")
        person.sees(b"h i j\r\n")
        person.types(END)
        person.sees(b"2 sentences\r\n")  # and no speed: it would be that of typing
        assert process.wait(60) == 0
    assert b"\x1b" not in person.shown  # no progress line between what is typed and what is answered


# --- what is counted of a search ----------------------------------------------------------------------------


PLAIN = Translation(
    texts=["fox"],
    scores=[-0.125],
    ids=[[1]],
    alignments=[[0]],
    log_probabilities=[[-0.5]],
    source=[7],
    parts=1,
    capped=False,
    unknown=0,
    pairs=[([7], [1])],
    unusual_length=False,
    kept_from_repeating=False,
    missing=[],
    lost=[],
    invented=[],
    deleted=[],
    loop="",
)
BLANK = replace(PLAIN, texts=[""], parts=0)


def test_statistics_know_where_each_problem_was_first(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 10.0
    monkeypatch.setattr(counts.time, "monotonic", lambda: now)
    statistics = Statistics("searching", Translator.warnings(Decoding()))
    assert list(statistics.timed(iter(["a line"]))) == ["a line"]
    now = 12.0
    split, capped, odd = replace(PLAIN, parts=3), replace(PLAIN, capped=True, parts=2), replace(PLAIN, unknown=5)
    empty = replace(PLAIN, texts=[" "], unusual_length=True, missing=[Phrase("fox", ("Fuchs", "Füchsin"), 0)])
    assert empty.complaints == ["missing: fox → Fuchs | Füchsin"]
    changed = replace(PLAIN, lost=["i386", "3"], invented=["i368"], loop="la")
    assert changed.complaints == ["lost: i386, 3; invented: i368; loop: la"]
    for translation in [PLAIN, BLANK, split, capped, odd, odd, empty, changed]:
        statistics.add(translation)
        statistics.searched(1000)
    assert statistics.summary(typed=False) == (
        "8 sentences, 4,000 tokens/s; caps hit 1, inputs split 2, unknown characters 10, empty outputs 1, "
        "unusual lengths 1, missing terms 1, numbers changed 1, loops 1"
    )
    assert Statistics("searching", Translator.warnings(Decoding())).summary(typed=False) == "0 sentences, 0 tokens/s"
    with pytest.raises(UserError) as error:
        statistics.check()
    assert error.value.message == (
        "--strict: caps hit 1 (first in line 4), inputs split 2 (first in line 3), "
        "unknown characters 10 (first in line 5), empty outputs 1 (first in line 7), "
        "unusual lengths 1 (first in line 7), missing terms 1 (first in line 7), "
        "numbers changed 1 (first in line 8), loops 1 (first in line 8)"
    )
