"""Devices with their threads; GPUs that fail; memory that cannot be had."""

import os

import numpy as np
import pytest
import torch

from nmt.system import device, torch_internals
from nmt.system.device import choose_device, device_error, let_waiting_threads_sleep, memory_error


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


def test_operations_have_no_more_threads_than_cores(monkeypatch):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        monkeypatch.setattr("nmt.system.parallelism.cores", lambda: 2)
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
