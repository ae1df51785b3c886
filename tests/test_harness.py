"""What the suite promises of every test: it ends, its children end with it, and signals reach them."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = """
import signal, subprocess, sys, time
import pytest

def test_a_child_is_interrupted():
    child = subprocess.Popen([sys.executable, "-c", "print(flush=True); import time; time.sleep(60)"], stdout=-1)
    child.stdout.readline()
    child.send_signal(signal.SIGINT)
    assert child.wait(20) != 0

def test_that_leaves_an_orphan():
    subprocess.run(["sh", "-c", "sleep 61 & exit 0"], check=True)

@pytest.mark.timeout(1)
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
