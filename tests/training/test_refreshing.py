"""The report of a run while it is trained: refreshed by a process that may fail, hang or die, and cost little."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from reverse_task import BARE, metrics, sets
from said import Lines

from nmt.errors import Interrupted, UserError
from nmt.files import _host
from nmt.report import writing
from nmt.training import refreshing as module
from nmt.training.loop import Loop
from nmt.training.refreshing import Page

SMALL = sets(
    "model={layers: 1, d_model: 16, d_ff: 16, heads: 2, dropout: 0.1}",
    "training={batch_tokens: 500, warmup: 20, updates: 8, log_updates: 4, valid_beam: 1}",
)
OPEN = Page.open  # which conftest.py replaces for other tests

ANSWER = """\
import json, os, sys, time
count = 0
def answer(problem):
    print(json.dumps({"seconds": 0.25 if count > 1 else 0.75, "problem": problem}), flush=True)
for line in sys.stdin:
    count += 1
    open(os.path.join(sys.argv[1], "report.html"), "w").write(str(count))
"""
WRITES = ANSWER + "    answer(None)\n"
FAILS = ANSWER + "    answer('the disk is full; free some space')\n"
DIES = ANSWER + "    os._exit(3)\n"
HANGS = ANSWER + "    time.sleep(600)\n"


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Lets pages be written by a process that runs this program."""

    def serve(program: str) -> None:
        monkeypatch.setattr(Page, "open", OPEN)
        monkeypatch.setattr(module, "COMMAND", (sys.executable, "-S", "-c", program))

    return serve


def test_a_process_that_is_ended_leaves_no_part_of_a_page(tmp_path: Path, served: Any) -> None:
    part = f".report.html@{_host()}-"
    served(HANGS.replace('"report.html")', f'"{part}" + str(os.getpid()) + ".tmp")'))
    page = Page(tmp_path, Lines())
    page.open()
    while not list(tmp_path.iterdir()):
        time.sleep(0.01)
    page.close()
    assert list(tmp_path.iterdir()) == []


def settled(page: Page) -> None:
    """Waits for all answers."""
    page._listen(60.0)


def test_the_page_is_refreshed_as_often_as_the_time_of_training_allows(tmp_path: Path, served: Any) -> None:
    served(WRITES)
    console = Lines()
    page = Page(tmp_path, console)

    def count() -> int:
        settled(page)
        return int((tmp_path / "report.html").read_text())

    page.open()
    assert count() == 1
    assert page.seconds == 0.75
    page.check(1e9)
    assert count() == 1  # nothing is new
    page.refresh()
    page.check(74.0)  # 0.75 s are more than 1% of it
    assert count() == 1
    page.check(75.0)
    assert count() == 2
    page.refresh()
    page.check(149.0)  # it would be 1.25 s, and 1.5 s with the page at the end
    assert count() == 2
    page.check(151.0, elsewhere=0.5)
    assert count() == 2
    page.check(151.0)
    assert count() == 3
    page.check(1e9)
    assert count() == 3
    page.finish()  # whatever it takes
    assert (tmp_path / "report.html").read_text() == "4"
    assert page.seconds == 1.5
    assert console.said == [f"report: {tmp_path / 'report.html'}"]


@pytest.mark.parametrize(
    ("program", "problem"),
    [(FAILS, "the disk is full; free some space"), (DIES, "the process that writes it ended"),
     (HANGS, "it takes longer than 1 s"), ("print('{\"secon", "the process that writes it ended")],
)  # fmt: skip
def test_what_fails_is_told_once(
    tmp_path: Path, served: Any, monkeypatch: pytest.MonkeyPatch, program: str, problem: str
) -> None:
    if program == HANGS:
        monkeypatch.setattr(module, "PATIENCE", 1.0)
    served(program)
    console = Lines()
    page = Page(tmp_path, console)
    page.open()
    for _ in range(3):
        page.refresh()
        page.check(1e9)
    page.finish()
    page.finish()
    assert console.said == [f"{tmp_path / 'report.html'} is not written, and training goes on: {problem}"]


