"""Trials of faults: that faults come where they are planned, and that what a command breaks is found."""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from faults import Trials
from injecting import KINDS, POSSIBLE, Fault, Plan, compiled
from scenarios import Scenario

from nmt import files

VERIFY = Path(__file__).parents[1] / "verify"
CALLS = """
import mmap, os, sys
from pathlib import Path
if len(sys.argv) > 1:
    from injecting import Plan, follow
    follow(Plan(Path(sys.argv[1]), Path.cwd()))
for text in "one", "two":
    with open("part", "wb") as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())
    os.replace("part", "whole")
    with open("whole", "rb") as file:
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
open("../elsewhere", "w").close()
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """faults.c, compiled; skips the test without a C compiler."""
    found = compiled(tmp_path_factory.mktemp("shim")) if sys.platform == "linux" else None
    if found is None:
        pytest.skip("needs Linux and a C compiler")
    return found


def struck(folder: Path, fault: Fault, library: Path | None) -> tuple[int, str]:
    """Makes each call twice under a plan: the exit code, and the last line of stderr."""
    (folder / "here").mkdir(exist_ok=True)
    plan = Plan(folder / "plan", folder / "here")
    plan.set(fault)
    environment = {"PYTHONPATH": str(VERIFY), "PYTHONDONTWRITEBYTECODE": "1"}
    given = [] if library else [str(plan.path)]
    if library:
        environment |= {"LD_PRELOAD": str(library), "NMT_FAULTS": str(plan.path)}
    command = [sys.executable, "-S", "-c", CALLS, *given]
    done = subprocess.run(command, cwd=folder / "here", env=environment, capture_output=True, text=True, check=False)
    assert plan.struck(), done.stderr
    return done.returncode, done.stderr.strip().rpartition("\n")[2]


@pytest.mark.parametrize("below", ["the shim", "Python"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_second_call_of_a_kind_fails(tmp_path: Path, request: pytest.FixtureRequest, kind: str, below: str) -> None:
    error = POSSIBLE[kind][-1]
    library = request.getfixturevalue("library") if below == "the shim" else None
    code, said = struck(tmp_path, Fault(kind, 2, error), library)
    assert (code, f"[Errno {getattr(errno, error)}]" in said) == (1, True), said
    left = tmp_path / "here/whole"
    assert left.read_text() == ("two" if kind in ("open", "mmap") else "one")


def test_a_process_that_is_ended_in_a_write_has_written_half(tmp_path: Path, library: Path) -> None:
    assert struck(tmp_path, Fault("write", 2, "kill"), library) == (-9, "")
    assert (tmp_path / "here/part").read_text() == "t"


# --- what is left after a fault ------------------------------------------------------------------------------


def test_faults_leave_what_they_should_and_what_does_not_is_found(
    reverse_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of `nmt average` over an average that is there, in Python's own calls."""
    for module in "nmt.cli", "nmt.terminal.training", "safetensors.torch":  # once, and not in every fork
        import_module(module)

    def write(folder: Path) -> None:
        shutil.copytree(reverse_run / "ckpts", folder / "ckpts")

    trials = Trials(Scenario("average", ["average ckpts --last 1"], "average ckpts --last 2"), tmp_path, write)
    for place in "write:1:ENOSPC", "rename:2:EIO", "rename:2:kill":
        assert trials.attempt(Fault.of(place)) == (True, []), place
    monkeypatch.setattr(files, "_take_place", lambda part, path, old: (path.rename(old), part.rename(path)))
    assert "ckpts/.averaged@old.tmp/bundle.json is left" in trials.attempt(Fault.of("rename:2:EIO"))[1]


@pytest.mark.slow
def test_a_few_faults_of_every_command_leave_what_they_should() -> None:
    command = [sys.executable, str(VERIFY / "faults.py"), "--first", "2", "--drawn", "3"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stdout
