"""Which device a process or a rank has; cores and memory that control groups grant; GPUs that fail."""

import math
import os

import numpy as np
import pytest
import torch

from nmt.system import device, torch_internals
from nmt.system.device import (
    choose_device,
    cores,
    cpu_quota,
    device_error,
    device_of,
    find_device,
    let_waiting_threads_sleep,
    memory_error,
    memory_limit,
)
from nmt.system.errors import UserError
from nmt.system.launchers import World


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


@pytest.mark.parametrize(("name", "allowed"), [("cpu", True), ("cuda", False)])
def test_attention_on_a_gpu_prepares_nothing_for_each_new_shape(monkeypatch, name, allowed):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(device, "_let_segments_grow", lambda chosen: None)  # needs a GPU
    assert torch.backends.cuda.cudnn_sdp_enabled()  # PyTorch's default
    try:
        choose_device(name, None)
        assert torch.backends.cuda.cudnn_sdp_enabled() == allowed
        assert torch.backends.cuda.flash_sdp_enabled()
        assert torch.backends.cuda.mem_efficient_sdp_enabled()
    finally:
        torch.backends.cuda.enable_cudnn_sdp(True)


# --- ranks -----------------------------------------------------------------------------------------------------


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


def test_ranks_of_torchrun_share_the_cores_that_tasks_of_slurm_have_for_themselves():
    assert World(5, 8, 1, 4).threads(8) == 2
    assert World(5, 8, 1, 4).threads(3) == 1
    assert World(5, 8, 1, 4, has_own_cores=True).threads(8) == 8


# --- threads ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("quota", "cpus", "expected"),
    [(None, "", 64), (2.0, "", 2), (1.5, "", 2), (0.1, "", 1), (100.0, "", 64),
     (None, "8", 8), (None, "100", 64), (None, "0", 1), (None, "many", 64), (4.0, "8", 4)],
)  # fmt: skip
def test_cores_are_no_more_than_the_quota_and_what_slurm_reserves(monkeypatch, quota, cpus, expected):
    monkeypatch.setattr(device.os, "sched_getaffinity", lambda process: set(range(64)), raising=False)
    monkeypatch.setattr(device, "cpu_quota", lambda: quota)
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", cpus)
    assert cores() == min(64, math.ceil(quota or 64))  # of a batch script, whose processes share its tasks' cores
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    assert cores() == expected


def test_operations_have_no_more_threads_than_cores(monkeypatch):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        monkeypatch.setattr(device, "cores", lambda: 2)
        choose_device("cpu", None)
        assert torch.get_num_threads() == 2
        choose_device("cpu", 3)  # what the user asks for counts
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("given", "expected"), [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)]
)
def test_waiting_threads_sleep_unless_the_user_sets_otherwise(monkeypatch, given, expected):
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.setenv(name, "")  # so that what is set is taken back
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    let_waiting_threads_sleep()
    assert os.environ.get("GOMP_SPINCOUNT") == expected


# --- control groups, of version 1 and 2 -----------------------------------------------------------------------


def control_groups(folder, own, limits):
    """Files of a hierarchy of control groups, by name, and of the group of this process."""
    (folder / "cgroup").write_text("".join(f"{line}\n" for line in own))
    for name, content in limits.items():
        (folder / "fs" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "fs" / name).write_text(f"{content}\n")
    return folder / "fs", folder / "cgroup"


