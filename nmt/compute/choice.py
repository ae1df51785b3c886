"""The one place that chooses how a model is computed: by device, precision, processor and purpose.

| purpose | on | operations |
|---|---|---|
| training | a CPU | `cpu_training_in_c.TrainingByNmt`, or `TrainingInC` where a library is faster |
| training, without C kernels | a CPU | `cpu_training.TrainingOnCPU` |
| training, compiled | a CPU | `operations.PLAIN`: the compiler fuses these better |
| training, scoring | a GPU | `gpu.GPU` |
| search | a GPU | `gpu_search.SearchOnGPU`, by CUDA graphs |
| scoring outputs | a CPU | `operations.PLAIN`, or `cpu_products.ByNmt` where it is faster |
| search | a CPU | `cpu_search.SearchInC`, or `operations.PLAIN` without C kernels; linear layers of `cpu_products` |

PyTorch multiplies with MKL, which runs AVX2 code on AMD processors even if they have AVX-512. Our own product in C is
faster there. The choice ignores timings, which could favour another library when a run resumes.
"""

from __future__ import annotations

import math
import platform
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.compute.beams import AT_ONCE, COMPARED, BeamOperations
from nmt.compute.cpu_products import CACHE_LINE, AsStored, BFloat16, ByNmt, Int8, Int8InC, LaidOut, Panels
from nmt.compute.cpu_search import AncestryInC, BeamOperationsInC, SearchInC
from nmt.compute.cpu_training import TrainingOnCPU
from nmt.compute.cpu_training_in_c import TrainingByNmt, TrainingInC
from nmt.compute.gpu import GPU, HalfPrecision, Logits, has_triton
from nmt.compute.gpu_search import SearchOnGPU, ancestry_on_gpu
from nmt.compute.native import kernels
from nmt.model.cache import Ancestry
from nmt.model.operations import PLAIN, Operations
from nmt.model.transformer import MakeLinear, Transformer, computed_by
from nmt.recipe import CPU_BATCH_TOKENS, Decoding
from nmt.system import torch_internals
from nmt.system.device import available_memory
from nmt.system.errors import UserError

NMT = "nmt"
CPUINFO = Path("/proc/cpuinfo")
ZEN_4 = 25  # AMD's processor family; Zen 3 is also 25, without AVX-512
CPU_BEAM = 4  # on a CPU, a larger beam reduces automatic batch sizes in proportion
MOST_BATCH_TOKENS = 1 << 15  # upper bound on automatic batch sizes on a GPU; larger ones gain nothing
INT8 = ("torch:ops.onednn.qlinear_prepack", "torch:ops.onednn.qlinear_pointwise")
HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


# --- training and scoring ---------------------------------------------------------------------------------------------


def for_training(device: torch.device, dtype: torch.dtype, *, compiled: bool = False) -> Operations:
    """Return the operations of training on `device` with products in `dtype`."""
    if device.type != "cpu":
        return GPU(compiled and has_triton(device))
    if compiled:
        return PLAIN
    if (found := kernels()) is None:
        return TrainingOnCPU()
    is_faster = dtype == torch.float32 and fp32_multiplier() == NMT
    return (TrainingByNmt if is_faster else TrainingInC)(found.functions)


def for_scoring(model: Transformer) -> Transformer:
    """Return `model`, in evaluation mode and sharing its parameters, for the computation of outputs that are known."""
    return computed_by(model, _scoring(model.output_embedding.weight)).eval()


def _scoring(weight: Tensor) -> Operations:
    if weight.device.type != "cpu":
        return GPU()
    is_faster = weight.dtype == torch.float32 and fp32_multiplier() == NMT
    return ByNmt(found.functions) if is_faster and (found := kernels()) is not None else PLAIN


@cache
def fp32_multiplier() -> str:
    """Return what multiplies fp32 matrices in training on this CPU: nmt, our C kernel, on AMD, else mkl or pytorch."""
    if _amd_family() and (found := kernels()) is not None and found.multiplies:
        return NMT
    return "mkl" if torch.backends.mkl.is_available() else "pytorch"


@cache
def narrowest_in_bf16() -> float:
    """Return the smallest d_model of which training in bf16 is known to be faster on this CPU; infinity if none is."""
    supported = torch_internals.find("torch.cpu:_is_avx512_bf16_supported")
    if not (supported and supported() and torch.backends.cpu.get_cpu_capability() == "AVX512"):
        return math.inf
    return 128 if _amd_family() == ZEN_4 else 256


