"""The rank of a process and where ranks meet, by what launchers and users set; what each contradiction is told."""

from __future__ import annotations

import pytest

from nmt.system import launchers
from nmt.system.errors import UserError
from nmt.system.launchers import (
    FIRST_PORT,
    PORTS,
    MeetingPoint,
    World,
    cores_of_task,
    find_world,
    meeting_point,
    nodes_of_script,
    stated_rank,
)

STEP = "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1 SLURM_LOCALID=0 SLURM_STEP_NODELIST=n[1-2]"
BATCH = "SLURM_JOB_ID=7 SLURM_NTASKS=8 SLURM_PROCID=0 SLURM_LOCALID=0"  # a batch script, before srun
TORCHRUN = "TORCHELASTIC_RUN_ID=wmt TORCHELASTIC_USE_AGENT_STORE=True MASTER_ADDR=h MASTER_PORT=29400"


def words(text: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in text.split())


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ("", None),
        ("RANK= WORLD_SIZE= LOCAL_RANK=", None),
        ("SLURM_STEP_NUM_TASKS= SLURM_PROCID=", None),
        ("WORLD_SIZE=1", None),
        ("OMPI_COMM_WORLD_SIZE=1 PMI_SIZE=1", None),
        ("RANK=5 WORLD_SIZE=8 LOCAL_RANK= LOCAL_WORLD_SIZE=", World(5, 8, 0, 1)),
        ("RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4", World(5, 8, 1, 4)),
        ("RANK=5 WORLD_SIZE=8 LOCAL_RANK=3", World(5, 8, 3, 1)),
        ("RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1", World(0, 1, 0, 1)),
        ("RANK=1 WORLD_SIZE=2 OMPI_COMM_WORLD_SIZE=2", World(1, 2, 0, 1)),
        (BATCH, None),
        ("SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0 SLURM_LOCALID=0", None),
        (STEP, World(1, 2, 0, 1)),
        (f"{STEP} RANK= WORLD_SIZE= SLURM_CPUS_PER_TASK=", World(1, 2, 0, 1)),
        (f"{STEP} SLURM_CPUS_PER_TASK=4", World(1, 2, 0, 1, has_own_cores=True)),
        (f"{STEP} SLURM_CPU_BIND_TYPE=mask_cpu:", World(1, 2, 0, 1, has_own_cores=True)),
        (f"{STEP} SLURM_CPU_BIND_TYPE=none", World(1, 2, 0, 1)),
        (f"{STEP} RANK=1 WORLD_SIZE=2", World(1, 2, 0, 1)),
        (f"{STEP} WORLD_SIZE=2", World(1, 2, 0, 1)),
        (f"{STEP} PMI_SIZE=2 PMI_RANK=1", World(1, 2, 0, 1)),  # srun --mpi=pmi2
        ("SLURM_STEP_NUM_TASKS=8 SLURM_PROCID=5 SLURM_LOCALID=1 SLURM_NTASKS_PER_NODE=4", World(5, 8, 1, 4)),
        # srun -n alone; and a step of fewer tasks on a node than its job asked for
        ("SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=3 SLURM_LOCALID=3 SLURM_STEP_TASKS_PER_NODE=4", World(3, 4, 3, 4)),
        (
            "SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=0 SLURM_LOCALID=1 SLURM_NODEID=1 SLURM_STEP_TASKS_PER_NODE=2(x2) "
            "SLURM_NTASKS_PER_NODE=8",
            World(0, 4, 1, 2),
        ),
        *(
            (
                f"SLURM_STEP_NUM_TASKS=12 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID={node} "
                "SLURM_STEP_TASKS_PER_NODE=2(x3),1,5 SLURM_NTASKS_PER_NODE=9",
                World(0, 12, 0, tasks),
            )
            for node, tasks in enumerate([2, 2, 2, 1, 5, 9])
        ),
        # torchrun as each task of a Slurm step, which counts hosts in its own order; another launcher as each task
        (f"{STEP} {TORCHRUN} RANK=0 WORLD_SIZE=2 LOCAL_RANK=0", World(0, 2, 0, 1)),
        (f"{STEP} RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4", World(5, 8, 1, 4)),
    ],
)
def test_a_process_knows_its_place_from_its_environment(environment: str, place: World | None) -> None:
    assert find_world(words(environment)) == place