@pytest.mark.parametrize(
    ("own", "limits", "quota"),
    [
        (["0::/"], {"cpu.max": "200000 100000"}, 2.0),  # a container of version 2
        (["0::/"], {"cpu.max": "max 100000"}, None),
        (["0::/"], {}, None),
        (["0::/job/step"], {"job/cpu.max": "150000 100000", "job/step/cpu.max": "max 100000"}, 1.5),
        (["0::/job/step"], {"job/cpu.max": "400000 100000", "job/step/cpu.max": "50000 100000"}, 0.5),
        (["4:memory:/", "3:cpu,cpuacct:/docker/1", "0::/"],  # a container of version 1, which sees itself as the root
         {"cpu,cpuacct/cpu.cfs_quota_us": "300000", "cpu,cpuacct/cpu.cfs_period_us": "100000"}, 3.0),
        (["1:cpu:/"], {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        (["1:cpuset:/"], {"cpuset/cpu.cfs_quota_us": "100000", "cpuset/cpu.cfs_period_us": "100000"}, None),
        (["0::/"], {"cpu.max": "0 0"}, None),
        (["0::/"], {"cpu.max": "much"}, None),
    ],
)  # fmt: skip
def test_the_quota_of_a_container_is_read(tmp_path, own, limits, quota):
    assert cpu_quota(*control_groups(tmp_path, own, limits)) == quota


def test_the_limits_of_all_cgroups_around_a_process_count(tmp_path):
    own = ["12:cpu,cpuacct:/elsewhere", "5:memory:/job", "0::/user/job"]
    limits = {"memory.max": "max", "user/memory.max": 5000, "user/job/memory.max": 7000, "elsewhere/memory.max": 1}
    groups = control_groups(tmp_path, own, limits | {"memory/job/memory.limit_in_bytes": 3000})
    assert memory_limit(*groups) == 3000
    (groups[0] / "memory/job/memory.limit_in_bytes").unlink()
    assert memory_limit(*groups) == 5000
    assert memory_limit(groups[0], tmp_path / "none") is None


# --- GPUs that fail ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "text", "told"),
    [
        (torch.AcceleratorError, "CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors might", True),
        (RuntimeError, "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(handle)`", True),
        (RuntimeError, "CUDA driver error: unspecified launch failure", True),
        (RuntimeError, "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", True),
        (RuntimeError, "Triton Error [CUDA]: an illegal memory access was encountered", True),
        (torch.AcceleratorError, "CUDA error: out of memory", False),
        (torch.AcceleratorError, "CUDA error: no kernel image is available for execution on the device", False),
        (torch.OutOfMemoryError, "CUDA out of memory. Tried to allocate 20.00 GiB.", False),
        (RuntimeError, "The size of tensor a (3) must match the size of tensor b (4)", False),
        (ValueError, "CUDA error: said by another", False),
    ],
)
def test_a_gpu_that_fails_is_told_in_one_line(kind, text, told):
    found = device_error(kind(text))
    assert (found is not None) == told
    if found:
        assert found.message == text.splitlines()[0]
        assert "dmesg | grep Xid" in found.hint


@pytest.mark.parametrize(
    ("variable", "works", "settings"),
    [
        (None, True, ["expandable_segments:True"]),
        (None, False, ["expandable_segments:True", "expandable_segments:False"]),
        ("PYTORCH_ALLOC_CONF", True, []),
        ("PYTORCH_CUDA_ALLOC_CONF", True, []),
    ],
)
def test_memory_of_a_gpu_grows_where_it_can_and_the_user_has_no_settings(monkeypatch, variable, works, settings):
    def empty(size, device):
        if not works:
            raise RuntimeError("CUDA driver error: operation not supported")

    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv(variable, "max_split_size_mb:128")
    given = []
    monkeypatch.setattr(torch_internals, "find", lambda name: given.append)
    monkeypatch.setattr(torch, "empty", empty)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("cuda:1", None) == torch.device("cuda:1")
    assert given == settings


# --- memory -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("allocate", "size"),
    [(lambda: torch.empty(2**55), f"{2**57} bytes"), (lambda: np.empty(2**50), "8.00 PiB"),
     (lambda: bytearray(2**60), ""), (lambda: torch.empty(2**62, 8), "")],
    ids=["torch", "numpy", "python", "overflow"],
)  # fmt: skip
def test_memory_that_cannot_be_had_is_called_so(allocate, size: str):
    with pytest.raises((RuntimeError, MemoryError)) as caught:
        allocate()
    error = memory_error(caught.value)
    assert error is not None
    assert error.message == "out of memory" + (f": {size} could not be allocated" if size else "")
    assert error.hint
