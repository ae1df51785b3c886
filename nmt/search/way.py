"""How a search takes its steps on a device, in which precision, and with how large batches.

| on | steps |
|---|---|
| a CPU | `in_c.InC`, with linear layers of `compute.cpu_products` |
| a CPU without C kernels, or in fp64 | `plain.Plain` |
| a GPU | `on_gpu.OnGPU`, by CUDA graphs |

`compute.choice` has the rest of the choice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.compute.choice import narrowest_in_bf16, scoring_operations
from nmt.compute.cpu_products import CACHE_LINE, AsStored, BFloat16, Int8, Int8InC, LaidOut, Panels
from nmt.compute.gpu import GPU, HalfPrecision, Logits
from nmt.compute.native import kernels
from nmt.model.operations import PLAIN
from nmt.model.transformer import MakeLinear, Transformer, computed_by
from nmt.recipe import CPU_BATCH_TOKENS, Decoding
from nmt.search import on_gpu
from nmt.search.choosing import AT_ONCE, COMPARED, BeamOperations
from nmt.search.in_c import BeamOperationsInC, InC, LayersInC
from nmt.search.plain import Plain
from nmt.system import torch_internals
from nmt.system.device import available_memory
from nmt.system.errors import UserError

CPU_BEAM = 4  # on a CPU, a larger beam reduces automatic batch sizes in proportion
MOST_BATCH_TOKENS = 1 << 15  # upper bound on automatic batch sizes on a GPU; larger ones gain nothing
BF16 = ("torch:ops.mkldnn._reorder_linear_weight", "torch:ops.mkldnn._linear_pointwise")
INT8 = ("torch:ops.onednn.qlinear_prepack", "torch:ops.onednn.qlinear_pointwise")
HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class PreparedModels(NamedTuple):
    """What an engine searches with: models whose layers are laid out, and how it computes."""

    models: Sequence[Transformer]
    logits: Sequence[nn.Module]
    """Of each model, from states (…, d_model) to logits (…, padded vocabulary)"""
    operations: BeamOperations
    way: Callable[[int], Plain]
    """Make the way in which a search takes its steps, for a beam"""
    layers: Sequence[LayersInC] = ()
    """Those of each model, where C computes them"""


def for_search(models: Sequence[Transformer], precision: str, say: Callable[[str], None]) -> PreparedModels:
    """Prepare models for a search in `precision`, which is one that `search_precision` returns.

    Parameters that are not laid out anew are shared with `models`; models in fp64 stay so on a CPU. Report missing C
    kernels with `say`. Raise UserError if this machine cannot compute in the precision.
    """
    if models[0].output_embedding.weight.device.type != "cpu":
        return _on_gpu(models, precision, say)
    try:
        return _on_cpu(models, precision, say)
    except (AttributeError, NotImplementedError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        problem = f"precision {precision}: PyTorch cannot compute in it on this machine: {reason}"
        raise UserError(problem, "use --precision fp32, or auto") from None


def _on_gpu(models: Sequence[Transformer], precision: str, say: Callable[[str], None]) -> PreparedModels:
    weight = models[0].output_embedding.weight
    dtype = HALVES.get(precision, weight.dtype)
    linear = None if precision == "fp32" else partial(HalfPrecision, dtype=dtype)
    prepared = [computed_by(model, GPU(), linear).eval() for model in models]
    logits = [Logits(*_output(model), dtype) for model in models]
    say = cache(say)  # graphs of each model may say the same
    encoders = [on_gpu.EncoderGraphs(model, weight.device, say) for model in prepared]
    way = partial(on_gpu.OnGPU, prepared, logits, encoders, say)
    return PreparedModels(prepared, logits, BeamOperations(), way)


def _on_cpu(models: Sequence[Transformer], precision: str, say: Callable[[str], None]) -> PreparedModels:
    logits = []
    prepared = []
    for model in models:
        layout = _layout(precision, model.output_embedding.weight)
        logits.append(cast(LaidOut, layout(*_output(model))))
        prepared.append(computed_by(model, PLAIN, layout).eval())
    found = kernels()
    if found is None:
        say("C kernels are missing, which makes this slower: install a C compiler, then nmt again")
    if found is None or any(model.output_embedding.weight.dtype != torch.float32 for model in models):
        return PreparedModels(prepared, logits, BeamOperations(), partial(Plain, prepared))
    pairs = zip(prepared, logits, strict=True)
    layers = [LayersInC(model, found.functions, output, layout) for model, output in pairs]
    return PreparedModels(prepared, logits, BeamOperationsInC(found.functions), partial(InC, layers), layers)


def _output(model: Transformer) -> tuple[Tensor, Tensor | None]:
    """Return the weight and bias of the output projection.

    Small vocabularies are padded to whole cache lines, others to whole blocks of `BeamOperations.best_extensions`.
    """
    weight = model.output_embedding.weight.detach()
    bias: Tensor | None = model.output_bias
    block = COMPARED if len(weight) > AT_ONCE else CACHE_LINE
    beyond = -len(weight) % block
    if bias is not None:
        bias = F.pad(bias.detach(), (0, beyond))
    return F.pad(weight, (0, 0, 0, beyond)), bias


def _layout(precision: str, weight: Tensor) -> MakeLinear:
    """Return what lays out the linear layers of a CPU, whose weights are like `weight`."""
    found = kernels()
    if weight.dtype != torch.float32 or (precision == "fp32" and not (found and found.multiplies)):
        return partial(AsStored, scoring_operations(weight))
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
        operations = BF16
        is_faster = narrowest_in_bf16() < math.inf
    else:
        operations = INT8
        is_faster = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    return is_faster and all(map(torch_internals.find, operations))


def batch_tokens(decoding: Decoding, models: Sequence[Transformer]) -> int:
    """Return the batch size in padded source tokens, resolving `decoding.batch_tokens: auto`."""
    if decoding.batch_tokens != "auto":
        return decoding.batch_tokens
    weight = models[0].output_embedding.weight
    if weight.device.type == "cpu":
        return max(1, CPU_BATCH_TOKENS * CPU_BEAM // max(CPU_BEAM, decoding.beam))
    graphs = 8 * GPU.chunk_logits  # bytes that graphs of steps keep for themselves, mostly for logits
    free = max(0, (available_memory(weight.device) or 0) - graphs)
    # Numbers cached per source token, assuming that hypotheses are as long as the source.
    states = sum(2 * model.config.decoder_depth * model.config.d_model for model in models)  # keys and values
    fitting = free // 2 // (states * (1 + decoding.beam) * weight.element_size())
    return min(MOST_BATCH_TOKENS, max(1, fitting))
