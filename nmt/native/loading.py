"""Opens the C library for this processor, if it was compiled. It is opened by ctypes, so calls release the GIL."""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int32, c_int64, c_void_p
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

VERSION = 7  # NMT_KERNELS_VERSION of the source; a library compiled from another version is not used

INSTRUCTION_SETS = {"_avx512": "AVX-512", "_avx2": "AVX2", "_base": "generic"}  # by library, the best one first
NEEDED = {"_avx512": {"AVX512"}, "_avx2": {"AVX512", "AVX2"}}  # by library: the capabilities of which one is needed

TYPES = {"n": c_int64, "p": c_void_p, "f": c_float}
STATES = "pnnn"  # numbers, and the steps between rows, heads and places

FUNCTIONS = {  # by name: the types of the arguments
    "nmt_kernels_version": "",
    # rows, width, x, z, bias or None, weight, shift, epsilon, total or None, norm
    "nmt_add_norm": "nn ppppp f pp",
    # rows, beam, extent, parents, bias with its steps, written with its step, forgotten, step, before, newest
    "nmt_extend": "nnn p pnn pn nn pp",
    # rows, beam, extent, bias with its steps, room, places, counts
    "nmt_seen_places": "nnn pnn n pp",
    # count, which, beam, heads, widths, projected, newest, keys and values with their steps, places, counts, room,
    # scale, out
    "nmt_attend_to_places": f"np nnnn pp {STATES} {STATES} pp n f p",
    # count, which, beam, heads, widths, queries, keys and values with their steps, lengths, scale, out
    "nmt_attend_to_rows": f"np nnnn p {STATES} {STATES} p f p",
    # count, from, to, heads, used, states with their steps
    "nmt_move_rows": f"n pp nn {STATES}",
    # rows, width, x and its bias
    "nmt_add_bias_relu": "nn pp",
    "nmt_add_bias_silu": "nn pp",
    "nmt_add_bias_gelu": "nn pp",
    # rows, width, vocabulary, reserved, logits
    "nmt_log_softmax": "nnnn p",
    # rows, beam, width, count, log_probs, alive, totals, parents, symbols
    "nmt_best_extensions": "nnnn ppppp",
    # rows, width, x, quantised, scales
    "nmt_quantise_rows": "nn ppp",
    "nmt_int8_panel": "",
    "nmt_int8_limit": "",
    # rows, width, outputs, x, row scales, matrix, shifts, scales, out
    "nmt_int8_product": "nnn pppppp",
}


RESULTS = {  # of those that return something
    "nmt_extend": c_int64,
    **dict.fromkeys(("nmt_kernels_version", "nmt_int8_panel", "nmt_int8_limit"), c_int32),
}


class Library(NamedTuple):
    """An opened library: the C functions, with their types declared, and the instruction set they use."""

    functions: ctypes.CDLL
    instruction_set: str


@cache
def library() -> Library | None:
    """The library for this processor, or None: PyTorch's operations are to be used. ATEN_CPU_CAPABILITY is obeyed.

    The result is cached. It stays valid in forked processes.
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
    """The C functions if there are any and they apply to all of these tensors, else None.

    They apply to contiguous fp32 tensors on a CPU, without gradients and autocast, and not while torch.compile traces.
    """
    if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling():
        return None
    if not all(x.dtype is torch.float32 and x.is_cpu and x.is_contiguous() for x in tensors):
        return None
    opened = library()
    return None if opened is None else opened.functions


def find(name: str) -> Path | None:
    """The file of a library, or None if it was not compiled."""
    spec = find_spec(f"nmt.native.{name}")
    return None if spec is None or spec.origin is None else Path(spec.origin)


def open_library(path: Path) -> ctypes.CDLL | None:
    """The C functions with their types declared, or None if the file cannot be used: it is damaged, or stale."""
    try:
        functions = ctypes.CDLL(str(path))
        for name, arguments in FUNCTIONS.items():
            function = getattr(functions, name)
            function.argtypes = [TYPES[kind] for kind in arguments.replace(" ", "")]
            function.restype = RESULTS.get(name)
    except (OSError, AttributeError):
        return None
    return functions if functions.nmt_kernels_version() == VERSION else None
