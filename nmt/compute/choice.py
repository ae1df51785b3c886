"""The one place that chooses how a model is trained and scored: by device, precision, processor and purpose.

`nmt.search.way` chooses how a search takes its steps.

| purpose | on | operations |
|---|---|---|
| training | a CPU | `cpu_training_in_c.TrainingByNmt`, or `TrainingInC` where a library is faster |
| training, without C kernels | a CPU | `cpu_training.TrainingOnCPU` |
| training, compiled | a CPU | `operations.PLAIN`: the compiler fuses these better |
| training, scoring | a GPU | `gpu.GPU` |
| scoring outputs | a CPU | `operations.PLAIN`, or `cpu_products.ByNmt` where it is faster |

PyTorch multiplies with MKL, which runs AVX2 code on AMD processors even if they have AVX-512. Our own product in C is
faster there. The choice ignores timings, which could favour another library when a run resumes.
"""

from __future__ import annotations

import math
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from nmt.compute.cpu_products import ByNmt, has_amx
from nmt.compute.cpu_training import TrainingOnCPU
from nmt.compute.cpu_training_in_c import TrainingByNmt, TrainingInC
from nmt.compute.gpu import GPU, has_triton
from nmt.compute.native import kernels
from nmt.model.operations import PLAIN, Operations
from nmt.model.transformer import Transformer, computed_by
from nmt.system import torch_internals
from nmt.system.errors import UserError, counted

NMT = "nmt"
CPUINFO = Path("/proc/cpuinfo")
ZEN_3_OR_4 = 25  # AMD's processor family; Zen 3 has no AVX-512
ROUNDED = ("bf16", "bf32")  # precisions of training that are said where a device is named
NARROWEST_IN_TILES = 128  # d_model from which training in bf32 is faster than in fp32 on CPUs with AMX


# --- training and scoring ---------------------------------------------------------------------------------------------


def for_training(device: torch.device, dtype: torch.dtype, *, compiled: bool = False) -> Operations:
    """Return the operations of training on `device` with products in `dtype`."""
    if device.type != "cpu":
        return GPU(compiled and has_triton(device))
    if compiled:
        return PLAIN
    found = kernels()
    if found is None:
        return TrainingOnCPU()
    if dtype == torch.float32 and fp32_multiplier() == NMT:
        return TrainingByNmt(found.functions)
    return TrainingInC(found.functions)


def for_scoring(model: Transformer) -> Transformer:
    """Return `model`, in evaluation mode and sharing its parameters, for the computation of outputs that are known."""
    return computed_by(model, scoring_operations(model.output_embedding.weight)).eval()


def scoring_operations(weight: Tensor) -> Operations:
    """Return the operations of layers that are not trained, whose weights are like `weight`."""
    if weight.device.type != "cpu":
        return GPU()
    found = kernels()
    if found is not None and weight.dtype == torch.float32 and fp32_multiplier() == NMT:
        return ByNmt(found.functions)
    return PLAIN


@cache
def fp32_multiplier() -> str:
    """Return what multiplies fp32 matrices in training on this CPU: nmt, our C kernel, on AMD, else mkl or pytorch."""
    found = kernels()
    if found is not None and found.multiplies and _amd_family():
        return NMT
    if torch.backends.mkl.is_available():
        return "mkl"
    return "pytorch"


@cache
def narrowest_in_bf16() -> float:
    """Return the smallest d_model of which training in bf16 is known to be faster on this CPU; infinity if none is."""
    supported = torch_internals.find("torch.cpu:_is_avx512_bf16_supported")
    if not (supported and supported() and torch.backends.cpu.get_cpu_capability() == "AVX512"):
        return math.inf
    if _amd_family() == ZEN_3_OR_4:
        return 128
    return 256


def _amd_family() -> int:
    """Return the processor's family if it is AMD's, else 0."""
    text = CPUINFO.read_text(errors="replace") if CPUINFO.exists() else platform.processor()  # the latter on Windows
    family = re.search(r"family\s*:?\s*(\d+)", text, re.IGNORECASE)
    if family is None or "AuthenticAMD" not in text:
        return 0
    return int(family[1])


def device_name(device: torch.device, with_threads: bool = True, precision: str = "fp32") -> str:
    """Return the name of a device that multiplies in `precision`, which is not "auto".

    Examples are NVIDIA H200, CPU (2 threads, C kernels) and, without threads, CPU, bf16.
    """
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    how = ""
    if precision in ROUNDED:
        how = f", {precision}"
    elif fp32_multiplier() == NMT:
        how = ", C kernels"
    if not with_threads:
        return f"CPU{how}"
    threads = counted(torch.get_num_threads(), "thread")
    return f"CPU ({threads}{how})"


# --- precision of training --------------------------------------------------------------------------------------------


def training_precision(wanted: str, device: torch.device, d_model: int) -> str:
    """Return `training.precision`, or what its "auto" stands for: the fastest that learns as well.

    That is bf16 on GPUs that do not emulate it. On CPUs it is bf32 where they have AMX and bf16 where they have its
    instructions, from the d_model on for which these are known to be faster than fp32. fp16 is never used, as it would
    need loss scaling.
    """
    if wanted != "auto":
        return wanted
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    if device.type != "cpu":
        return "fp32"
    if has_amx():
        return "bf32" if d_model >= NARROWEST_IN_TILES else "fp32"
    return "bf16" if d_model >= narrowest_in_bf16() else "fp32"


def dtype_of(precision: str) -> torch.dtype:
    """Return the operand dtype of most matrix multiplications in `precision`, not "auto"; bf16 is by autocast."""
    return {"bf16": torch.bfloat16, "fp64": torch.float64}.get(precision, torch.float32)


def muon_dtype(precision: str, device: torch.device, d_model: int) -> torch.dtype:
    """Return the operand dtype of Muon's products under `training.precision`: that of other products on a GPU.

    On a CPU it is that of the weights, in which the gains measured for Muon were made.
    """
    if device.type == "cpu":
        if precision == "fp64":
            return torch.float64
        return torch.float32
    return dtype_of(training_precision(precision, device, d_model))


@contextmanager
def factors_rounded(precision: str) -> Iterator[None]:
    """Set that of fp32 matrix multiplications for the duration of the block; `precision` is not "auto".

    PyTorch's "medium" rounds operands to bf16 and accumulates in fp32 on CPUs with AMX, and has no effect on other
    CPUs; its "high" is TF32 on GPUs. "highest" is set explicitly because PyTorch's default varies.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision({"bf32": "medium", "tf32": "high"}.get(precision, "highest"))
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def set_precision(model: Transformer, precision: str, device: torch.device) -> None:
    """Convert the model to `training.precision`; raise UserError if the device does not support it."""
    only = {"tf32": ("cuda", "GPUs", "fp32, or bf32"), "bf32": ("cpu", "CPUs", "bf16, or tf32")}
    if precision in only:
        kind, devices, others = only[precision]
        if device.type != kind:
            problem = f"training.precision: {precision} is for {devices}, not for {device.type}"
            raise UserError(problem, f"--set training.precision={others}")
    if precision == "fp64":
        model.double()
