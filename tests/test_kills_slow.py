"""Commands that are killed, and pairs of commands on one directory, by `verify/kills.py`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "verify" / "kills.py"


@pytest.mark.slow
def test_what_is_killed_200_times_ends_equal_to_the_bit(tmp_path: Path) -> None:
    report = tmp_path / "kills.json"
    done = subprocess.run([sys.executable, str(SCRIPT), "--report", str(report)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(report.read_text())
    assert found["findings"] == []
    assert found["kills"] == 200
    assert found["equal"] == found["runs"]
    assert set(found["by signal"]) == {"SIGKILL", "SIGTERM", "SIGHUP"}
    assert {"process", "launcher", "rank 0", "rank 1"} <= set(found["by target"])
    assert {"validation", "checkpoint", "plan", "preparing"} <= set(found["by moment"])
    assert set(found["files damaged"]) == {"removed", "emptied", "cut", "flipped"}
    assert sum(found["pairs"].values()) == found["pairs equal"]
    assert found["pairs"]["refused"] >= 15
