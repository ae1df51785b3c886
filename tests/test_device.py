"""Which device is chosen, and that a process on a CPU keeps its memory."""

import platform
import subprocess
import sys

import pytest
import torch

from nmt import device
from nmt.device import choose_device
from nmt.errors import UserError


def test_devices_that_exist_are_chosen_by_name():
    assert choose_device("cpu", None) == torch.device("cpu")
    assert choose_device("auto", None).type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cpu:0", "cuda:99", ""])
def test_other_devices_are_refused_by_name(name):
    with pytest.raises(UserError, match=f"--device {name}: "):
        choose_device(name, None)


FAULTS = """
import resource, torch
from nmt.device import choose_device
{choice}
for _ in range(2):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    tensor = torch.ones(1 << 26)  # 256 MB
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    del tensor
print(faults)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told")
def test_memory_of_a_tensor_is_given_to_the_next_without_page_faults():
    def faults(choice):
        program = [sys.executable, "-c", FAULTS.format(choice=choice)]
        return int(subprocess.run(program, capture_output=True, text=True, check=True).stdout)

    assert faults("choose_device('cpu', None)") < 100
    assert faults("") > 100  # else it would be for nothing


@pytest.mark.parametrize("failure", [OSError, TypeError])
def test_other_c_libraries_are_left_alone(monkeypatch, failure):
    def missing(name):
        raise failure

    monkeypatch.setattr(device.ctypes, "CDLL", missing)
    assert choose_device("cpu", None) == torch.device("cpu")