def test_a_process_that_cannot_start_is_told(tmp_path: Path, served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    served(WRITES)
    monkeypatch.setattr(module, "COMMAND", (str(tmp_path / "no-such-program"),))
    console = Lines()
    page = Page(tmp_path, console)
    page.open()
    page.refresh()
    page.check(1e9)
    page.finish()
    assert [line for line in console.said if "cannot be started: No such file" in line] == console.said != []


def test_a_run_writes_its_page_at_its_beginning_and_at_its_end(train: Any, task: Path, served: Any) -> None:
    served(WRITES)
    said = train("training.checkpoint_updates=4")
    assert int((task / "ckpts/report.html").read_text()) == 2
    assert said.count("report: ckpts/report.html\n") == 1
    rows = [row for row in metrics(task / "ckpts") if "report_seconds" in row]
    assert [row["step"] for row in rows] == [4, 8, 8]
    assert sum(row["report_seconds"] for row in rows) > 1.0  # what it said: 0.75 s and then 0.25 s
    assert rows[0]["seconds"] < rows[1]["seconds"] < rows[2]["seconds"]
    assert rows[0]["tokens"] < rows[1]["tokens"] == rows[2]["tokens"]


def test_a_quiet_run_writes_its_page_too(train: Any, task: Path, served: Any, nmt: Any) -> None:
    served(WRITES)
    done = nmt("train", "recipe.yaml", *SMALL, *sets(*BARE), "--device", "cpu", "--quiet")
    assert (done.code, done.err) == (0, "")
    assert (task / "ckpts/report.html").exists()


def test_a_run_goes_on_whatever_becomes_of_its_page(train: Any, task: Path, served: Any) -> None:
    for program in (FAILS, DIES):
        served(program)
        said = train("training.checkpoint_updates=4", *BARE, out=f"run{len(program)}")
        assert said.count("is not written, and training goes on: ") == 1
        assert "finished: 8 of 8 updates" in said


def test_a_run_may_do_without_its_page(train: Any, task: Path, served: Any) -> None:
    served(WRITES)
    train("training.report=false", *BARE)
    assert not (task / "ckpts/report.html").exists()


@pytest.mark.parametrize("error", [Interrupted("stopped", signal.SIGINT), UserError("it diverged", "lower the rate")])
def test_a_stopped_run_writes_its_page_and_a_failed_one_does_not(
    train: Any, task: Path, served: Any, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    served(WRITES)

    def run(self: Loop, *arguments: object) -> None:
        while not (task / "ckpts/report.html").exists():
            time.sleep(0.01)
        raise error

    monkeypatch.setattr(Loop, "run", run)
    is_stopped = isinstance(error, Interrupted)
    train(*BARE, code=128 + signal.SIGINT if is_stopped else 1)
    assert ("report_seconds" in (task / "ckpts/metrics.jsonl").read_text()) == is_stopped


# --- the process itself -------------------------------------------------------------------------------------


def test_without_its_packages_training_says_once_what_is_missing(
    train: Any, task: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Page, "open", OPEN)
    (tmp_path / "without").mkdir()
    (tmp_path / "without/sitecustomize.py").write_text("import sys; sys.modules['bokeh'] = None")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'without'}{os.pathsep}{os.environ['PYTHONPATH']}")
    said = train("training.checkpoint_updates=4", *BARE)
    assert said.count("report.html is not written, and training goes on: ") == 1
    assert "the package bokeh, which is not installed; pip install 'nmt-paper-toolkit[report]'" in said
    assert "finished: 8 of 8 updates" in said
    assert not (task / "ckpts/report.html").exists()


def test_a_fault_in_the_page_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(records: object, path: object) -> None:
        raise ZeroDivisionError("1/0")

    monkeypatch.setattr(writing, "read_run", lambda out: None)
    monkeypatch.setattr(writing, "write_page", fault)
    assert writing.attempt(tmp_path) == "ZeroDivisionError: 1/0"
    monkeypatch.undo()
    assert "holds no run; name the directory of a run" in str(writing.attempt(tmp_path))


def test_the_process_ends_with_the_one_that_asks(tmp_path: Path) -> None:
    """The fixture of all tests sees to it that none is left."""
    program = (
        "import os, signal; from pathlib import Path\n"
        "from nmt.console import Console; from nmt.training.refreshing import Page\n"
        "page = Page(Path('.'), Console(quiet=True)); page.open(); page._listen(60)\n"
        "print(page._process.poll(), flush=True); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "None\n"), done.stderr


def test_nothing_but_answers_is_on_stdout_whatever_libraries_print(tmp_path: Path) -> None:
    program = """
import os, sys
from pathlib import Path
from nmt.report import writing
def noisy(out):
    os.write(1, b"from C\\n")
    print("from Python")
writing.attempt = noisy
writing.serve(Path())
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["problem"] is None
        process.stdin.close()
        assert process.stdout.read() == b""
