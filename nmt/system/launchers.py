"""What launchers say of this process in its environment: its rank in distributed training, and where the ranks meet.

torchrun sets RANK and its like for each rank, and srun SLURM_PROCID and its like for each task of a step. RANK,
WORLD_SIZE, MASTER_ADDR and MASTER_PORT can also be set by hand. An empty variable counts as unset.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from nmt.system.errors import UserError

TASKS = "SLURM_STEP_NUM_TASKS"  # of the step that this process is in; unset in batch scripts and under salloc
BY_TORCHRUN = "TORCHELASTIC_RUN_ID"
BY_NMT = "nmt-"  # how identifiers of torchrun's runs begin that `nmt train` has started itself
BY_MPI = {"OMPI_COMM_WORLD_SIZE": "OMPI_COMM_WORLD_RANK", "PMI_SIZE": "PMI_RANK"}  # of Open MPI; of MPICH and Slurm
MOST_RANKS = 1 << 20
MOST_PORTS = 65_535
# Slurm steps meet at ports 20,000 to 32,767, below those that Linux gives to outgoing connections. The steps of
# a job are a prime number of ports apart, and so differ; the first steps of two jobs do within PORTS job ids.
FIRST_PORT = 20_000
PORTS = 12_768
BETWEEN_STEPS = 1_009
STARTED = "start all ranks by torchrun or srun, which set it, or unset it if this process is no rank"


@dataclass(frozen=True)
class World:
    """This process's rank in distributed training: `rank` of `size`, and `local_rank` of `local_size` on this host."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    has_own_cores: bool = False
    """Whether this rank's cores are exclusive, as Slurm may assign them, not shared by all ranks of the host"""


class MeetingPoint(NamedTuple):
    """Where the ranks of a run find one another."""

    host: str
    port: int
    run: str
    """Identifier of the run, so that ranks do not join another run at this address; empty if unknown"""
    is_served: bool
    """Whether the launcher listens at this address; otherwise rank 0 does"""


def find_world(environment: Mapping[str, str]) -> World | None:
    """Return the rank that torchrun, srun or the user has given to this process; None for a process alone.

    Raise UserError if variables are incomplete, have no meaning or contradict one another.
    """
    given = _given(environment)
    tasks = given.get(TASKS, "1")
    if "RANK" in given and "WORLD_SIZE" in given:
        world = _rank(given)
        # With another number of tasks, each has a launcher of its own, whose ranks are not the tasks.
        if tasks == given["WORLD_SIZE"] != "1" and BY_TORCHRUN not in given:
            _check_alike(given, _task(given))
        return world
    for name, rank in BY_MPI.items():
        # In a step of Slurm, mpirun makes several processes of one task.
        is_task = given.get(name) == tasks and given.get(rank) == given.get("SLURM_PROCID")
        if given.get(name, "1") != "1" and not is_task:
            problem = f"{name}={given[name]}: mpirun has started several processes, which do not train together"
            hint = "use torchrun or srun, or give each process its RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"
            raise UserError(problem, hint)
    if tasks != "1":
        task = _task(given)
        _check_is_started(given, task)
        _check_alike(given, task)
        return task
    if "RANK" in given or given.get("WORLD_SIZE", "1") != "1":
        name = "RANK" if "RANK" in given else "WORLD_SIZE"
        other = "WORLD_SIZE" if "RANK" in given else "RANK"
        raise UserError(f"{name}={given[name]} is set, but {other} is not", STARTED)
    return None


def check_alone(what: str, hint: str) -> None:
    """Raise UserError, with `hint`, if this process is one of several ranks, each of which would do `what`."""
    world = find_world(os.environ)
    if world is not None and world.size > 1:
        hint = f"start one process, {hint}unset RANK, WORLD_SIZE and SLURM_STEP_NUM_TASKS"
        raise UserError(f"this is one of {world.size} ranks, and each would {what}", hint)