@pytest.mark.parametrize(
    ("environment", "problem", "hint"),
    [
        ("RANK=3", "RANK=3 is set, but WORLD_SIZE is not", "unset it if this process is no rank"),
        ("WORLD_SIZE=3", "WORLD_SIZE=3 is set, but RANK is not", "unset it"),
        (f"{BATCH} WORLD_SIZE=8", "WORLD_SIZE=8 is set, but RANK is not", "torchrun or srun"),
        ("RANK=abc WORLD_SIZE=2", "RANK=abc: must be a whole number from 0 to 1", "unset it"),
        ("RANK=-1 WORLD_SIZE=2", "RANK=-1: must be a whole number", ""),
        ("RANK=١ WORLD_SIZE=2", "RANK=١: must be a whole number", ""),
        ("RANK=2 WORLD_SIZE=2", "RANK=2: must be a whole number from 0 to 1", ""),
        ("RANK=0 WORLD_SIZE=two", "WORLD_SIZE=two: must be a whole number from 1 to 1,048,576", ""),
        ("RANK=0 WORLD_SIZE=0", "WORLD_SIZE=0: must be", ""),
        ("RANK=0 WORLD_SIZE=2 LOCAL_RANK=gpu0", "LOCAL_RANK=gpu0: must be a whole number from 0 to 1", ""),
        ("RANK=0 WORLD_SIZE=8 LOCAL_RANK=4 LOCAL_WORLD_SIZE=4", "LOCAL_RANK=4: must be a whole number from 0 to 3", ""),
        ("RANK=0 WORLD_SIZE=8 LOCAL_WORLD_SIZE=9", "LOCAL_WORLD_SIZE=9: must be a whole number from 1 to 8", ""),
        # of a batch script that exports one rank to all tasks
        (f"{STEP} RANK=0 WORLD_SIZE=2", "RANK=0, but Slurm has started this process as task 1 of 2", "unset RANK and"),
        (f"{STEP} RANK=0", "RANK=0, but Slurm has started this process as task 1 of 2", "unset RANK and"),
        (f"{STEP} WORLD_SIZE=4", "WORLD_SIZE=4, but Slurm has started this process as task 1 of 2", "unset RANK and"),
        (f"{STEP} RANK=abc", "RANK=abc: must be a whole number", ""),
        ("SLURM_STEP_NUM_TASKS=two", "SLURM_STEP_NUM_TASKS=two: must be a whole number", ""),
        ("SLURM_STEP_NUM_TASKS=2", "SLURM_PROCID=: must be a whole number from 0 to 1", ""),
        (f"{STEP} SLURM_PROCID=2", "SLURM_PROCID=2: must be a whole number from 0 to 1", ""),
        (f"{STEP} SLURM_NODEID=x", "SLURM_NODEID=x: must be a whole number", ""),
        (f"{STEP} SLURM_NTASKS_PER_NODE=x", "SLURM_NTASKS_PER_NODE=x: must be a whole number", ""),
        ("OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2: mpirun has started", "use torchrun"),
        ("PMI_SIZE=4 PMI_RANK=1", "PMI_SIZE=4: mpirun has started several processes", "use torchrun or srun"),
        # in an allocation of Slurm, where srun starts the daemons of mpirun
        (f"{STEP} OMPI_COMM_WORLD_SIZE=16 OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=16: mpirun", ""),
        (f"{STEP} OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=2: mpirun", ""),
    ],
)
def test_each_contradiction_is_told_by_the_name_of_its_variable(environment: str, problem: str, hint: str) -> None:
    with pytest.raises(UserError) as error:
        find_world(words(environment))
    assert error.value.message.startswith(problem)
    assert hint in error.value.hint


@pytest.mark.parametrize(("group", "is_typed"), [(20, True), (10, False)])
def test_a_command_typed_in_a_shell_of_several_tasks_is_told_so(
    monkeypatch: pytest.MonkeyPatch, group: int, is_typed: bool
) -> None:
    """As opposed to a command or a script that is a task itself, and to a shell of one task."""
    monkeypatch.setattr(launchers.os, "getsid", lambda process: 10)
    monkeypatch.setattr(launchers.os, "getpgrp", lambda: group)
    if is_typed:
        with pytest.raises(UserError, match="this shell is one of 2 tasks of a Slurm step") as error:
            find_world(words(f"{STEP} SLURM_PTY_PORT=5"))
        assert "unset SLURM_STEP_NUM_TASKS" in error.value.hint
    else:
        assert find_world(words(f"{STEP} SLURM_PTY_PORT=5")) == World(1, 2, 0, 1)
    assert find_world(words(f"{STEP} SLURM_PTY_PORT=5 {TORCHRUN} RANK=0 WORLD_SIZE=4")) == World(0, 4, 0, 1)
    assert find_world(words("SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0 SLURM_PTY_PORT=5")) is None


@pytest.mark.parametrize(
    ("environment", "rank"),
    [("", ""), ("RANK=3 WORLD_SIZE=4", "3"), (STEP, "1"), (BATCH, ""), ("SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0", "")],
)
def test_a_rank_is_known_before_it_has_met_the_others(environment: str, rank: str) -> None:
    assert stated_rank(words(environment)) == rank


