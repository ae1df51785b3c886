"""pytest in forks of one process that has imported what tests import, except `nmt`: tests begin within a second.

Each fork is kept by a process of its own, which ends whatever the tests have started once they have ended or their time
is over.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Self

import pytest

IMPORTED = (
    *("torch", "torch._dynamo", "datasets.arrow_writer", "safetensors.torch", "sacrebleu", "sentencepiece", "pyarrow"),
    *("pydantic", "rich.console", "click", "yaml", "xxhash", "hypothesis", "huggingface_hub", "ctranslate2"),
)
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTEST_XDIST_WORKER": "gw0"}
"""The last one has the tests look for the runs and data that they share in the folder above their own."""
OPTIONS = ["-q", "-m", "not slow", "--tb=short", "--hypothesis-seed=0", "--strict-markers"]
BECOME_SUBREAPER = 36  # of prctl: processes whose parents have ended become children of this one


class Ended(NamedTuple):
    """How tests have ended."""

    passed: bool
    failed: str = ""
    """The test that failed, or what else has ended them."""
    in_time: bool = True
    """Whether no time limit has ended them."""
    tests: int = 0
    """How many have run."""


def warm_up() -> None:
    """Imports what tests import. Call it before the first fork."""
    os.environ.update(ENVIRONMENT)
    for name in IMPORTED:
        with suppress(ImportError):
            import_module(name)
    gc.freeze()  # collections in forks, of which pytest makes several, need not visit all this


class Stage(NamedTuple):
    """Tests to run in one process."""

    files: list[str]
    selected: Mapping[str, float] | None
    """The tests to run, in this order, up to the first that fails, and the seconds each may take; None: all."""
    seconds: float
    """What all may take"""
    plugin: Callable[[], object] | None = None
    """Makes a further plugin of pytest."""

    @classmethod
    def of(cls, tests: Sequence[str], seconds: Mapping[str, float]) -> Self:
        """Tests that took so many seconds before. They may take far longer, as a machine may be busy."""
        limits = {test: 30 + 6 * seconds[test] for test in tests}
        files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
        return cls(files, limits, 60 + 6 * sum(seconds[test] for test in tests))


class Recorder:
    """A plugin of pytest that selects tests, in the order given, and notes how they end."""

    def __init__(self, limits: Mapping[str, float] | None) -> None:
        self._limits = limits
        self.seconds: dict[str, float] = {}
        self.failed = ""
        self.all_failed: list[str] = []
        self.timed_out = False

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self._limits is None:
            return
        collected = {item.nodeid: item for item in items}
        items[:] = [collected[test] for test in self._limits if test in collected]
        for item in items:
            item.add_marker(pytest.mark.timeout(self._limits[item.nodeid]), append=False)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed = f"collecting {report.nodeid}: {_last_line(report.longreprtext)}"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if report.failed:
            self.all_failed.append(report.nodeid)
            if not self.failed:  # what follows may come of it
                self.timed_out = "Timeout (>" in report.longreprtext
                self.failed = f"{report.nodeid}: {_last_line(report.longreprtext)}"

    def tell(self, path: Path, code: int) -> None:
        """Writes what has happened."""
        if code and not self.failed:
            self.failed = f"pytest ends with {code}"  # 4: a conftest.py cannot be imported
        told = {"code": code, "failed": self.failed, "timed_out": self.timed_out, "tests": self.seconds}
        told["all_failed"] = self.all_failed
        path.write_text(json.dumps(told))


def _last_line(text: str) -> str:
    lines = [line[1:].strip() for line in text.splitlines() if line.startswith("E ")] or text.splitlines()[-1:] or [""]
    return lines[0][:160]


def start(tree: Path, folder: Path, temporary: Path, stages: Sequence[Stage]) -> int:
    """Starts the tests of some stages, one after another, in a folder of their own; gives the process that keeps them.

    Beside `temporary`, where tests write, stands what several processes of tests share. The stages after one that has
    failed are not run. `ended` tells how they ended, once the process has.
    """
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(BECOME_SUBREAPER, 1, 0, 0, 0)
        outcome: Mapping[str, Any] = {"code": 0, "failed": "", "timed_out": False}
        tests: dict[str, float] = {}
        for stage in stages:
            outcome = _keep(tree, folder, temporary, stage)
            tests |= outcome["tests"]
            if outcome["code"]:
                break
        (folder / "told.json").write_text(json.dumps({**outcome, "tests": tests}))
        code = 0
    finally:
        os._exit(code)


def _keep(tree: Path, folder: Path, temporary: Path, stage: Stage) -> Mapping[str, Any]:
    """Runs a stage, and ends all that it leaves running; gives what is in `told.json`."""
    told = folder / "told.json"
    told.unlink(missing_ok=True)
    deadline = time.monotonic() + stage.seconds
    pid = os.fork()
    if pid == 0:
        _become(tree, folder, temporary, stage)
    found = 0
    while not found and time.monotonic() < deadline:
        found, _ = os.waitpid(pid, os.WNOHANG)
        time.sleep(0.02)
    while children := _children():
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(child, 0)
    if not told.exists():
        failed = "pytest has ended" if found else "the time for all tests is over"
        told.write_text(
            json.dumps({"code": 1, "failed": failed, "timed_out": not found, "tests": {}, "all_failed": []})
        )
    outcome: dict[str, Any] = json.loads(told.read_text())
    return outcome


def _children() -> list[int]:
    return [int(pid) for tasks in Path("/proc/self/task").glob("*/children") for pid in tasks.read_text().split()]


def _become(tree: Path, folder: Path, temporary: Path, stage: Stage) -> NoReturn:
    """Turns this fork into pytest."""
    code = 70
    try:
        os.chdir(tree)
        sys.path.insert(0, str(tree))
        other = folder / "tmp"
        shutil.rmtree(other, ignore_errors=True)
        other.mkdir()
        os.environ.update(PYTHONPATH=str(tree), TMPDIR=str(other), HYPOTHESIS_STORAGE_DIRECTORY=str(other))
        os.dup2(os.open(folder / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), 1)
        os.dup2(1, 2)
        recorder = Recorder(stage.selected)
        plugins = [recorder] if stage.plugin is None else [recorder, stage.plugin()]
        options = [*OPTIONS, f"--basetemp={temporary}"]
        if stage.selected is not None:
            options.append("-x")
            sys.dont_write_bytecode = True  # of a mutant
            os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        for name in ("cacheprovider", "xdist", "pytest_cov", "anyio"):
            options += ["-p", f"no:{name}"]
        code = int(pytest.main([*options, *stage.files], plugins=plugins))
        recorder.tell(folder / "told.json", code)
    except BaseException as error:
        os.write(2, f"pytest has ended by {error!r}\n".encode())
    finally:
        os._exit(code)


def ended(folder: Path) -> Ended:
    """How the tests in a folder have ended, once their keeper has."""
    told = json.loads((folder / "told.json").read_text())
    return Ended(told["code"] == 0, told["failed"], not told["timed_out"], len(told["tests"]))
