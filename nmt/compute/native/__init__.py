"""Load the C library for this processor, if it was compiled, and call its 8-bit matrix products.

ctypes releases the GIL during calls.
"""

from __future__ import annotations

import ctypes
import re
from ctypes import c_float, c_int32, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from nmt.system import torch_internals

INSTRUCTION_SETS = {"_avx512": "AVX-512", "_avx2": "AVX2", "_base": "generic"}  # by library, best first
NEEDED = {"_avx512": {"AVX512"}, "_avx2": {"AVX512", "AVX2"}}  # by library: CPU capabilities that support it

HEADER = Path(__file__).with_name("nmt_kernels.h")
TYPES = {"int32_t": c_int32, "int64_t": c_int64, "float": c_float, "void": None}  # and pointers


class Library(NamedTuple):
    """A loaded library: its C functions with declared types, and its instruction set."""

    functions: ctypes.CDLL
    instruction_set: str

    @property
    def multiplies(self) -> bool:
        """Whether nmt_product is as fast as the libraries for matrix products: with fused multiply-add."""
        return self.instruction_set != INSTRUCTION_SETS["_base"]


@cache
def library() -> Library | None:
    """Return the library for this processor, respecting ATEN_CPU_CAPABILITY, or None if no usable one was compiled.

    The result is cached and stays valid in forked processes.
    """
    capability = torch.backends.cpu.get_cpu_capability()
    for name, instruction_set in INSTRUCTION_SETS.items():
        if name in NEEDED and capability not in NEEDED[name]:
            continue
        if (path := find(name)) is not None:
            functions = open_library(path)
            return None if functions is None else Library(functions, instruction_set)
    return None


def functions_for(*tensors: Tensor) -> ctypes.CDLL | None:
    """Return the C functions if they are available and apply to all `tensors`, else None.

    They apply to contiguous fp32 tensors on a CPU, without gradients, autocast or torch.compile.
    """
    if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling():
        return None
    if not all(x.dtype is torch.float32 and x.is_cpu and x.is_contiguous() for x in tensors):
        return None
    opened = library()
    return None if opened is None else opened.functions


def find(name: str) -> Path | None:
    """Return a library's path, or None if it was not compiled."""
    path = Path(__file__).with_name(f"{name}.so")
    return path if path.exists() else None


def open_library(path: Path) -> ctypes.CDLL | None:
    """Return the C functions with declared types, or None if the file is damaged or stale."""
    version, prototypes = declared()
    try:
        functions = ctypes.CDLL(str(path))
        for name, (result, parameters) in prototypes.items():
            function = getattr(functions, name)
            function.restype, function.argtypes = result, parameters
    except (OSError, AttributeError):
        return None
    return functions if functions.nmt_kernels_version() == version else None


@cache
def declared() -> tuple[int, dict[str, tuple[Any, list[Any]]]]:
    """Return the version in the header, and the types of each function's result and parameters."""
    source = re.sub(r"/\*.*?\*/", "", HEADER.read_text(encoding="utf-8"), flags=re.DOTALL)
    version = re.search(r"^#define NMT_KERNELS_VERSION (\d+)$", source, re.MULTILINE)
    assert version
    prototypes = {}
    for declaration in re.findall(r"^EXPORTED ([^;]*);", source, re.MULTILINE):
        parts = re.fullmatch(r"(\w+) (\w+)\(([^()]*)\)", declaration)
        assert parts, declaration
        given = [] if parts[3] == "void" else parts[3].split(",")
        parameters = [c_void_p if "*" in parameter else TYPES[parameter.split()[0]] for parameter in given]
        prototypes[parts[2]] = TYPES[parts[1]], parameters
    return int(version[1]), prototypes


@cache
def gomp_parallel() -> int | None:
    """Return the address of GOMP_parallel, which runs a C function on PyTorch's own threads; None without OpenMP."""
    function = getattr(ctypes.CDLL(torch_internals.find("torch:_C.__file__")), "GOMP_parallel", None)
    return ctypes.cast(function, c_void_p).value if function else None


ZERO_POINT = 128  # the unsigned 8-bit value for 0
FEW_MULTIPLICATIONS = 1 << 23  # multiplications · threads up to which nmt_int8_product is as fast as oneDNN with AMX
MIN_SCALE = 1e-12  # avoids division by 0 in rows of zeros


def quantise_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise x (rows, width) to uint8; return it and the scales (rows, 1): x ≈ (quantised - 128) · scale.

    A row's largest absolute value maps to 127; halves are rounded up. The scale of a row with infinity or NaN is not
    finite.
    """
    functions = functions_for(x)
    if functions is None:
        return plain_quantise_rows(x)
    quantised, scales = torch.empty(x.shape, dtype=torch.uint8), x.new_empty((len(x), 1))
    functions.nmt_quantise_rows(*x.shape, x.data_ptr(), quantised.data_ptr(), scales.data_ptr())
    return quantised, scales


def plain_quantise_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """PyTorch fallback for `quantise_rows`."""
    scales = x.abs().amax(1, keepdim=True).div_(127.0).clamp_min_(MIN_SCALE)
    # The conversion truncates: adding 128.5 instead of 128 makes it round.
    return (x * scales.reciprocal()).add_(ZERO_POINT + 0.5).to(torch.uint8), scales


class FewQuantisedRows:
    """The product x Wᵀ of few quantised rows x and an 8-bit matrix W (out, in), by nmt_int8_product."""

    def __init__(self, matrix: Tensor, scales: Tensor, panel: int, amx: bool) -> None:
        """Lay out W in panels of `panel` outputs. `scales` (out,) are its rows' scales; `amx`: oneDNN can use AMX."""
        outputs, width = matrix.shape
        beyond = -outputs % panel
        panels = F.pad(matrix, (0, 0, 0, beyond)).view(-1, panel, width // 4, 4)
        self._matrix = panels.transpose(1, 2).contiguous()
        self._shifts = F.pad(matrix.sum(1, dtype=torch.int32) * -ZERO_POINT, (0, beyond))
        self._scales = F.pad(scales, (0, beyond))
        self._outputs, self._amx = outputs, amx

    def product(self, quantised: Tensor, scales: Tensor) -> Tensor | None:
        """Return the fp32 product (rows, out) of quantised rows, or None to leave it to oneDNN."""
        functions, threads = functions_for(scales), torch.get_num_threads()
        rows, width = quantised.shape
        is_large = rows * width * self._outputs * threads > FEW_MULTIPLICATIONS
        if functions is None or (is_large and (self._amx or threads > 1)):
            return None
        y = scales.new_empty((rows, self._outputs))
        functions.nmt_int8_product(
            *(rows, width, self._outputs, quantised.data_ptr(), scales.data_ptr(), self._matrix.data_ptr()),
            *(self._shifts.data_ptr(), self._scales.data_ptr(), y.data_ptr()),
        )
        return y


def for_few_rows(matrix: Tensor, scales: Tensor, limit: int) -> FewQuantisedRows | None:
    """Lay out W (out, in), with absolute values up to `limit`, for nmt_int8_product; return None if unsupported."""
    opened = library()
    if opened is None or opened.functions.nmt_int8_limit() < limit or matrix.size(1) % 4:
        return None
    has_amx = torch_internals.find("torch.cpu:_is_amx_tile_supported")
    amx = bool(opened.instruction_set == INSTRUCTION_SETS["_avx512"] and has_amx and has_amx())
    return FewQuantisedRows(matrix, scales, opened.functions.nmt_int8_panel(), amx)
