"""Which device is chosen, and that a process on a CPU keeps its memory."""

import ctypes
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from nmt import device
from nmt.device import _cgroup_limits, available_memory, choose_device, find_device, memory_error
from nmt.errors import UserError


def test_devices_that_exist_are_chosen_by_name():
    assert choose_device("cpu", None) == torch.device("cpu")
    assert choose_device("auto", None).type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cpu:0", "cuda:99", ""])
def test_other_devices_are_refused_by_name(name):
    with pytest.raises(UserError, match=f"--device {name}: "):
        choose_device(name, None)


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


KEPT = """
import ctypes, torch
from nmt.device import choose_device

class Heap(ctypes.Structure):  # mallinfo2 of glibc
    _fields_ = [(name, ctypes.c_size_t) for name in
                "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]

{choice}
tensor = torch.ones(1 << 24)  # 64 MB
del tensor
heap = ctypes.CDLL(None).mallinfo2
heap.restype = Heap
print(heap().fordblks)  # bytes that are free and still the process's
"""


def test_memory_of_a_tensor_stays_with_the_process_for_the_next():
    if not hasattr(ctypes.CDLL(None), "mallinfo2"):
        pytest.skip("this C library does not tell what it keeps")

    def kept(choice):
        program = [sys.executable, "-c", KEPT.format(choice=choice)]
        return int(subprocess.run(program, capture_output=True, text=True, check=True).stdout)

    assert kept("choose_device('cpu', None)") >= 1 << 26
    assert kept("") < 1 << 26  # else it would be for nothing


@pytest.mark.parametrize("failure", [OSError, TypeError])
def test_other_c_libraries_are_left_alone(monkeypatch, failure):
    def missing(name):
        raise failure

    monkeypatch.setattr(device.ctypes, "CDLL", missing)
    assert choose_device("cpu", None) == torch.device("cpu")


# --- memory -------------------------------------------------------------------------------------------------


def test_the_memory_of_this_machine_is_known():
    if not Path("/proc/meminfo").exists():
        pytest.skip("needs /proc")
    there = available_memory(torch.device("cpu"))
    assert there is not None
    assert there > 2**20


def test_the_limits_of_all_cgroups_around_a_process_count(tmp_path: Path):
    for name, text in {
        "self": "12:cpu,cpuacct:/elsewhere\n5:memory:/job\n0::/user/job\n",
        "memory.max": "max\n",
        "user/memory.max": "5000\n",
        "user/job/memory.max": "7000\n",
        "memory/job/memory.limit_in_bytes": "3000\n",
        "elsewhere/memory.max": "1\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert sorted(_cgroup_limits(tmp_path / "self", tmp_path)) == [3000, 5000, 7000]
    assert list(_cgroup_limits(tmp_path / "none", tmp_path)) == []


@pytest.mark.parametrize(
    ("allocate", "size"),
    [(lambda: torch.empty(2**55), "134217728.0 GiB"), (lambda: np.empty(2**50), "8.00 PiB"),
     (lambda: bytearray(2**60), ""), (lambda: torch.empty(2**62, 8), "")],
    ids=["torch", "numpy", "python", "overflow"],
)  # fmt: skip
def test_memory_that_cannot_be_had_is_called_so(allocate, size: str):
    with pytest.raises((RuntimeError, MemoryError)) as caught:
        allocate()
    error = memory_error(caught.value)
    assert error is not None
    assert error.message == "out of memory" + (f": {size} could not be had at once" if size else "")
    assert error.hint


def test_memory_of_a_gpu_that_cannot_be_had_is_called_so():
    text = "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.18 GiB"
    error = memory_error(torch.OutOfMemoryError(text))
    assert error is not None
    assert error.message == "out of memory: 20.00 GiB could not be had at once"


def test_other_errors_are_not_called_a_lack_of_memory():
    for other in (ValueError("out of memory"), RuntimeError("shape mismatch"), KeyError("x")):
        assert memory_error(other) is None
