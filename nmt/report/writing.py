"""Writes the page about a run, as often as the process that trains asks for it: see `nmt/training/refreshing.py`."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

from nmt.errors import UserError
from nmt.report.page import write_page
from nmt.report.record import read_run
from nmt.training.refreshing import PAGE

NICENESS = 10


def write_report(out: Path) -> None:
    """Writes the report.html of the run in a directory; raises UserError where there is no run, or it cannot be."""
    write_page([read_run(out)], out / PAGE)


def attempt(out: Path) -> str | None:
    """Writes the report of a run; returns what went wrong, if something did."""
    try:
        write_report(out)
    except UserError as error:
        return f"{error.message}; {error.hint}"
    except Exception as error:  # a fault of ours, which is no reason to end a run
        return f"{type(error).__name__}: {error}"[:200]
    return None


def serve(out: Path) -> None:
    """Writes the page for every line of stdin, at a low priority, and ends with the process that asks.

    Answers each with a line of JSON on stdout: `seconds` of processor time since the last answer, and the `problem` if
    the page could not be written.
    """
    os.nice(NICENESS)
    requests: SimpleQueue[bytes] = SimpleQueue()
    Thread(target=_listen, args=(requests,), daemon=True).start()
    before, answers = 0.0, os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes to stderr, and nothing but answers goes to the pipe
    while requests.get():
        problem, now = attempt(out), time.process_time()
        print(json.dumps({"seconds": now - before, "problem": problem}), file=answers, flush=True)
        before = now


def _listen(requests: SimpleQueue[bytes]) -> None:
    """Passes on the lines of stdin; at its end, where the process that trains has ended, ends this one at once."""
    for line in sys.stdin.buffer:
        requests.put(line)
    os._exit(0)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
