"""Which device computes, and on how many threads."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nmt.errors import UserError

if TYPE_CHECKING:
    import torch


def choose_device(name: str, threads: int | None) -> torch.device:
    """The device called auto, cpu, cuda or cuda:N; sets PyTorch's threads. Raises UserError where there is none."""
    import torch

    if threads is not None:
        torch.set_num_threads(threads)
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise UserError(f"--device {name}: no such device", "auto, cpu, cuda or cuda:1")
    kind, _, index = name.partition(":")
    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        raise UserError(f"--device {name}: this machine has {torch.cuda.device_count()} CUDA devices", "--device cpu")
    return torch.device(name)
