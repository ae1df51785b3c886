"""Choice of the library for fp32 matrix products on a CPU, and of bf16 in training.

PyTorch multiplies with MKL, which runs AVX2 code on AMD processors even if they have AVX-512. oneDNN, also a part of
PyTorch, uses AVX-512 there. From Zen 5 on this is twice as fast; Zen 4 computes 256 bits at a time, so there MKL is as
fast, with smaller rounding errors. The choice ignores timings, which could favour another library when a run resumes.
Other dtypes and devices, compiled code, batched products and in-place sums keep PyTorch's own products. Searches, whose
matrices are laid out in advance, multiply by `nmt.model.linear`.
"""

from __future__ import annotations

import math
import os
import platform
import re
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from nmt.system import torch_internals
from nmt.system.errors import UserError

MKL, ONEDNN, PYTORCH = "mkl", "onednn", "pytorch"
VARIABLE = "NMT_PRODUCTS"  # environment variable that overrides the choice, for experiments: mkl or onednn
CPUINFO = Path("/proc/cpuinfo")
ZEN_4, ZEN_5 = 25, 26  # AMD's processor families; Zen 3 is also 25, without AVX-512


@cache
def library() -> str:
    """Return onednn on AMD from Zen 5 on with AVX-512, mkl on other x86, and pytorch (its own choice) elsewhere.

    On x86 with both libraries, NMT_PRODUCTS overrides this. Raise UserError if it is neither mkl nor onednn.
    """
    both = torch.backends.mkl.is_available() and torch_internals.find("torch:ops.mkldnn._linear_pointwise")
    given = os.environ.get(VARIABLE)
    if given not in (None, "", MKL, ONEDNN):
        raise UserError(f"{VARIABLE}={given}: is neither {MKL} nor {ONEDNN}", f"unset {VARIABLE}")
    if not both or platform.machine() not in ("x86_64", "AMD64"):
        return PYTORCH
    return given or (ONEDNN if _amd_family() >= ZEN_5 and _has_512_bits() else MKL)


@cache
def narrowest_in_bf16() -> float:
    """Return the smallest d_model of which training in bf16 is known to be faster on this CPU; infinity if none is."""
    supported = torch_internals.find("torch.cpu:_is_avx512_bf16_supported")
    if not (supported and supported() and _has_512_bits()):
        return math.inf
    return 128 if _amd_family() == ZEN_4 else 256


def _has_512_bits() -> bool:
    return torch.backends.cpu.get_cpu_capability() == "AVX512"


def _amd_family() -> int:
    """Return the processor's family if it is AMD's, else 0."""
    text = CPUINFO.read_text(errors="replace") if CPUINFO.exists() else platform.processor()  # the latter on Windows
    family = re.search(r"family\s*:?\s*(\d+)", text, re.IGNORECASE)
    return int(family[1]) if family and "AuthenticAMD" in text else 0


def by_onednn(x: Tensor) -> bool:
    """Return whether oneDNN multiplies x: non-empty fp32 on a CPU, not under autocast or torch.compile."""
    if torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu") or not x.numel():
        return False
    return x.dtype is torch.float32 and x.device.type == "cpu" and library() == ONEDNN


def factor_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype in which products with x are computed: autocast's where it is enabled, else x's."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x Wᵀ + b, differentiably: x (…, in), `weight` (out, in), `bias` (out,), the result (…, out)."""
    if not by_onednn(x):
        return F.linear(x, weight, bias)
    if torch.is_grad_enabled():
        return _Linear.apply(x, weight, bias)  # type: ignore[no-any-return, no-untyped-call]
    return rows_by_rows(x, weight, bias)


def product(a: Tensor, b: Tensor, scale: float = 1.0, bias: Tensor | None = None) -> Tensor:
    """Return scale · a b + bias for two matrices, without a gradient."""
    if not by_onednn(a):  # addmm applies the scale at no cost
        start, share = (a.new_empty(()), 0) if bias is None else (bias, 1)
        return torch.addmm(start, a, b, beta=share, alpha=scale)
    if scale == 1.0:
        return rows_by_rows(a, b.t(), bias)
    y = rows_by_rows(a, b.t()).mul_(scale)
    return y if bias is None else y.add_(bias)


def rows_by_rows(x: Tensor, y: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x yᵀ + b by oneDNN: x (…, k), y (n, k), the result (…, n). y may come from `packed`."""
    multiply = torch_internals.find("torch:ops.mkldnn._linear_pointwise")
    return multiply(x, y, bias, "none", [], "") if multiply else F.linear(x, y, bias)


def packed(weight: Tensor) -> Tensor:
    """Reorder a weight (out, in), fp32 or bf16, into oneDNN's fastest layout."""
    multiply = torch_internals.find("torch:ops.mkldnn._linear_pointwise")
    reorder = torch_internals.find("torch:ops.mkldnn._reorder_linear_weight")
    return reorder(weight) if multiply and reorder else weight


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return rows_by_rows(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        rows = grad.reshape(-1, grad.size(-1))
        x_grad = rows_by_rows(grad, weight.t()) if ctx.needs_input_grad[0] else None
        weight_grad = rows_by_rows(rows.t(), x.reshape(-1, x.size(-1)).t()) if ctx.needs_input_grad[1] else None
        return x_grad, weight_grad, rows.sum(0) if ctx.needs_input_grad[2] else None
