"""Compile the kernels of group attention for a GPU that is not there, and print what they take."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget

from nmt.compute import group_attention


def resources(capability: int, alone: bool, backward: bool, width: int, tile: int) -> tuple[int, int, int]:
    """Return registers and bytes spilled of a thread, and bytes of shared memory."""
    kernel, constants = group_attention._attention, group_attention._constants(alone, backward, width, tile)
    options = {"num_warps": constants.pop("num_warps")}
    lists = {"groups": "*i32", "key_groups": "*i32", "segments": "*i32", "key_bounds": "*i32"}
    kinds = {**dict.fromkeys(constants, "constexpr"), **lists, "before": "i32", "after": "i32"}
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
    capability, width, tile = map(int, sys.argv[1:])
    for backward in (False, True):
        for alone in (True, False):
            found = resources(capability, alone, backward, width, tile)
            print("backward" if backward else "forward", "self" if alone else "cross", *found)