def _amd_family() -> int:
    """Return the processor's family if it is AMD's, else 0."""
    text = CPUINFO.read_text(errors="replace") if CPUINFO.exists() else platform.processor()  # the latter on Windows
    family = re.search(r"family\s*:?\s*(\d+)", text, re.IGNORECASE)
    return int(family[1]) if family and "AuthenticAMD" in text else 0


def device_name(device: torch.device, with_threads: bool = True, dtype: torch.dtype = torch.float32) -> str:
    """Return the name of a device that multiplies in `dtype`.

    Examples are NVIDIA H200, CPU (2 threads, C kernels) and, without threads, CPU, bf16.
    """
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    by = ", bf16" if dtype == torch.bfloat16 else ", C kernels" if fp32_multiplier() == NMT else ""
    threads = torch.get_num_threads()
    return f"CPU ({threads} thread{'s' if threads > 1 else ''}{by})" if with_threads else f"CPU{by}"


# --- precision of training --------------------------------------------------------------------------------------------


def product_dtype(precision: str, device: torch.device, d_model: int) -> torch.dtype:
    """Return the operand dtype of most matrix multiplications under `training.precision`; bf16 is by autocast.

    "auto" picks bf16 only where hardware makes it faster than fp32: on GPUs that do not emulate it, and on CPUs from
    the d_model on that `narrowest_in_bf16` returns. fp16 is never used, as it would need loss scaling.
    """
    if precision == "auto":
        if device.type == "cuda":
            is_faster = torch.cuda.is_bf16_supported(including_emulation=False)
        else:
            is_faster = device.type == "cpu" and d_model >= narrowest_in_bf16()
        precision = "bf16" if is_faster else "fp32"
    return {"bf16": torch.bfloat16, "fp64": torch.float64}.get(precision, torch.float32)


