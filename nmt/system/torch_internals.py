"""What nmt uses of PyTorch beyond its stable, public interface, and what happens with a PyTorch that lacks it.

No other module names a private part of PyTorch, except a method that this table lists.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from importlib import import_module
from operator import attrgetter
from typing import Any

SLOWER_COMPILED = "compiled training is slower, because it has more graphs"
SLOWER_NORMS = "gradients of norms on GPUs are slower, because their kernels wait for each load"
HELD_MEMORY = "if a CUDA graph cannot be recorded, memory is held until the process ends"
SILENT_NCCL = "NCCL may end a rank before gloo names the rank at fault"
NO_BF16 = "--precision bf16 is fp32 on CPUs"
NO_INT8 = "--precision int8 is an error, and auto chooses another precision"

FALLBACKS = {
    "torch.cpu:_is_avx512_bf16_supported": "CPUs train in fp32 with training.precision: auto, and search in it",
    "torch.cpu:_is_amx_tile_supported": "large int8 products are computed by the C kernel, not in AMX",
    "torch:ops.mkldnn._linear_pointwise": NO_BF16,
    "torch:ops.mkldnn._reorder_linear_weight": NO_BF16,
    "torch:ops.onednn.qlinear_prepack": NO_INT8,
    "torch:ops.onednn.qlinear_pointwise": NO_INT8,
    "torch:_C.__file__": "C kernels may compute on one core: PyTorch's OpenMP is looked for in the whole process",
    "torch:ops.aten._addmm_activation": "GPUs compute ReLU apart from the product before it",
    "torch:_C._accelerator_setAllocatorSettings": "memory of GPUs fragments more",
    "torch:_C._cuda_endAllocateToPool": HELD_MEMORY,
    "torch:_C._cuda_releasePool": HELD_MEMORY,
    "torch:_foreach_copy_": "Muon has a launch for each matrix of a GPU, which takes longer",
    "torch.nn.attention.varlen:varlen_attn": "GPUs train on padded batches; training.packing: true is an error",
    "torch._dynamo.config:optimize_ddp": SLOWER_COMPILED,
    "torch._dynamo.config:recompile_limit": SLOWER_COMPILED,
    "torch.fx.experimental._config:use_duck_shape": SLOWER_COMPILED,
    "torch._inductor.config:triton.mix_order_reduction_non_strict_mode": SLOWER_COMPILED,
    "torch._inductor.config:triton.mix_order_reduction_split_size": SLOWER_NORMS,
    "torch._inductor.config:triton.mix_order_reduction_allow_multi_stages": SLOWER_NORMS,
    "torch.distributed:Reducer._rebuild_buckets": "a rank lost before the second update is an unexplained error",
    "torch.distributed:ProcessGroup._get_backend": SILENT_NCCL,
    "torch.distributed.distributed_c10d:ProcessGroupNCCL._set_default_timeout": SILENT_NCCL,
}
"""What happens without each function or option, whose name is module:attribute"""


@cache
def find(name: str) -> Any:
    """Return a function or value of `FALLBACKS`; None if this PyTorch lacks it.

    An option keeps the value that it had at the first call, since results are cached.
    """
    assert name in FALLBACKS
    module, _, attribute = name.partition(":")
    try:
        return attrgetter(attribute)(import_module(module))
    except (AttributeError, ImportError):
        return None


def require(name: str) -> Any:
    """Return what `find` finds; raise NotImplementedError if this PyTorch lacks it."""
    found = find(name)
    if found is None:
        raise NotImplementedError(f"this version has no {name.replace(':', '.')}")
    return found


def set_option(name: str, value: bool | int) -> None:
    """Set an option of PyTorch's compiler, if this PyTorch has it."""
    assert name in FALLBACKS
    module, _, option = name.partition(":")
    with suppress(AttributeError, ImportError):
        attrgetter(option)(import_module(module))  # raises if there is no such option; its value may be None
        setattr(import_module(module), option, value)
