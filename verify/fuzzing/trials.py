"""Tries a target in this process until its CPU time is up, by hypothesis or by atheris."""

from __future__ import annotations

import hashlib
import math
import mmap
import os
import random
import signal
import struct
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
from hypothesis import HealthCheck, Phase

import nmt
from nmt.system.errors import printable

if TYPE_CHECKING:
    from target import Target

PATIENCE = 10.0  # seconds of CPU time that an input may take
ROUND = 2000  # inputs that hypothesis draws from one seed; it remembers all of a round
LONGEST = 4096  # bytes of an input that atheris makes
SEEDS = 64  # inputs that atheris begins with
SHOWN = 400  # characters of an error that are reported

OWN = (os.path.dirname(nmt.__file__), os.path.dirname(__file__))  # where to look for the cause of an error
HEAD = struct.Struct("=qqdq")  # inputs, accepted ones, when the newest began, or 0, and its size
ROOM = 1 << 22  # bytes for that input


class TimeIsUp(BaseException):
    """The CPU time of a target is used."""


class TooSlow(Exception):
    """An input takes longer than `PATIENCE`."""


class Board:
    """What a process tells the one that watches it, in memory that both share."""

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, HEAD.size + ROOM)
        self.inputs = self.accepted = 0

    def begin(self, content: bytes) -> None:
        """Note the input that comes next."""
        kept = content[:ROOM]
        self._map[HEAD.size : HEAD.size + len(kept)] = kept
        self._write(time.monotonic(), len(kept))

    def end(self, accepted: bool) -> None:
        """Count that input."""
        self.inputs, self.accepted = self.inputs + 1, self.accepted + accepted
        self._write(0.0, 0)

    def _write(self, began: float, size: int) -> None:
        self._map[: HEAD.size] = HEAD.pack(self.inputs, self.accepted, began, size)

    def read(self) -> tuple[int, int, float, bytes]:
        """How many inputs there were, how many were accepted, when the newest began, or 0, and that input."""
        inputs, accepted, began, size = HEAD.unpack(self._map[: HEAD.size])
        return inputs, accepted, began, self._map[HEAD.size : HEAD.size + size]


class Trial:
    """One target, tried in this process until its time is up."""

    def __init__(self, target: Target, board: Board, seconds: float, folder: Path) -> None:
        self.target, self._board, self._folder = target, board, folder
        self._seconds, self._until = seconds, math.inf
        self._known: set[str] = set()
        self._failed: tuple[bytes, str, str] | None = None  # an input, where it failed, and the message
        signal.signal(signal.SIGPROF, _too_slow)

    def attempt(self, value: Any) -> None:
        """Try one input; raises TimeIsUp, or what the target raises unless that is known."""
        if math.isinf(self._until):  # an engine may take long to begin; the first input is always tried
            self._until = time.process_time() + self._seconds
        elif time.process_time() > self._until:
            self._save()
            raise TimeIsUp
        content = self.target.write(value)
        self._board.begin(content)
        accepted = False
        try:
            signal.setitimer(signal.ITIMER_PROF, PATIENCE)
            accepted = self.target.run(value)
        except Exception as error:
            if (place := place_of(error)) not in self._known:
                self._failed = content, place, str(error)
                raise
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            self._board.end(accepted)

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Save the last input that raised an unknown error, and go on."""
        try:
            yield
        except Exception:
            if self._failed is None:
                raise  # it is none of the target's
            self._save()

    def _save(self) -> None:
        if self._failed is not None:
            content, place, message = self._failed
            self._known.add(place)
            self._failed = None
            save(self.target, content, place, message, self._folder)


def _too_slow(number: int, frame: object) -> None:
    raise TooSlow(f"one input takes more than {PATIENCE:g} s")


def place_of(error: Exception) -> str:
    """The kind of an error and where it was raised: what inputs with the same cause have in common."""
    frames = traceback.extract_tb(error.__traceback__)[1:]  # the first one is where it was caught
    own = [frame for frame in frames if frame.filename.startswith(OWN)] or frames
    file = "/".join(Path(own[-1].filename).parts[-2:])
    return f"{type(error).__name__} in {file}:{own[-1].lineno}, {own[-1].name}"


def save(target: Target, content: bytes, place: str, message: str, folder: Path) -> None:
    """Write an input and, beside it, what is wrong."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{target.name}-{hashlib.sha256(place.encode()).hexdigest()[:8]}.input"
    path.write_bytes(content)
    problem = f"{target.name}: {place}: {printable(message)[:SHOWN]}"
    path.with_suffix(".problem").write_text(problem, errors="backslashreplace")
    print(f"found: {problem!a}", flush=True)


# --- engines -----------------------------------------------------------------------------------------------------


def by_hypothesis(trial: Trial, seed: int, corpus: Path) -> None:
    """Try what atheris kept, so that what it reached is measured, then draw from the grammar; ends by TimeIsUp."""
    one = _one_input(trial)
    for path in sorted(corpus.glob("*")):
        with trial.saving():
            one(path.read_bytes())
    while True:
        seed += 1
        with trial.saving():
            drawn(trial.target, trial.attempt, seed, ROUND)()


def drawn(target: Target, attempt: Callable[[Any], None], seed: int, examples: int) -> Callable[[], None]:
    """What tries so many inputs that are drawn by hypothesis."""
    test = hypothesis.given(target.inputs)(lambda value: attempt(value))
    test = hypothesis.settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )(test)
    return hypothesis.seed(seed)(test)


def _one_input(trial: Trial) -> Callable[[bytes], object]:
    """What tries the input that bytes stand for."""
    if trial.target.in_bytes:
        return trial.attempt
    test: Any = drawn(trial.target, trial.attempt, 0, 1)
    return test.hypothesis.fuzz_one_input  # type: ignore[no-any-return]


def by_atheris(trial: Trial, seed: int, corpus: Path) -> None:
    """Change bytes, guided by the branches that they reach, until the process ends; keeps in `corpus` what led on."""
    import atheris

    one = _one_input(trial)
    corpus.mkdir(parents=True, exist_ok=True)
    for number, content in enumerate(_seeds(trial.target, seed)):
        (corpus / f"seed-{number:03}").write_bytes(content)

    def attempt(content: bytes) -> None:
        try:
            with trial.saving():
                one(content)
        except TimeIsUp:
            os._exit(0)

    limits = [f"-max_len={LONGEST}", "-len_control=0", "-rss_limit_mb=0", "-timeout=100000"]
    limits += ["-keep_seed=1", "-reduce_inputs=0"]  # else what is refused at once, being fast, drives out all others
    options = [f"-seed={seed}", f"-artifact_prefix={corpus.parent}/", *limits]
    atheris.Setup([sys.argv[0], *options, str(corpus)], attempt)
    atheris.Fuzz()


def _seeds(target: Target, seed: int) -> list[bytes]:
    """Inputs from the grammar, or bytes that stand for its choices."""
    draw = random.Random(seed)
    if not target.in_bytes:
        return [draw.randbytes(draw.choice([50, 400, 2000])) for _ in range(SEEDS)]
    found: list[bytes] = []
    drawn(target, found.append, seed, SEEDS)()
    return found


ENGINES = {"atheris": by_atheris, "hypothesis": by_hypothesis}
