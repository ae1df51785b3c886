"""How fast this machine computes, without PyTorch, which takes long to import and whose threads forks lack."""

from __future__ import annotations

import time
from functools import cache

import numpy as np

SIZE = 512
SECONDS = 0.1


@cache
def processor_flops() -> float:
    """Return the fp32 FLOP/s of matrix multiplications by all processors, measured for 0.1 s."""
    x = np.ones((SIZE, SIZE), np.float32)
    x @ x  # which starts its threads
    began = time.perf_counter()
    count = 0
    while (seconds := time.perf_counter() - began) < SECONDS:
        x @ x
        count += 1
    return 2.0 * SIZE**3 * count / seconds