@contextmanager
def factors_rounded(precision: str) -> Iterator[None]:
    """Set the precision of fp32 matrix multiplications to `training.precision` for the duration of the block.

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
    kind, devices, others = only.get(precision, (device.type, "", ""))
    if device.type != kind:
        problem = f"training.precision: {precision} is for {devices}, not for {device.type}"
        raise UserError(problem, f"--set training.precision={others}")
    if precision == "fp64":
        model.double()


# --- search -----------------------------------------------------------------------------------------------------------


class Searched(NamedTuple):
    """Models prepared for a search, and how it computes."""

    models: Sequence[Transformer]
    logits: Sequence[nn.Module]  # of each model: from states (…, d_model) to logits (…, padded vocabulary)
    operations: BeamOperations
    ancestry: Callable[[int, torch.device], Ancestry]  # makes one for a beam size and device
    steps: SearchInC | None = None  # takes whole steps of a search with one model, where that is faster


def for_search(models: Sequence[Transformer], precision: str, say: Callable[[str], None]) -> Searched:
    """Prepare models for a search in `precision`, which is one that `search_precision` returns.

    Parameters that are not laid out anew are shared with `models`; models in fp64 stay so on a CPU. Report missing C
    kernels with `say`. Raise UserError if this machine cannot compute in the precision.
    """
    if models[0].output_embedding.weight.device.type != "cpu":
        return _on_gpu(models, precision, say)
    try:
        return _on_cpu(models, precision, say)
    except (AttributeError, NotImplementedError, RuntimeError) as error:
        raise UserError(
            f"precision {precision}: PyTorch cannot compute in it on this machine: {str(error).splitlines()[0]}",
            "use --precision fp32, or auto",
        ) from None


def _on_gpu(models: Sequence[Transformer], precision: str, say: Callable[[str], None]) -> Searched:
    dtype = HALVES.get(precision, models[0].output_embedding.weight.dtype)
    linear = None if precision == "fp32" else partial(HalfPrecision, dtype=dtype)
    device, say = models[0].output_embedding.weight.device, cache(say)  # graphs of each model may say the same
    prepared = [computed_by(model, SearchOnGPU(device, say), linear).eval() for model in models]
    logits = [Logits(*_output(model), dtype) for model in models]
    widest = max((model.config for model in models), key=lambda config: max(config.key_width, config.value_width))
    return Searched(prepared, logits, BeamOperations(), partial(ancestry_on_gpu, widest, say))


def _on_cpu(models: Sequence[Transformer], precision: str, say: Callable[[str], None]) -> Searched:
    layouts = [_layout(precision, model.output_embedding.weight) for model in models]
    logits = [cast(LaidOut, layout(*_output(model))) for layout, model in zip(layouts, models, strict=True)]
    prepared = [computed_by(model, PLAIN, layout).eval() for layout, model in zip(layouts, models, strict=True)]
    if (found := kernels()) is None:
        say("C kernels are missing, which makes this slower: install a C compiler, then nmt again")
    if found is None or any(model.output_embedding.weight.dtype != torch.float32 for model in models):
        return Searched(prepared, logits, BeamOperations(), Ancestry)
    steps = [SearchInC(model, found.functions, output) for model, output in zip(prepared, logits, strict=True)]
    for_c = [computed_by(model, operations) for model, operations in zip(prepared, steps, strict=True)]
    whole = steps[0] if len(steps) == 1 and models[0].config.positions != "words" else None
    return Searched(for_c, logits, BeamOperationsInC(found.functions), partial(AncestryInC, found.functions), whole)


def _output(model: Transformer) -> tuple[Tensor, Tensor | None]:
    """Return the weight and bias of the output projection.

    Small vocabularies are padded to whole cache lines, others to whole blocks of `BeamOperations.best_extensions`.
    """
    weight, bias = model.output_embedding.weight.detach(), model.output_bias
    beyond = -len(weight) % (COMPARED if len(weight) > AT_ONCE else CACHE_LINE)
    return F.pad(weight, (0, 0, 0, beyond)), None if bias is None else F.pad(bias.detach(), (0, beyond))


def _layout(precision: str, weight: Tensor) -> MakeLinear:
    """Return what lays out the linear layers of a CPU, whose weights are like `weight`."""
    found = kernels()
    if weight.dtype != torch.float32 or (precision == "fp32" and not (found and found.multiplies)):
        return partial(AsStored, _scoring(weight))
    if precision == "bf16":
        return BFloat16
    if found is None:
        return Int8
    return partial(Int8InC if precision == "int8" else Panels, found.functions)


def search_precision(wanted: str, device: torch.device, say: Callable[[str], None]) -> str:
    """Return the precision of a search: `wanted`, or the fastest if that is auto or not faster than fp32 here.

    Report the latter with `say`. Raise UserError if `wanted` is for other devices.
    """
    on_cpu = device.type == "cpu"
    if wanted == ("fp16" if on_cpu else "int8"):
        only = "GPUs" if on_cpu else "CPUs"
        raise UserError(f"precision {wanted}: is for {only} only", "use --precision bf16, or auto")
    if on_cpu and wanted in ("bf16", "int8") and not pays(wanted):
        say(f"precision {wanted}: not known to be faster on this processor, so fp32 is used")
        return "fp32"
    if wanted != "auto":
        return wanted
    if on_cpu:
        return "fp32"
    return "bf16" if torch.cuda.get_device_capability(device) >= (8, 0) else "fp16"  # older ones emulate bf16


def pays(precision: str) -> bool:
    """Return whether this CPU is known to multiply faster in `precision`, bf16 or int8, than in fp32.

    It is in int8 from AVX2 on: 1.4 to 1.9 times as fast in 32 rows or more, 2 to 3.4 times with VNNI. In bf16 it is
    where training is. Nothing is timed, so the answer is always the same.
    """
    if precision == "bf16":
        return narrowest_in_bf16() < math.inf
    has_avx2 = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    return has_avx2 and all(map(torch_internals.find, INT8))


def batch_tokens(decoding: Decoding, models: Sequence[Transformer]) -> int:
    """Return the batch size in padded source tokens, resolving `decoding.batch_tokens: auto`."""
    if decoding.batch_tokens != "auto":
        return decoding.batch_tokens
    weight = models[0].output_embedding.weight
    if weight.device.type == "cpu":
        return max(1, CPU_BATCH_TOKENS * CPU_BEAM // max(CPU_BEAM, decoding.beam))
    graphs = 8 * GPU.chunk_logits  # bytes that those of steps keep for themselves, mostly logits
    free = max(0, (available_memory(weight.device) or 0) - graphs)
    # Numbers cached per source token, assuming that hypotheses are as long as the source.
    values = sum(2 * model.config.decoder_depth * model.config.d_model * (1 + decoding.beam) for model in models)
    return min(MOST_BATCH_TOKENS, max(1, free // 2 // (values * weight.element_size())))
