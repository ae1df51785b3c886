"""How fast this machine computes, without PyTorch, which takes long to import and whose threads forks lack."""

from __future__ import annotations

import time
from functools import cache

import numpy as np

SIZE = 96  # so small that one thread multiplies
SECONDS = 0.05


@cache
def core_flops() -> float:
    """Return the fp32 FLOP/s of matrix multiplications by a core, measured by its own time."""
    x = np.ones((SIZE, SIZE), np.float32)
    x @ x  # which prepares its library
    began = time.process_time()
    count = 0
    while (seconds := time.process_time() - began) < SECONDS:
        for _ in range(100):
            x @ x
        count += 100
    return 2.0 * SIZE**3 * count / seconds
