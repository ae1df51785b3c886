"""What a command says to somebody who has to type its input, at a terminal of its own."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

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
        person.sees(b"2 sentences, ")
        assert process.wait(60) == 0
    assert b"\x1b" not in person.shown  # no progress line between what is typed and what is answered
