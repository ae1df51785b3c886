"""Writes the page about a run once; the process that trains starts this one: see `nmt/training/reporting.py`."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from nmt.errors import UserError
from nmt.report.page import write_page
from nmt.report.record import read_run
from nmt.training.reporting import PAGE

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


def main(out: Path) -> None:
    """Write the page at a low priority; tell on stdout, in a line of JSON, its processor time and what went wrong."""
    os.nice(NICENESS)
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes to stderr
    problem = attempt(out)
    print(json.dumps({"seconds": time.process_time(), "problem": problem}), file=answer, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
