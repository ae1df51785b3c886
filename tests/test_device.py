"""Which device is chosen, and that a process on a CPU keeps its memory."""

import ctypes
import subprocess
import sys

import pytest
import torch

from nmt import device
from nmt.device import choose_device, find_device
from nmt.errors import UserError


def test_devices_that_exist_are_chosen_by_name():
    assert choose_device("cpu", None) == torch.device("cpu")
    assert choose_device("auto", None).type == ("cuda" if torch.cuda.is_available() else "cpu")


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
