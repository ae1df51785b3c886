"""Compile the kernels of attention for a GPU that is not there, and print what they take."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget

from nmt.compute import group_attention
from nmt.search import step_attention

LISTS = ("groups", "key_groups", "segments", "key_bounds", "table", "extents")
KINDS = {**dict.fromkeys(LISTS, "*i32"), "newest": "*i64", "seen": "*i1"}
NUMBERS = ("before", "after", "beam", "columns", "places")


def resources(capability: int, kernel: triton.JITFunction, constants: dict[str, Any]) -> tuple[int, int, int]:
    """Return registers and bytes spilled of a thread, and bytes of shared memory."""
    options = {"num_warps": constants.pop("num_warps", 4)}
    kinds = {**dict.fromkeys(constants, "constexpr"), **KINDS, **dict.fromkeys(NUMBERS, "i32")}
    signature = {name: kinds.get(name, "*bf16") for name in kernel.arg_names}
    aligned = {
        (place,): [["tt.divisibility", 16]] for place, kind in enumerate(signature.values()) if kind.startswith("*")
    }
    made = triton.compile(
        triton.compiler.ASTSource(kernel, signature, constants, aligned),
        target=GPUTarget("cuda", capability, 32),
        options=options,
    )
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "ptx").write_text(made.asm["ptx"])
        (target,) = re.findall(r"\.target (\w+)", made.asm["ptx"])
        command = [triton.knobs.nvidia.ptxas.path, "-v", "--gpu-name", target, "ptx", "-o", "cubin"]
        said = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stderr
    (registers,), (spilled,) = re.findall(r"Used (\d+) registers", said), re.findall(r"(\d+) bytes spill stores", said)
    return int(registers), int(spilled), made.metadata.shared


if __name__ == "__main__":
    capability, which, width, size = int(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:])
    for way in (False, True):
        if which == "step":  # of hypotheses' own places, or of sources; `size` is the beam
            constants = step_attention.constants(way, 16, (width, width), size)
            print("own" if way else "source", *resources(capability, step_attention._attention, constants))
            continue
        for alone in (True, False):  # `size` is that of a tile
            constants = group_attention._constants(alone, way, width, size)
            found = resources(capability, group_attention._attention, constants)
            print("backward" if way else "forward", "self" if alone else "cross", *found)
