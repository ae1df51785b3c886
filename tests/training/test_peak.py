"""The share of a GPU's peak: of which devices the peak is known, and where the share is told."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from nmt.data.corpus import Lengths
from nmt.system.console import Console, JsonLines, unseen
from nmt.system.launchers import World
from nmt.training import meter as metering
from nmt.training.distributed import Group
from nmt.training.meter import Meter
from nmt.training.peak import peak_flops
from nmt.training.progress import Progress
from nmt.training.run_state import RunState


@pytest.mark.parametrize(
    ("name", "teraflops"),
    [
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A100 80GB PCIe", 312),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H200", 989),
        ("NVIDIA H200 NVL", 835),
        ("NVIDIA L4", 121),
        ("Tesla T4", 65),
        ("Tesla V100-SXM2-16GB", 125),
        ("NVIDIA GeForce RTX 4090", 165),
        # Others of a similar name, and parts of a GPU
        *((name, None) for name in ("NVIDIA L40S", "NVIDIA GH200 480GB", "NVIDIA GeForce RTX 4090 Laptop GPU")),
        *((name, None) for name in ("NVIDIA A10", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "AMD Instinct MI300X")),
    ],
)
def test_a_peak_is_that_of_this_very_gpu(name: str, teraflops: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: name)
    peak = peak_flops(torch.device("cuda", 0))
    assert peak == (None if teraflops is None else teraflops * 1e12)
    assert peak_flops(torch.device("cpu")) is None


@pytest.mark.parametrize("peak", [1000.0, None])
def test_the_share_is_told_where_the_peak_is_known(
    peak: float | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(metering, "sustained_flops", lambda device: 1e9)
    monkeypatch.setattr(metering, "peak_flops", lambda device: peak)
    group = Group(World(), 1)
    meter = Meter(RunState(step=1, epoch=0, offset=1), group, "fp32")
    monkeypatch.setattr(group, "size", 2)
    monkeypatch.setattr(group, "total", lambda *values: list(values))
    now[0] = 4.0
    meter.add([(torch.ones(()), torch.ones(()), 8)], Lengths(np.array([3]), np.array([3])), 3000.0, torch.ones(()))
    figures = meter.figures()
    assert figures["flops_per_second"] == 750.0
    assert figures.get("mfu") == (None if peak is None else 0.375)  # of what two devices could do
    console = Console()
    console.live = False
    lines = JsonLines(Path(os.devnull), console.say)
    Progress(console, lines, "", unseen).log({"step": 1, "learning_rate": 0.5} | figures, 0.0)
    assert ("  1 tok/s  MFU 37.5%  0s left" in capsys.readouterr().err) == (peak is not None)
