"""Which device a process, rank or worker has, how many processes there are, and on how many threads."""

import math
import sys

import pytest
import torch

from nmt.system import parallelism
from nmt.system.errors import UserError
from nmt.system.launchers import World
from nmt.system.parallelism import cores, count_ranks, device_of, find_device, ranks_on_cpu, threads_of_rank


@pytest.mark.parametrize(
    ("name", "there", "worker", "problem"),
    [
        *((name, 0, None, f"{name}: no such device") for name in ("gpu", "cuda:", "cpu:0", "cuda:０", "")),
        ("cuda:99", 0, None, "cuda:99: this machine has 0 CUDA devices"),
        ("auto", 2, 2, "cuda:2: this machine has 2 CUDA devices"),  # the third worker
        ("cuda:1", 2, 0, "cuda:1: is one device"),
    ],
)
def test_devices_that_are_not_there_are_refused_by_name(name, there, worker, problem):
    with pytest.raises(UserError, match=f"--device {problem}"):
        find_device(name, there, worker)


@pytest.mark.parametrize(
    ("name", "there", "worker", "chosen"),
    [("auto", 0, 1, "cpu"), ("auto", 2, 1, "cuda:1"), ("cuda", 2, 0, "cuda:0"), ("cpu", 2, 1, "cpu"),
     ("auto", 2, None, "cuda"), ("cuda:1", 2, None, "cuda:1")],
)  # fmt: skip
def test_every_worker_has_a_gpu_of_its_own(name, there, worker, chosen):
    assert find_device(name, there, worker) == chosen


def test_each_rank_of_a_host_has_a_device_of_its_own(gpus):
    places = [World(rank, 8, rank % 4, 4) for rank in range(8)]
    assert {device_of("cpu", place) for place in places} == {"cpu"}
    found = [device_of("auto", place) for place in places]
    # of a launcher that shows each rank one GPU alone, that one is cuda:0
    assert found == {0: ["cpu"] * 8, 1: ["cuda:0"] * 8, 4: [f"cuda:{n}" for n in (0, 1, 2, 3)] * 2}[gpus]
    assert [device_of(name, World()) for name in ("auto", "cuda:3", "cpu")] == ["auto", "cuda:3", "cpu"]  # alone


def test_a_rank_takes_the_device_that_is_named_or_says_why_not(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert device_of("cuda:1", World(0, 2, 0, 1)) == "cuda:1"  # one rank on each host
    for name, place in (("cuda:1", World(1, 2, 1, 2)), ("tpu", World(0, 2, 0, 2)), ("auto", World(2, 4, 2, 4))):
        with pytest.raises(UserError, match="--device"):
            device_of(name, place)


# --- processes --------------------------------------------------------------------------------------------------


def test_every_visible_gpu_is_used_unless_told(gpus: int) -> None:
    assert count_ranks("auto", None) == max(1, gpus)
    assert count_ranks("cuda", None) == max(1, gpus)
    assert count_ranks("cuda:0", None) == 1
    assert count_ranks("cpu", None) == 1


def test_as_many_devices_are_used_as_asked_for(gpus: int) -> None:
    assert count_ranks("cpu", 7) == 7
    assert count_ranks("cuda:1", 1) == 1 if gpus else True
    for device in ("cuda",) if gpus == 0 else ("auto", "cuda"):
        for devices in range(1, gpus + 1):
            assert count_ranks(device, devices) == devices
        with pytest.raises(UserError, match=f"--devices {gpus + 1}: this machine has {gpus} CUDA devices"):
            count_ranks(device, gpus + 1)
    if gpus == 0:
        assert count_ranks("auto", 3) == 3


def test_a_rank_of_a_launcher_starts_no_workers_and_refuses_other_numbers_of_devices() -> None:
    for devices in (None, 4, 2):
        assert count_ranks("cpu", devices, on_cpu=8, found=World(0, 4, 0, 2)) == 1
    for devices, found in ((8, World(0, 4, 0, 2)), (2, World(0, 1, 0, 1))):
        with pytest.raises(UserError, match=f"--devices {devices}: a launcher has started {found.size} ranks"):
            count_ranks("cpu", devices, found=found)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has forks that are safe")
@pytest.mark.parametrize(
    ("threads", "batch_tokens", "ranks"),
    [(1, 4096, 1), (2, 4096, 2), (8, 2048, 4), (64, 25_000, 16), (2, 999, 1), (2, 1000, 2), (4, 1, 1)],
)
def test_each_process_on_a_cpu_has_a_thread_and_enough_tokens(threads: int, batch_tokens: int, ranks: int) -> None:
    assert ranks_on_cpu(threads, batch_tokens, is_compiled=False) == ranks


def test_a_compiled_training_and_other_systems_have_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ranks_on_cpu(8, 25_000, is_compiled=True) == 1
    monkeypatch.setattr(parallelism.sys, "platform", "darwin")
    assert ranks_on_cpu(8, 25_000, is_compiled=False) == 1


# --- threads ----------------------------------------------------------------------------------------------------


def test_ranks_of_torchrun_share_the_cores_that_tasks_of_slurm_have_for_themselves():
    assert threads_of_rank(8, World(5, 8, 1, 4)) == 2
    assert threads_of_rank(3, World(5, 8, 1, 4)) == 1
    assert threads_of_rank(8, World(5, 8, 1, 4, has_own_cores=True)) == 8


@pytest.mark.parametrize(
    ("quota", "cpus", "expected"),
    [(None, "", 64), (2.0, "", 2), (1.5, "", 2), (0.1, "", 1), (100.0, "", 64),
     (None, "8", 8), (None, "100", 64), (None, "0", 1), (None, "many", 64), (4.0, "8", 4)],
)  # fmt: skip
def test_cores_are_no_more_than_the_quota_and_what_slurm_reserves(monkeypatch, quota, cpus, expected):
    monkeypatch.setattr(parallelism.os, "sched_getaffinity", lambda process: set(range(64)), raising=False)
    monkeypatch.setattr(parallelism, "cpu_quota", lambda: quota)
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", cpus)
    assert cores() == min(64, math.ceil(quota or 64))  # of a batch script, whose processes share its tasks' cores
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    assert cores() == expected
