"""The scripts of a model's page, run by node."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from nmt.exchange import javascript
from nmt.recipe import TaskName

DRIVER = Path(__file__).with_name("node_driver.js")


def run(task: TaskName = "translate", **given: Any) -> Any:
    """What node_driver.js answers by the scripts of a task; skips the test without node."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs node: apt-get install nodejs")
    told = json.dumps({"worker": javascript.script(*javascript.SCRIPTS[task]), **given})
    done = subprocess.run([node, DRIVER], input=told, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def call(function: str, given: Any) -> Any:
    """The value of a JavaScript function of the scripts."""
    return run(expression=function, input=given)
