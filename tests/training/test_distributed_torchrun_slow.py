"""Under torchrun's c10d, training goes on from the last checkpoint after a rank was killed or a host has joined."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ranks import ranks_of
from reverse_task import BARE, sets

from nmt.checkpoint.reading import checkpoint_folders, checkpoint_path

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc to find the ranks"),
]

SETTINGS = sets(
    "model={layers: 1, d_model: 16, d_ff: 16, heads: 2, dropout: 0.1}",
    "training={batch_tokens: 500, updates: 1000000, device_tokens: 130, checkpoint_updates: 20, report: false}",
    *BARE,
)
TRAIN = ["-m", "nmt", "train", "recipe.yaml", *SETTINGS, "--threads", "1", "--device", "cpu"]
SLOW_RANK_0 = "import os, time\nif os.environ.get('RANK') == '0': time.sleep(5)\n"


def until_checkpoint(out: Path, step: int) -> None:
    """Wait for a checkpoint of an update, or of a later one; fail if it does not come."""
    deadline = time.monotonic() + 120
    while not any(checkpoint_path(out, step) <= path for path in checkpoint_folders(out)):
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture
def torchrun(task: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, int], subprocess.Popen[bytes]]]:
    """Starts torchrun as a host of its own with so many ranks; what is left of it at the end is killed."""
    for name, value in {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", "LOGLEVEL": "CRITICAL"}.items():
        monkeypatch.setenv(name, value)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    started: list[subprocess.Popen[bytes]] = []

    def start(hosts: str, ranks: int) -> subprocess.Popen[bytes]:
        options = f"--nnodes {hosts} --nproc-per-node {ranks} --rdzv-backend c10d --rdzv-endpoint localhost:{port}"
        command = [sys.executable, "-m", "torch.distributed.run", *options.split(), "--rdzv-id", "test"]
        command += ["--local-addr", "localhost", "--max-restarts", "3", *TRAIN]
        with (task / "said").open("a") as said:
            started.append(subprocess.Popen(command, cwd=task, stderr=said))
        return started[-1]

    yield start
    ranks = [rank for launcher in started for rank in ranks_of(launcher.pid).values()]
    for process in [launcher.pid for launcher in started if launcher.poll() is None] + ranks:
        os.kill(process, signal.SIGKILL)
    for launcher in started:
        launcher.wait()


def resumed_at(task: Path) -> int:
    """Wait for the line about resuming; the update in it."""
    deadline = time.monotonic() + 120
    while not (found := re.search(r"^resuming at update ([\d,]+)", (task / "said").read_text(), re.MULTILINE)):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return int(found[1].replace(",", ""))


@pytest.mark.parametrize(("hosts", "rank", "is_slow"), [(1, 1, True), (2, 0, False)])
def test_a_group_goes_on_after_a_rank_was_killed(
    torchrun, task: Path, monkeypatch: pytest.MonkeyPatch, hosts: int, rank: int, is_slow: bool
) -> None:
    if is_slow:
        (task / "slow").mkdir()
        (task / "slow/sitecustomize.py").write_text(SLOW_RANK_0)
        monkeypatch.setenv("PYTHONPATH", f"{task}/slow{os.pathsep}{os.environ['PYTHONPATH']}")
    launchers = [torchrun(str(hosts), 2 // hosts) for _ in range(hosts)]
    until_checkpoint(task / "ckpts", 40)
    ranks = {rank: process for launcher in launchers for rank, process in ranks_of(launcher.pid).items()}
    os.kill(ranks[rank], signal.SIGKILL)
    step = resumed_at(task)
    assert step >= 40
    until_checkpoint(task / "ckpts", step + 40)
