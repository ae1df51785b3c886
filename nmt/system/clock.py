"""When the command began, also for the processes that it starts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

BEGAN = "NMT_BEGAN"  # environment variable: the monotonic time, in seconds, at which the command began


def begin(anew: bool = False) -> None:
    """Note when this process began, unless its parent has noted when it did; with `anew`, note the present time."""
    if anew or BEGAN not in os.environ:
        before = 0.0 if anew else time.process_time()  # to start Python
        os.environ[BEGAN] = repr(time.monotonic() - before)


def stopwatch() -> Callable[[], float]:
    """Return a clock of the seconds since the command began; in other programs, since this call."""
    began = float(os.environ.get(BEGAN) or time.monotonic())
    return lambda: time.monotonic() - began
