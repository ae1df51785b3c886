"""When the command began, also for the processes that it starts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

BEGAN = "NMT_BEGAN"  # environment variable: the monotonic time, in seconds, at which the command began


def begin(anew: bool = False) -> None:
    """Note when the command began, for this process and its children, unless a parent has done so.

    With `anew`, it begins now: ranks that are started again count only their own time.
    """
    if anew or BEGAN not in os.environ:
        before = 0.0 if anew else time.process_time()  # what Python took to start
        os.environ[BEGAN] = repr(time.monotonic() - before)


def stopwatch() -> Callable[[], float]:
    """Return a clock of the seconds since the command began; in other programs, since this call."""
    began = float(os.environ.get(BEGAN) or time.monotonic())
    return lambda: time.monotonic() - began
