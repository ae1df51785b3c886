"""The job of docs/scaling.md on a real Slurm: it runs, and goes on after a task was killed and at its time limit.

Two steps of one job train beside each other.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from page_folders import ROOT

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(shutil.which(name, path=PATH) for name in PROGRAMS), reason="needs Slurm: apt install slurm-wlm"
    ),
]

CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
MpiDefault=none
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""


SMALL = ("--nodes=1", "--ntasks-per-node=2", "--gpus-per-node=0", "--cpus-per-task=1")


def until(holds: Callable[[], object], seconds: float = 180) -> None:
    """Wait until something holds; fail if it does not."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """Runs a command of Slurm, on a cluster of this machine alone; returns what it prints."""
    folder, host = tmp_path_factory.mktemp("slurm"), socket.gethostname().split(".")[0]
    for name in ("state", "spool", "munge"):
        (folder / name).mkdir(mode=0o700)
    (folder / "munge/key").write_bytes(os.urandom(1024))
    (folder / "munge/key").chmod(0o400)
    user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    (folder / "slurm.conf").write_text(
        CONFIGURATION.format(host=host, user=user, folder=folder, ports=(free_port(), free_port()))
    )
    environment = {**os.environ, "PATH": PATH, "SLURM_CONF": str(folder / "slurm.conf"), "OMP_NUM_THREADS": "1"}
    files = [f"--{name}-file={folder}/munge/{name}" for name in ("key", "pid", "log", "seed")]

    def run(*command: str) -> str:
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()

    daemons = [
        subprocess.Popen([*command, *rest], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for command, rest in (
            (["munged", "--foreground", "--force", f"--socket={folder}/munge.socket"], files),
            (["slurmctld", "-D"], []),
            (["slurmd", "-D"], []),
        )
    ]
    try:
        until(lambda: (folder / "munge.socket").exists(), 30)
        until(lambda: subprocess.run(["sinfo", "-h", "-t", "idle"], env=environment, capture_output=True).stdout, 60)
        yield run
    finally:
        subprocess.run(["scancel", "--user", user], env=environment, capture_output=True, check=False)
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait(30)


def pids_of_tasks(job: str) -> list[int]:
    """The processes of a job's step, by rank."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                variables = (entry / "environ").read_bytes().split(b"\0")
                command = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if f"SLURM_JOB_ID={job}".encode() in variables and command[2:3] == [b"train"]:
                found |= {int(each[13:]): int(entry.name) for each in variables if each.startswith(b"SLURM_PROCID=")}
    return [found[rank] for rank in sorted(found)]


def write_job(task: Path, updates: int) -> None:
    """Write the job of the page, and a small recipe under the name that it trains."""
    page = (ROOT / "docs/scaling.md").read_text().split("\n## Slurm\n")[1]
    block = re.search(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert block is not None
    (task / "job.sh").write_text(block[1])
    recipe = (task / "recipe.yaml").read_text().replace("updates: 800", f"updates: {updates}")
    (task / "recipes").mkdir()
    (task / "recipes/wmt14_en_de.yaml").write_text(recipe.replace("checkpoint_updates: 200", "checkpoint_updates: 50"))


def test_the_documented_job_goes_on_after_a_task_was_killed_and_at_its_time_limit(
    slurm: Callable[..., str], task: Path
) -> None:
    write_job(task, updates=4000)

    def said() -> str:
        return Path(f"slurm-{job}.out").read_text() if Path(f"slurm-{job}.out").exists() else ""

    job = slurm("sbatch", *SMALL, "--time=2", "--signal=B:USR1@60", "job.sh").split()[-1]
    until(lambda: "saved ckpts/step-00000050" in said())
    tasks = pids_of_tasks(job)
    assert [len(os.sched_getaffinity(task)) for task in tasks] == [1, 1]
    os.kill(tasks[1], signal.SIGKILL)
    until(lambda: slurm("squeue", "-h", "-o", "%T %r") == "PENDING BeginTime")
    assert "error: rank 0 lost the others" in said()
    slurm("scontrol", "update", f"jobid={job}", "StartTime=now")  # instead of the two minutes that Slurm waits
    until(lambda: "resuming at update" in said())
    until(lambda: "stopped at update" in said())  # at the time limit
    until(lambda: slurm("squeue", "-h", "-o", "%T %r") == "PENDING BeginTime")
    stopped = re.search(r"stopped at update (\d+)", said())[1]  # type: ignore[index]
    slurm("scontrol", "update", f"jobid={job}", "StartTime=now")
    until(lambda: f"resuming at update {int(stopped):,}" in said())
    slurm("scancel", job)
    until(lambda: not slurm("squeue", "-h"))


TWO_STEPS = """\
#!/bin/bash
for out in one other; do
    srun --overlap --ntasks=2 --kill-on-bad-exit=1 nmt train recipe.yaml --set training.updates=40 --out $out &
done
wait
"""


def test_two_steps_of_a_job_train_beside_each_other(slurm: Callable[..., str], task: Path) -> None:
    (task / "job.sh").write_text(TWO_STEPS)
    slurm("sbatch", "--wait", "--nodes=1", "--ntasks=2", "--output=said", "job.sh")
    said = Path("said").read_text()
    assert said.count("finished: 40 of 40 updates") == 2, said
