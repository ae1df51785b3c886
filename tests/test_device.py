"""Which device is chosen, and that a process on a CPU keeps its memory."""

import os

import numpy as np
import pytest
import torch

from nmt import device
from nmt.device import choose_device, cores, device_error, find_device, let_waiting_threads_sleep, memory_error
from nmt.errors import UserError


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cpu:0", "cuda:99", "cuda:０", ""])
def test_other_devices_are_refused_by_name(name):
    with pytest.raises(UserError, match=f"--device {name}: ") as error:
        choose_device(name, None)
    assert ("no such device" in error.value.message) == (name != "cuda:99")


@pytest.mark.parametrize(
    ("name", "there", "worker", "chosen"),
    [("auto", 0, 1, "cpu"), ("auto", 2, 1, "cuda:1"), ("cuda", 2, 0, "cuda:0"), ("cpu", 2, 1, "cpu"),
     ("auto", 2, None, "cuda"), ("cuda:1", 2, None, "cuda:1")],
)  # fmt: skip
def test_every_worker_has_a_gpu_of_its_own(name, there, worker, chosen):
    assert find_device(name, there, worker) == chosen


def test_workers_need_as_many_gpus():
    with pytest.raises(UserError, match="--device cuda:2: this machine has 2 CUDA devices"):
        find_device("auto", 2, 2)
    with pytest.raises(UserError, match="--device cuda:1: is one device"):
        find_device("cuda:1", 2, 0)


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


# --- threads ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("quota", "expected"), [(None, 64), (2.0, 2), (1.5, 2), (0.1, 1), (100.0, 64)])
def test_cores_are_no_more_than_the_quota(monkeypatch, quota, expected):
    monkeypatch.setattr(device.os, "sched_getaffinity", lambda process: set(range(64)), raising=False)
    monkeypatch.setattr(device, "cpu_quota", lambda: quota)
    assert cores() == expected


@pytest.mark.parametrize(("cpus", "expected"), [("8", 8), ("100", 64), ("0", 1), ("many", 64)])
def test_cores_are_no_more_than_slurm_reserves(monkeypatch, cpus, expected):
    monkeypatch.setattr(device.os, "sched_getaffinity", lambda process: set(range(64)), raising=False)
    monkeypatch.setattr(device, "cpu_quota", lambda: None)
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", cpus)
    assert cores() == 64  # of a batch script, whose processes share the cores of its tasks
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
    assert callable(torch._C._accelerator_setAllocatorSettings)  # of this PyTorch
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", given.append)
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
