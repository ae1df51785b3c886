"""Lines through a command: a bursty writer, a slow reader, and the death of a worker."""

from __future__ import annotations

import fcntl
import itertools
import os
import random
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import IO

from curves import Sample, family, growing, sample
from small_models import drawn, nmt

from nmt.tasks.lines import IN_FLIGHT

WORKERS = 3
SAMPLES = 100  # of each curve
PAUSES, PAUSE = 12, 2.0  # of the reader, and the seconds of each
PIPE = 4096  # bytes that each pipe holds
# Most lines that are sent and not yet read: those that the pipeline has read ahead, as many that are done and wait for
# room in the pipe, and what pipes and the buffers around them hold of lines of at least 4 bytes on the average.
HELD = 2 * IN_FLIGHT + (2 * PIPE + 3 * 8192) // 4
BYTES_A_LINE = 8  # memory may grow by less: the size of one reference that is kept for each line
TOGETHER = 200  # lines that the writer sends at once


@dataclass
class Trial:
    """What came of one trial."""

    curve: list[Sample] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    held: int = 0
    """Most lines that were sent and not yet read, at the end of a pause of the reader"""
    killed_at: int = 0
    """Lines of the output before a worker was killed"""
    seconds: float = 0.0

    def expect(self, holds: bool, otherwise: str) -> None:
        """Note a finding unless something holds."""
        if not holds:
            self.findings.append(otherwise)

    def must_be_flat(self, bytes_each: float) -> None:
        self.findings += growing(self.curve, bytes_each)


class Writer(Thread):
    """Sends lines in bursts of ten thousands, with pauses and single lines between them."""

    def __init__(self, pipe: IO[bytes], lines: Iterator[str], seed: int) -> None:
        super().__init__(daemon=True)
        self._pipe, self._lines, self._draw = pipe, lines, random.Random(seed)
        self.sent = 0
        """Lines"""

    def run(self) -> None:
        try:
            with self._pipe:
                while self._send(self._draw.randint(20_000, 60_000), TOGETHER):
                    time.sleep(self._draw.uniform(0, 1))
                    self._send(50, 1)
        except BrokenPipeError:  # the command has ended
            pass

    def _send(self, count: int, together: int) -> bool:
        """Send so many lines; tells whether there were any."""
        before = self.sent
        while count > 0 and (lines := list(itertools.islice(self._lines, min(count, together)))):
            self._pipe.write("".join(f"{line}\n" for line in lines).encode())
            self._pipe.flush()
            self.sent += len(lines)
            count -= len(lines)
            if together == 1:
                time.sleep(0.002)
        return self.sent > before


class Stream:
    """Lines through a command, which a reader takes when it likes."""

    def __init__(self, command: str, lines: int, seed: int, expected: dict[str, str]) -> None:
        self._lines, self._seed, self._expected = lines, seed, expected
        self._draw, self.trial, self.read = random.Random(seed + 1), Trial(), 0
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        pipe = subprocess.PIPE
        self._process = nmt(command, stdin=pipe, stdout=pipe, stderr=self._stderr)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        for stream in (self._process.stdin, self._process.stdout):
            fcntl.fcntl(stream, fcntl.F_SETPIPE_SZ, PIPE)
        self._writer = Writer(self._process.stdin, drawn(lines, seed), seed)
        self._output = self._process.stdout

    def run(self, kill_at: int | None = None) -> Trial:
        """Read everything; a worker is killed before line `kill_at` is read."""
        began, step = time.monotonic(), self._lines // SAMPLES
        pauses = set(self._draw.sample(range(step, self._lines), PAUSES))
        expected = (self._expected[line] for line in drawn(self._lines, self._seed))
        self._writer.start()
        relatives: list[int] = []
        for line, wanted in zip(self._output, expected, strict=False):
            self.read += 1
            if line.decode() != f"{wanted}\n":
                self.trial.expect(False, f"line {self.read:,} is {line!r} and not {wanted!r}")
                break
            if self.read in pauses:
                time.sleep(PAUSE)
                self.trial.held = max(self.trial.held, self._writer.sent - self.read)
            if self.read % step == 0 and not relatives:
                self.trial.curve.append(sample(self._process.pid, self.read))
            if self.read == kill_at:
                relatives, self.trial.killed_at = kill_worker(self._process.pid, self._draw), self.read
        self._end(relatives)
        self.trial.seconds = time.monotonic() - began
        return self.trial

    def _end(self, relatives: list[int]) -> None:
        """Look at how the command has ended."""
        rest = len(self._output.read()) if not self.trial.findings else 0
        self.trial.expect(not rest, f"{rest} bytes come after the last line")
        if self.trial.findings:
            self._process.kill()
        code = self._process.wait()
        self._stderr.seek(0)
        said = self._stderr.read().decode()
        if relatives:
            check_failure(self.trial, code, said, relatives)
        else:
            self.trial.expect(code == 0, f"ends with {code}: {said[-300:]}")
            self.trial.expect(self.read == self._lines, f"gave {self.read:,} of {self._lines:,} lines")
        self.trial.expect(self.trial.held <= HELD, f"held {self.trial.held:,} lines, more than {HELD:,}")
        self.trial.must_be_flat(BYTES_A_LINE)


def kill_worker(process: int, draw: random.Random) -> list[int]:
    """Kill one of the workers of a process; returns it and all its descendants."""
    relatives = family(process)
    command = Path(f"/proc/{process}/cmdline").read_bytes()
    workers = [pid for pid in relatives[1:] if Path(f"/proc/{pid}/cmdline").read_bytes() == command]
    assert len(workers) == WORKERS, workers
    os.kill(draw.choice(workers), signal.SIGKILL)
    return relatives


def check_failure(trial: Trial, code: int, said: str, relatives: list[int]) -> None:
    """Look at the end of a command after the death of a worker."""
    killed = re.findall(rf"^error: worker \d of {WORKERS} was killed by SIGKILL$", said, re.MULTILINE)
    starts = [line.split(":")[0] for line in said.splitlines()]
    one_each = (starts.count("error"), starts.count("hint"), len(killed)) == (1, 1, 1)
    trial.expect(code == 1 and one_each, f"ends with {code} after the death of a worker: {said[-300:]}")
    deadline = time.monotonic() + 10
    while (left := [pid for pid in relatives if is_alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    trial.expect(not left, f"{len(left)} processes are left")


def is_alive(process: int) -> bool:
    """Whether a process is there that has not ended."""
    try:
        return not re.search(r"^State:\s+[ZX]", Path(f"/proc/{process}/status").read_text(), re.MULTILINE)
    except OSError:
        return False
