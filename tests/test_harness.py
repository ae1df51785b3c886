"""What the suite promises of every test: it ends, its children end with it, and signals reach them.

And of commands that are forked rather than started anew: they find what a new process would find.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from reverse_task import shell

TESTS = """
import signal, subprocess, sys, time
import conftest, pytest

conftest.PATIENCE = 0.5  # the orphan does not end by itself

def test_a_child_is_interrupted():
    child = subprocess.Popen([sys.executable, "-c", "print(flush=True); import time; time.sleep(60)"], stdout=-1)
    child.stdout.readline()
    child.send_signal(signal.SIGINT)
    assert child.wait(60) != 0

def test_that_leaves_an_orphan():
    subprocess.run(["sh", "-c", "sleep 61 & exit 0"], check=True)

@pytest.mark.timeout(5)
def test_that_does_not_end():
    time.sleep(60)
"""


def test_signals_reach_children_and_both_they_and_every_test_end(tmp_path: Path) -> None:
    (tmp_path / "test_nested.py").write_text(TESTS)
    # A shell that ignores signals, as nohup does and as scripts do for what they run in the background
    script = 'trap "" INT HUP; exec "$0" -m pytest -p conftest -p no:cacheprovider -q test_nested.py'
    tests = Path(__file__).parent
    paths = [str(tests), str(tests / "support"), os.environ["PYTHONPATH"]]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        ["bash", "-c", script, sys.executable],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "FAILED test_nested.py::test_that_does_not_end" in done.stdout, done.stdout
    assert "ERROR test_nested.py::test_that_leaves_an_orphan - AssertionError: left" in done.stdout
    assert "1 failed, 2 passed, 1 error" in done.stdout


# --- forks in the place of new processes --------------------------------------------------------------------

PROBE = """
import json, os, signal, stat, sys
streams = [stream and [stream.encoding, stream.errors, stream.newlines, stream.line_buffering, stream.write_through,
    type(stream.buffer).__name__, stream.mode, stream.fileno(), stat.S_IFMT(os.fstat(stream.fileno()).st_mode),
    stream is getattr(sys, f"__{name}__"), stream is sys.stdin or print(name, file=stream, flush=True)]
    for name in ("stdin", "stdout", "stderr") for stream in [getattr(sys, name)]]
ignored = [int(number) for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN]
handled = [int(number) for number in signal.valid_signals() if callable(signal.getsignal(number))]
variables = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
place = [os.getcwd(), os.getppid(), os.getsid(0) == os.getpid()] if sys.argv[1] == "child" else os.getcwd()
open_files = sorted(os.readlink(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd") if number > "2"
    and os.path.exists(f"/proc/self/fd/{number}"))
with open("found.json", "w") as file:
    json.dump([sys.argv[1:], streams, ignored, handled, variables, place, open_files, "torch" in sys.modules], file)
os.kill(os.getpid(), signal.SIGKILL) if "die" in sys.argv else os._exit(7)
"""


def found(folder: Path) -> list[object]:
    """What the command found, whose modules were loaded if it was forked."""
    *same, forked = json.loads((folder / "found.json").read_text())
    (folder / "found.json").unlink()
    return [*same, forked]


@pytest.fixture
def probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which commands write what they find as they start, and end."""
    (tmp_path / "sitecustomize.py").write_text(PROBE)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}")
    return tmp_path


@pytest.mark.skipif(sys.platform != "linux", reason="commands are forked on Linux")
@pytest.mark.parametrize(
    "line",
    [
        "nmt 'a  b' $'\\xff' ''",
        "nmt die",
        "nmt x <&- 2>&-",
        "nmt x >&-",
        "trap '' INT HUP; nmt x",
        "A=é nmt x | cat",
        "TORCHINDUCTOR_CACHE_DIR=here KMP_INIT_AT_FORK=FALSE nmt x",
    ],
)
def test_a_forked_command_of_a_shell_finds_what_a_new_one_finds(probe: Path, line: str) -> None:
    forked, forks_find = shell(line, probe), found(probe)
    new, new_find = shell(line.replace("nmt", "PYTHONHASHSEED=1 nmt"), probe), found(probe)
    assert (forks_find.pop(), new_find.pop()) == (True, False)
    assert forks_find == new_find
    assert (forked.returncode, forked.stdout) == (new.returncode, new.stdout)
    said = [[line for line in done.stderr.splitlines() if b"Killed" not in line] for done in (forked, new)]  # by bash
    assert said[0] == said[1]


@pytest.mark.skipif(sys.platform != "linux", reason="commands are forked on Linux")
@pytest.mark.parametrize("options", [{}, {"start_new_session": True, "stdin": subprocess.DEVNULL}])
def test_a_forked_command_is_a_child_like_any_other(probe: Path, options: dict[str, object]) -> None:
    codes, finds = [], []
    for seed in ({}, {"PYTHONHASHSEED": "1"}):
        command = [sys.executable, "-m", "nmt", "child", "die"]
        codes.append(subprocess.call(command, cwd=probe, env={**os.environ, **seed}, **options))
        finds.append(found(probe))
    assert codes == [-9, -9]
    assert [find.pop() for find in finds] == [True, False]
    assert finds[0] == finds[1]
