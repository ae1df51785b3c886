"""How many workers a host starts."""

from __future__ import annotations

import pytest

from nmt.errors import UserError
from nmt.training.launcher import count_workers


def test_every_visible_gpu_is_used_unless_told(gpus: int) -> None:
    assert count_workers("auto", None) == max(1, gpus)
    assert count_workers("cuda", None) == max(1, gpus)
    assert count_workers("cuda:0", None) == 1
    assert count_workers("cpu", None) == 1


def test_as_many_devices_are_used_as_asked_for(gpus: int) -> None:
    assert count_workers("cpu", 7) == 7
    assert count_workers("cuda:1", 1) == 1 if gpus else True
    for device in ("cuda",) if gpus == 0 else ("auto", "cuda"):
        for devices in range(1, gpus + 1):
            assert count_workers(device, devices) == devices
        with pytest.raises(UserError, match=f"--devices {gpus + 1}: this machine has {gpus} CUDA devices"):
            count_workers(device, gpus + 1)
    if gpus == 0:
        assert count_workers("auto", 3) == 3


def test_one_device_is_not_many(gpus: int) -> None:
    with pytest.raises(UserError, match="--devices 2: --device cuda:0 is one device"):
        count_workers("cuda:0", 2)