def meeting_point(environment: Mapping[str, str]) -> MeetingPoint:
    """Return where the ranks of this process's run meet: at MASTER_ADDR and MASTER_PORT.

    The tasks of a Slurm step need neither: they have its first node, and a port that follows from job and step. Raise
    UserError if a variable is missing or has no meaning.
    """
    given = _given(environment)
    host = given.get("MASTER_ADDR", "")
    port = 0
    run = given.get(BY_TORCHRUN, "")
    if "MASTER_PORT" in given:
        port = _number(given, "MASTER_PORT", 1, MOST_PORTS)
    if given.get(TASKS, "1") == "1":
        missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in given]
        if missing:
            unset = f"{' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} not set"
            hint = (
                "set both, the same for all ranks, to the host of rank 0 and a free port there; torchrun does it itself"
            )
            raise UserError(f"{unset}, so the ranks cannot find one another", hint)
    else:
        job, step = (_number(given, name, 0, default=0) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
        host = host or _first_node(given)
        port = port or FIRST_PORT + (job + BETWEEN_STEPS * step) % PORTS
        if "RANK" not in given:  # otherwise the ranks may be of several steps
            run = f"{job}.{step}"
    return MeetingPoint(host, port, run, given.get("TORCHELASTIC_USE_AGENT_STORE") == "True")


def stated_rank(environment: Mapping[str, str]) -> str:
    """Return this process's rank as its launcher states it, unchecked; empty for a process alone."""
    given = _given(environment)
    if "RANK" in given:
        return given["RANK"]
    if given.get(TASKS, "1") != "1":
        return given.get("SLURM_PROCID", "")
    return ""


def is_by_nmt(environment: Mapping[str, str]) -> bool:
    """Return whether this rank is one that `nmt train` has started, and not a launcher of the user."""
    return environment.get(BY_TORCHRUN, "").startswith(BY_NMT)


def nodes_of_script(environment: Mapping[str, str]) -> int:
    """Return the number of nodes of the Slurm job whose script this process is of; 1 for what srun has started."""
    nodes = environment.get("SLURM_JOB_NUM_NODES", "")
    if environment.get(TASKS) or not re.fullmatch(r"[0-9]+", nodes):
        return 1
    return int(nodes)


def cores_of_task(environment: Mapping[str, str]) -> int | None:
    """Return the number of cores of a task of Slurm, to which it may not bind the task; None without a limit.

    Batch scripts are no tasks: they may use the cores of all.
    """
    with suppress(KeyError, ValueError):
        if environment.get(TASKS):
            return int(environment["SLURM_CPUS_PER_TASK"])
    return None


def _given(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if value}


def _number(
    given: Mapping[str, str], name: str, least: int, most: int = (1 << 63) - 1, default: int | None = None
) -> int:
    """Return a variable's number, or `default` if it is unset; raise UserError for another value."""
    if name not in given and default is not None:
        return default
    text = given.get(name, "")
    if not re.fullmatch(r"[0-9]{1,19}", text) or not least <= int(text) <= most:
        raise UserError(f"{name}={text}: must be a whole number from {least:,} to {most:,}", STARTED)
    return int(text)


def _rank(given: Mapping[str, str]) -> World:
    """Return the rank by the variables of torchrun."""
    size = _number(given, "WORLD_SIZE", 1, MOST_RANKS)
    rank = _number(given, "RANK", 0, size - 1)
    local_size = _number(given, "LOCAL_WORLD_SIZE", 1, size, default=1)
    most = local_size if "LOCAL_WORLD_SIZE" in given else size
    return World(rank, size, _number(given, "LOCAL_RANK", 0, most - 1, default=0), local_size)


def _task(given: Mapping[str, str]) -> World:
    """Return the rank of this task of a Slurm step."""
    size = _number(given, TASKS, 1, MOST_RANKS)
    # With neither --cpus-per-task nor binding, Slurm's tasks share their cores.
    has_own_cores = "SLURM_CPUS_PER_TASK" in given or "cpu" in given.get("SLURM_CPU_BIND_TYPE", "")
    rank, local_rank = (_number(given, name, 0, size - 1) for name in ("SLURM_PROCID", "SLURM_LOCALID"))
    return World(rank, size, local_rank, _tasks_here(given), has_own_cores)


def _tasks_here(given: Mapping[str, str]) -> int:
    """Return the number of a step's tasks on this node, by SLURM_STEP_TASKS_PER_NODE, or else by SLURM_NTASKS_PER_NODE.

    The former lists the nodes' tasks in order, such as 2(x3),1 for four nodes. The latter is what was asked of sbatch
    or srun, and unset unless it was.
    """
    before = _number(given, "SLURM_NODEID", 0, default=0)  # nodes of the step before this one
    for tasks, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", given.get("SLURM_STEP_TASKS_PER_NODE", "")):
        before -= int(times or 1)
        if before < 0:
            return int(tasks)
    return _number(given, "SLURM_NTASKS_PER_NODE", 1, default=1)


def _check_is_started(given: Mapping[str, str], task: World) -> None:
    """Raise UserError if this process was typed at the prompt of a shell that is a task, by srun --pty.

    A shell with a prompt gives each command a process group of its own. The other tasks are shells that have ended.
    """
    if "SLURM_PTY_PORT" in given and os.getpgrp() != os.getsid(0):
        problem = f"this shell is one of {task.size} tasks of a Slurm step, and the others do not run this command"
        hint = f"outside of the shell, type srun nmt … instead; to run it in this shell alone: unset {TASKS}"
        raise UserError(problem, hint)


def _check_alike(given: Mapping[str, str], task: World) -> None:
    """Raise UserError if RANK or WORLD_SIZE is set, and not to those of this task of a Slurm step."""
    for name, own in (("RANK", task.rank), ("WORLD_SIZE", task.size)):
        if name in given and _number(given, name, 0) != own:
            problem = f"{name}={given[name]}, but Slurm has started this process as task {task.rank} of {task.size}"
            raise UserError(problem, "unset RANK and WORLD_SIZE, which nmt does not need under srun")


def _first_node(given: Mapping[str, str]) -> str:
    """Return the first node of a Slurm step."""
    nodes = given.get("SLURM_STEP_NODELIST") or given.get("SLURM_JOB_NODELIST", "")
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)  # node7,node9 or node[003-017,020],login1 or r[1-2]n[1-8]-ib
    host = re.sub(r"\[(\d+)[^\]]*\]", r"\1", first[0] if first else "")
    if not host:
        hint = "set MASTER_ADDR to the name of the first host"
        raise UserError("Slurm names no nodes in SLURM_STEP_NODELIST", hint)
    return host
