"""Load the C kernels for this processor, if they were compiled.

ctypes releases the GIL during calls.
"""

from __future__ import annotations

import ctypes
from ctypes import c_void_p
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch

from nmt.compute.header import constant, declared
from nmt.system import torch_internals

INSTRUCTION_SETS = {"_avx512": "AVX-512", "_avx2": "AVX2", "_base": "generic"}  # by library, best first
NEEDED = {"_avx512": {"AVX512"}, "_avx2": {"AVX512", "AVX2"}}  # by library but _base: CPU capabilities with support


class Kernels(NamedTuple):
    """A loaded library: its C functions with declared types, and its instruction set."""

    functions: ctypes.CDLL
    instruction_set: str

    @property
    def multiplies(self) -> bool:
        """Whether nmt_product is as fast as the libraries for matrix products: with fused multiply-add."""
        return self.instruction_set != INSTRUCTION_SETS["_base"]


@cache
def kernels() -> Kernels | None:
    """Return the library for this processor, respecting ATEN_CPU_CAPABILITY, or None if no usable one was compiled.

    The result is cached and stays valid in forked processes.
    """
    capability = torch.backends.cpu.get_cpu_capability()
    for name, instruction_set in INSTRUCTION_SETS.items():
        path = find(name)
        if path is None or capability not in NEEDED.get(name, {capability}):
            continue
        functions = open_library(path)
        if functions is None:
            return None
        return Kernels(functions, instruction_set)
    return None


def find(name: str) -> Path | None:
    """Return a library's path, or None if it was not compiled."""
    path = Path(__file__).with_name(f"{name}.so")
    if not path.exists():
        return None
    return path


def open_library(path: Path) -> ctypes.CDLL | None:
    """Return the C functions with declared types, or None if the file is damaged or stale."""
    try:
        functions = ctypes.CDLL(str(path))
        for name, (result, parameters) in declared().prototypes.items():
            function = getattr(functions, name)
            function.restype = result
            function.argtypes = parameters
    except (OSError, AttributeError):
        return None
    if functions.nmt_kernels_version() != constant("KERNELS_VERSION"):
        return None
    return functions


@cache
def gomp_parallel() -> int | None:
    """Return the address of GOMP_parallel, which runs a C function on PyTorch's own threads; None without OpenMP."""
    library = ctypes.CDLL(torch_internals.find("torch:_C.__file__"))
    function = getattr(library, "GOMP_parallel", None)
    if function is None:
        return None
    return ctypes.cast(function, c_void_p).value


def threads() -> tuple[int | None, int]:
    """Return the last arguments of kernels that share their work among PyTorch's threads."""
    return gomp_parallel(), torch.get_num_threads()