def test_tasks_have_the_cores_that_slurm_reserves() -> None:
    assert cores_of_task(words(f"{STEP} SLURM_CPUS_PER_TASK=4")) == 4
    assert cores_of_task(words(f"{BATCH} SLURM_CPUS_PER_TASK=4")) is None
    assert cores_of_task(words(f"{STEP} SLURM_CPUS_PER_TASK=many")) is None


def test_a_script_knows_of_nodes_that_it_would_not_use() -> None:
    """A step of one task may be one of several runs, each on a node."""
    for environment, nodes in ((f"{BATCH} SLURM_JOB_NUM_NODES=4", 4), (BATCH, 1), ("", 1)):
        assert nodes_of_script(words(environment)) == nodes
    assert nodes_of_script(words("SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0 SLURM_JOB_NUM_NODES=4")) == 1


# --- where ranks meet -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=29400", MeetingPoint("h", 29400, "", False)),
        (f"RANK=0 WORLD_SIZE=2 {TORCHRUN}", MeetingPoint("h", 29400, "wmt", True)),
        (STEP, MeetingPoint("n1", 20_007, "7.0", False)),
        (f"{STEP} MASTER_ADDR=h", MeetingPoint("h", 20_007, "7.0", False)),
        (f"{STEP} MASTER_PORT=500", MeetingPoint("n1", 500, "7.0", False)),
        (f"{STEP} RANK=1 WORLD_SIZE=2", MeetingPoint("n1", 20_007, "", False)),
        (f"{STEP} RANK=1 WORLD_SIZE=2 {TORCHRUN}", MeetingPoint("h", 29400, "wmt", True)),
    ],
)
def test_ranks_meet_where_their_launcher_says(environment: str, place: MeetingPoint) -> None:
    assert meeting_point(words(environment)) == place


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("node7", "node7"),
        ("node7,node9", "node7"),
        ("node[3-17]", "node3"),
        ("node[003-017,020]", "node003"),
        ("node[5,9]", "node5"),
        ("gpu-a[01-02],gpu-b3", "gpu-a01"),
        ("login,gpu[1-4]", "login"),
        ("rack[1-2]node[3-4]", "rack1node3"),
        ("node[1-3]-ib0", "node1-ib0"),
        ("node1.cluster.org,node2.cluster.org", "node1.cluster.org"),
    ],
)
def test_slurm_tasks_meet_at_their_first_node(nodes: str, host: str) -> None:
    for name in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"):
        assert meeting_point({"SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": "123456", name: nodes}).host == host


def test_steps_of_a_job_and_the_next_jobs_have_ports_of_their_own() -> None:
    def port(job: int, step: int) -> int:
        return meeting_point({**words(STEP), "SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)}).port

    steps, jobs = [port(123_456, step) for step in range(1000)], [port(123_456 + job, 0) for job in range(1000)]
    assert len(set(steps)) == len(set(jobs)) == 1000
    found = steps + jobs
    assert FIRST_PORT <= min(found) <= max(found) < FIRST_PORT + PORTS
    assert FIRST_PORT + PORTS == 32_768  # from there on Linux gives ports to connections
    assert port(5, 4_294_967_290) in range(FIRST_PORT, FIRST_PORT + PORTS)  # the interactive step of salloc


@pytest.mark.parametrize(
    ("environment", "problem"),
    [
        ("RANK=0 WORLD_SIZE=2", "MASTER_ADDR and MASTER_PORT are not set"),
        ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=h", "MASTER_PORT is not set"),
        ("RANK=0 WORLD_SIZE=2 MASTER_PORT=1", "MASTER_ADDR is not set"),
        ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=http", "MASTER_PORT=http: must be a whole number"),
        ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=0", "MASTER_PORT=0: must be a whole number from 1 to 65,535"),
        (f"{STEP} MASTER_PORT=70000", "MASTER_PORT=70000: must be"),
        (f"{STEP} SLURM_JOB_ID=x", "SLURM_JOB_ID=x: must be"),
        ("SLURM_STEP_NUM_TASKS=2", "Slurm names no nodes"),
        ("SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NODELIST=", "Slurm names no nodes"),
        ("SLURM_STEP_NUM_TASKS=2 SLURM_JOB_NODELIST=,", "Slurm names no nodes"),
    ],
)
def test_ranks_that_cannot_meet_are_told_what_is_missing(environment: str, problem: str) -> None:
    with pytest.raises(UserError) as error:
        meeting_point(words(environment))
    assert error.value.message.startswith(problem)
