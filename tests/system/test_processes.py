"""Children import the nmt of their parent and Python's own modules, whatever lies in the working directory."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from nmt import __version__
from nmt.recipe import TokenizerSettings
from nmt.system import processes
from nmt.system.errors import UserError
from nmt.system.processes import SAFE, Child, command, safe_path, wait_for
from nmt.text.tokenizer import Tokenizer

NAMES = "tokenize random numbers copy html json typing signal importlib runpy torch sentencepiece numpy jinja2 nmt"


def shadow(folder: Path) -> None:
    """Writes modules that end whatever imports them."""
    for name in NAMES.split():
        (folder / f"{name}.py").write_text("print('shadowed')\nraise SystemExit(77)\n")


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with modules of others, and a sitecustomize.py that prints."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text("print('a foreign line', flush=True)\n")
    (tmp_path / "work").mkdir()
    shadow(tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("PYTHONPATH", f"../site{os.pathsep}{os.environ['PYTHONPATH']}")
    return tmp_path


@pytest.mark.usefixtures("hostile")
def test_a_child_imports_nothing_from_the_working_directory() -> None:
    with closing(Child("nmt.report.page", "no run")) as child:
        assert "no run" in json.loads(child.connection.recv_bytes())
    assert len(Tokenizer.train([("a b c", "c b a")] * 5, TokenizerSettings(vocab_size=266)).source) == 266
    with safe_path():
        rank = subprocess.run(command("nmt", "--version"), capture_output=True, text=True, check=True)
    assert rank.stdout.split() == ["a", "foreign", "line", "nmt", __version__]


@pytest.mark.parametrize("packed", [False, True], ids=["folder", "archive"])
def test_a_child_imports_the_nmt_of_its_parent_and_no_neighbour_of_it(
    hostile: Path, monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    checkout = hostile / "checkout"
    (checkout / "nmt").mkdir(parents=True)
    (checkout / "nmt/__init__.py").write_text("import random, typing\n")
    (checkout / "nmt/place.py").write_text("import sys, nmt\nprint(nmt.__file__, *sys.argv[1:])\n")
    for name in NAMES.replace(" nmt", "").split():
        shutil.copy(hostile / f"work/{name}.py", checkout)
    packed_at = Path(shutil.make_archive(str(hostile / "packed"), "zip", checkout))
    monkeypatch.setattr(processes, "FOLDER", packed_at if packed else checkout)
    with safe_path():
        found = subprocess.run(command("nmt.place", "a b"), capture_output=True, text=True, check=True).stdout
    assert found == f"a foreign line\n{processes.FOLDER}/nmt/__init__.py a b\n"


@pytest.mark.parametrize("before", [None, "1"])
def test_the_environment_is_put_back(monkeypatch: pytest.MonkeyPatch, before: str | None) -> None:
    monkeypatch.setenv(SAFE, before or "")
    if before is None:
        monkeypatch.delenv(SAFE)
    with safe_path():
        assert os.environ[SAFE] == "1"
    assert os.environ[SAFE] == (before or "")  # empty counts as unset


@pytest.mark.parametrize("what", ["sys.executable", "nmt.system.processes.Pipe"])
def test_a_process_that_cannot_be_started_is_an_error_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def refuse() -> None:
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))

    monkeypatch.setattr(what, refuse if "Pipe" in what else "/no/python")
    with pytest.raises(UserError, match="a process cannot be started: No such file or directory"):
        Child("nmt.report.page", "run")


def test_a_long_wait_for_another_process_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(processes, "LOOK", 0.001)
    path, polls = tmp_path / "order.npy", iter(range(10))

    def write_at_the_end() -> None:
        if next(polls) == 9:
            path.touch()

    for silent in (60, -1):
        monkeypatch.setattr(processes, "SILENT", silent)
        path.unlink(missing_ok=True)
        polls = iter(range(10))
        wait_for(path, 600, write_at_the_end)
    shared = "it must be in a folder that all hosts share"
    assert capsys.readouterr().err == f"waiting up to 600 s for another process to write {path}: {shared}\n"
