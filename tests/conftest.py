"""Fixtures shared by the whole suite: the command in-process, and one small trained run."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import fork_server
import pytest
import torch
from browser import chromium
from hypothesis import settings
from reverse_task import BARE, sets, shell, write_reverse_task

from nmt import cli
from nmt.system.processes import exclusive

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PATIENCE = 60.0
"""Seconds that what a test has started may take to end after it; on a busy machine it waits long for its turn."""

os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])  # commands run the tree that these tests stand in
os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported: its kernels run on CPUs
settings.load_profile("ci")  # draws by fixed seeds, without a limit of time; make fuzz looks for new inputs
torch.set_num_threads(1)  # on tensors as tiny as those of tests, threads cost more than they save
# A process that a script starts in the background ignores SIGINT, and under nohup SIGHUP; so would all its children.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGTERM, signal.SIG_DFL)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
if sys.platform == "linux":
    fork_server.become_subreaper()
fork_server.serve_subprocess(fork_server.server)
fork_server.let_workers_save()


def children() -> dict[int, str]:
    """The running children of this process: process id to command line; none where there is no Linux /proc.

    Neither multiprocessing's own process nor the server of forks, which outlive a test, is among them.
    """
    processes: set[int] = set()
    for task in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended; its children are then those of another one
            processes.update(map(int, task.read_text().split()))
    if fork_server.server.cache_info().currsize:
        processes.discard(fork_server.server().process)
    found = {}
    for process in processes:
        try:
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
            command = Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
        except OSError:  # the process has ended
            continue
        if state != "Z" and "resource_tracker" not in command:
            found[process] = command
    return found


def started(before: Set[int]) -> dict[int, str]:
    """The running children that were not there before."""
    return {process: command for process, command in children().items() if process not in before}


@pytest.fixture(autouse=True)
def _processes_end_with_their_test() -> Iterator[None]:
    """Kills what a test leaves running, and fails the test. What fixtures of modules and sessions started remains."""
    before = children().keys()
    yield
    deadline = time.monotonic() + PATIENCE
    while (left := started(before)) and time.monotonic() < deadline:
        time.sleep(0.02)
    while still := started(before):  # children of the killed processes come next
        for pid in still:
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    assert not left, f"left running: {left}"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """The one browser of all tests of pages, which open windows of their own; skips them where there is none."""
    with chromium() as found:
        yield found


@pytest.fixture
def new_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that the test starts are new processes, which the server of forks would else be asked for."""
    monkeypatch.setenv("PYTHONHASHSEED", "1")  # counts as soon as Python starts


@pytest.fixture(autouse=True)
def _no_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training in this process starts no other one for its report, except in tests/training/test_report_process.py."""
    monkeypatch.setattr("nmt.training.report_process.Page._start", lambda self: None)


@dataclass(frozen=True)
class Result:
    """The exit code and the output of a command."""

    code: int
    out: bytes
    err: str


@pytest.fixture
def nmt(monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Callable[..., Result]:
    """Runs the command line in this process: `nmt("score", "ref", "hyp", stdin=b"...")`."""

    # nmt translate forks workers only in a process of its own: this one has threads, which a fork would lack.
    monkeypatch.setattr("nmt.system.parallelism.cores", lambda: 1)

    def run(*argv: object, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "argv", ["nmt", *map(str, argv)])
        capfdbinary.readouterr()
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        try:
            with tempfile.TemporaryFile() as file:
                file.write(stdin)
                file.seek(0)
                monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(file))
                with pytest.raises(SystemExit) as exit_info:
                    cli.main()
        finally:
            for number, handler in handlers.items():  # children would inherit what this process ignores
                signal.signal(number, handler)
        captured = capfdbinary.readouterr()
        code = exit_info.value.code
        assert isinstance(code, int)
        return Result(code, captured.out, captured.err.decode())

    return run


@pytest.fixture(params=[0, 1, 4])
def gpus(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """A machine with so many GPUs."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: request.param > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: request.param)
    return int(request.param)


def made_once(temporary: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """A folder that `make` fills once for all processes that run tests."""
    root = temporary.getbasetemp()
    folder = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / name
    with exclusive(folder.with_suffix(".lock"), name, print, wait=True):
        if not folder.with_suffix(".made").exists():
            shutil.rmtree(folder, ignore_errors=True)  # of a process that was interrupted
            folder.mkdir()
            make(folder)
            folder.with_suffix(".made").touch()
    return folder


@pytest.fixture(scope="session")
def prepared_task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reverse task with its data prepared; tests must not change it."""

    def make(folder: Path) -> None:
        write_reverse_task(folder)
        bare = " ".join(f"'{part}'" for part in sets(*BARE))
        done = shell(f"nmt preprocess recipe.yaml && nmt preprocess recipe.yaml {bare}", folder)
        assert done.returncode == 0, done.stderr.decode()

    return made_once(tmp_path_factory, "prepared", make)


@pytest.fixture
def task(prepared_task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the reverse task, data prepared, as the working directory."""
    shutil.copytree(prepared_task, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def reverse_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which `nmt train recipe.yaml` and `nmt average ckpts` were run; tests must not change it."""

    def make(folder: Path) -> None:
        write_reverse_task(folder)
        done = shell("nmt train recipe.yaml && nmt average ckpts", folder)
        assert done.returncode == 0, done.stderr.decode()
        (folder / "train.log").write_bytes(done.stderr)

    return made_once(tmp_path_factory, "reverse", make)


@pytest.fixture
def runs(reverse_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a copy of a run, beside its data; the working directory."""
    (tmp_path / "data").symlink_to(reverse_run / "data")
    shutil.copytree(reverse_run / "ckpts", tmp_path / "a")
    monkeypatch.chdir(tmp_path)
    return tmp_path
