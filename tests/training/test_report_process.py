"""The report of a run while it is trained: refreshed by a process that may fail, hang or die, and cost little."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from reverse_task import BARE, small
from said import Lines

from nmt.report import page as writing
from nmt.system.errors import Interrupted, UserError
from nmt.training import report_process as module
from nmt.training.report_process import Page
from nmt.training.run import Run

SMALL = small("updates: 8, log_updates: 4, valid_beam: 1")

START = Page._start  # which conftest.py replaces for other tests

WRITES = """\
import json, os, sys, time
from multiprocessing.connection import Connection
page = os.path.join(sys.argv[1], "report.html")
count = int(open(page).read()) + 1 if os.path.exists(page) else 1
open(page, "w").write(str(count))
problem = None
print("a foreign line, of which there may be megabytes" * 100_000)
Connection(0).send_bytes(json.dumps(problem).encode())
os._exit(3)
"""
FAILS = WRITES.replace("= None", "= 'the disk is full; free some space'")
DIES = WRITES.replace("Connection(0)", "os._exit(3); Connection(0)")
CUTS_SHORT = WRITES.replace("Connection(0)", "os.write(0, bytes([0, 0, 1, 0, 5])); os._exit(0); Connection(0)")
BABBLES = WRITES.replace("json.dumps(problem)", "str(problem)")
HANGS = WRITES.replace("Connection(0)", "time.sleep(600); Connection(0)")


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Lets pages be written by a process that runs this program."""

    def serve(program: str) -> None:
        monkeypatch.setattr(Page, "_start", START)
        call = [sys.executable, "-S", "-c", program]
        monkeypatch.setattr("nmt.system.processes.command", lambda name, out: [*call, out])

    return serve


def test_a_process_that_is_ended_leaves_no_part_of_a_page(tmp_path: Path, served: Any) -> None:
    part = f".report.html@{os.uname().nodename}-"
    served(HANGS.replace('"report.html"', f'"{part}" + str(os.getpid()) + ".tmp"'))
    page = Page(tmp_path, Lines())
    page.refresh()
    page.check()
    while not list(tmp_path.iterdir()):
        time.sleep(0.01)
    page.close()
    assert list(tmp_path.iterdir()) == []


def test_a_page_is_started_when_there_is_something_new_and_no_other_is_being_written(
    tmp_path: Path, served: Any
) -> None:
    served(WRITES.replace("problem =", "time.sleep(1); problem ="))
    console = Lines()
    page = Page(tmp_path, console)

    def count() -> int:
        assert page._is_free(60.0)
        return int((tmp_path / "report.html").read_text())

    page.check()
    assert not (tmp_path / "report.html").exists()  # nothing is new
    page.refresh()
    for _ in range(5):
        page.check()
        page.refresh()  # while the first one is written
    assert count() == 1
    page.check()
    page.check()
    assert count() == 2
    page.check()
    assert count() == 2
    page.refresh()
    page.check()
    page.finish()  # waits for that page, and for the last one
    assert (tmp_path / "report.html").read_text() == "4"
    assert console.said == [f"report: {tmp_path / 'report.html'}"]


@pytest.mark.parametrize(
    ("program", "problem"),
    [(FAILS, "the disk is full; free some space"), (DIES, "the process that writes it died"),
     (CUTS_SHORT, "the process that writes it died"), (BABBLES, "the process that writes it died"),
     (HANGS, "it takes longer than 1 s")],
)  # fmt: skip
def test_what_fails_is_told_once(
    tmp_path: Path, served: Any, monkeypatch: pytest.MonkeyPatch, program: str, problem: str
) -> None:
    if program == HANGS:
        monkeypatch.setattr(module, "PATIENCE", 1.0)
    served(program)
    console = Lines()
    page = Page(tmp_path, console)
    for _ in range(3):
        page.refresh()
        page.check()
    page.finish()
    page.finish()
    assert console.said == [f"{tmp_path / 'report.html'} was not written, but training continues: {problem}"]


def test_a_run_writes_its_page_at_its_beginning_and_at_its_end(train: Any, task: Path, served: Any) -> None:
    served(WRITES)
    said = train("training.checkpoint_updates=4")
    assert int((task / "ckpts/report.html").read_text()) >= 2
    assert said.count("report: ckpts/report.html\n") == 1
    train("training.report=false", *BARE, out="without")
    assert not (task / "without/report.html").exists()


@pytest.mark.parametrize("error", [Interrupted("stopped", signal.SIGINT), UserError("it diverged", "lower the rate")])
def test_a_stopped_run_writes_its_page_and_a_failed_one_does_not(
    train: Any, task: Path, served: Any, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    served(WRITES)

    def updates(self: Run, *arguments: object) -> None:
        while not (task / "ckpts/report.html").exists():
            time.sleep(0.01)
        raise error

    monkeypatch.setattr(Run, "_make_updates", updates)
    is_stopped = isinstance(error, Interrupted)
    train(*BARE, code=128 + signal.SIGINT if is_stopped else 1)
    assert (int((task / "ckpts/report.html").read_text()) > 1) == is_stopped


def test_a_fault_in_the_page_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(records: object, path: object) -> None:
        raise ZeroDivisionError("1/0")

    monkeypatch.setattr(writing, "read_run", lambda out: None)
    monkeypatch.setattr(writing, "write_page", fault)
    assert writing.attempt(tmp_path) == "ZeroDivisionError: 1/0"
    monkeypatch.undo()
    assert "holds no run; name the directory of a run" in str(writing.attempt(tmp_path))
