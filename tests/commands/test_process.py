"""A command as a process: a signal that comes while it is ending."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

PROGRAM = """
import os, sys
import click
from nmt.system.errors import UserError
from nmt.commands import process

class Failing(click.Group):
    def invoke(self, context):
        raise UserError("it failed", "mend it")

def signalled(error, ending_of=process.ending_of):
    os.kill(os.getpid(), int(sys.argv.pop()))
    return ending_of(error)

process.ending_of = signalled
process.run(Failing(invoke_without_command=True))
"""


@pytest.mark.parametrize(("number", "rank"), [(signal.SIGTERM, True), (signal.SIGTERM, False), (signal.SIGINT, False)])
def test_a_signal_to_a_command_that_is_ending_is_no_traceback(number: int, rank: bool) -> None:
    environment = {**os.environ, "RANK": "1"} if rank else {k: v for k, v in os.environ.items() if k != "RANK"}
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(int(number))], env=environment, capture_output=True)
    if rank:  # it is its launcher's
        assert (done.returncode, done.stderr) == (1, b"error: it failed\nhint: mend it\n")
    else:
        assert (done.returncode, done.stderr) == (-number, b"")
