"""Without any of the private functions and options of PyTorch that nmt uses, what depends on them still works."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import torch
import torch.distributed as dist
from reference_search import random_model
from torch import Tensor, nn
from torch.nn import Module
from torch.nn import functional as F

from nmt.compute import choice, cpu_products, gpu, native
from nmt.compute.gpu import GPU
from nmt.compute.recorded import _Memory
from nmt.recipe import Decoding, Model, Training
from nmt.search.beam import SearchEngine
from nmt.search.way import for_search
from nmt.system import torch_internals
from nmt.system.device import choose_device
from nmt.system.errors import UserError
from nmt.system.launchers import World
from nmt.training import optimizer
from nmt.training.batches import use_packing
from nmt.training.distributed import Group
from nmt.training.loss import Objective, compile_parts
from nmt.training.trainer import Trainer

Patch = pytest.MonkeyPatch
CACHED = (
    *(choice.fp32_multiplier, choice.narrowest_in_bf16, cpu_products.largest_exact_weight, cpu_products.has_amx),
    native.gomp_parallel,
)


def multiplies(layer: Callable[[Tensor, Tensor], Module], tolerance: float) -> None:
    torch.manual_seed(1)
    x, weight, bias = torch.randn(3, 64), torch.randn(48, 64), torch.randn(48)
    found, expected = layer(weight, bias)(x), F.linear(x, weight, bias)
    assert (found - expected).norm() <= tolerance * expected.norm()


def training_is_in_fp32(patch: Patch) -> None:
    assert choice.narrowest_in_bf16() == float("inf")


def int8_products_are_right(patch: Patch) -> None:
    multiplies(cpu_products.Int8, 0.02)


def is_refused_or_not_chosen(precision: Literal["bf16", "int8"], patch: Patch) -> None:
    model = random_model(40, 40).float()
    problem = rf"precision {precision}: PyTorch cannot compute in it on this machine: .*linear"
    with pytest.raises(UserError, match=problem):
        for_search([model], precision, print)
    assert SearchEngine([model], Decoding(precision=precision)).precision == "fp32"


def kernels_multiply(patch: Patch) -> None:
    if found := native.kernels():
        multiplies(partial(cpu_products.Panels, found.functions), 1e-5)


def a_gpu_is_chosen(patch: Patch) -> None:
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        patch.delenv(name, raising=False)
    patch.setattr(torch.cuda, "set_device", lambda device: None)
    patch.setattr(torch.cuda, "device_count", lambda: 2)
    patch.setattr(torch.backends.cuda, "enable_cudnn_sdp", lambda enabled: None)
    assert choose_device("cuda:1", None) == torch.device("cuda:1")


def batches_are_padded(patch: Patch) -> None:
    patch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)
    assert not use_packing(Model(), Training(), torch.device("cuda"))
    with pytest.raises(UserError, match="sentences cannot be packed"):
        use_packing(Model(), Training(packing=True), torch.device("cuda"))


def training_compiles(patch: Patch) -> None:
    with ExitStack() as reset:
        for module, option in (name.split(":") for name, check in CHECKS.items() if check is training_compiles):
            config: Any = import_module(module)
            reset.enter_context(config.patch({option: getattr(config, option)}))
        compile_parts(Objective(random_model(40, 40), 0.1), "eager")


def relu_is_computed_apart(patch: Patch) -> None:
    patch.delattr(gpu, "_LinearReLU")
    x, inner = torch.ones(1, 3, 4), nn.Linear(4, 4)
    with torch.autocast("cpu", torch.bfloat16):
        assert GPU().feed_forward(x, inner, nn.Linear(4, 4), "relu", 0.0).shape == x.shape


def muon_stores_rows_one_by_one(patch: Patch) -> None:
    stack, tensors = torch.ones(2, 3), [torch.zeros(3), torch.zeros(3)]
    optimizer._store(stack, tensors)
    assert torch.equal(torch.stack(tensors), stack)


def an_update_begins(patch: Patch) -> None:
    class Parallel:
        reducer = object()

        def __call__(self, batch: str) -> tuple[str, str]:
            return batch, "nll"

    group, parallel = Group(World(1, 2), 1), Parallel()
    group._parallel = parallel  # type: ignore[assignment]
    rank = SimpleNamespace(group=group, device=torch.device("cpu"), dtype=torch.float32, _computed=parallel)
    assert Trainer._forward(rank, "batch") == ("batch", "nll")  # type: ignore[arg-type, comparison-overlap]


def a_group_connects(patch: Patch) -> None:
    group = Group(World(1, 2), 1, torch.device("cuda"))
    group._store = dist.HashStore()
    patch.setattr(dist, "init_process_group", lambda *_, **__: None)
    for world in (object(), SimpleNamespace(_get_backend=lambda device: object())):
        patch.setattr(dist, "group", SimpleNamespace(WORLD=world))
        group.connect()


def a_recording_is_left(patch: Patch) -> None:
    states = list[str]()
    generator = SimpleNamespace(clone_state=lambda: "clone", graphsafe_set_state=states.append)
    patch.setattr(torch.cuda, "default_generators", [generator])
    patch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    patch.setattr(_Memory, "failures", 0)
    _Memory(torch.device("cuda:0"))._leave()
    assert states == ["clone"]


CHECKS: dict[str, Callable[[Patch], None]] = {
    "torch.cpu:_is_avx512_bf16_supported": training_is_in_fp32,
    "torch.cpu:_is_amx_tile_supported": int8_products_are_right,
    "torch:ops.mkldnn._linear_pointwise": partial(is_refused_or_not_chosen, "bf16"),
    "torch:ops.mkldnn._reorder_linear_weight": partial(is_refused_or_not_chosen, "bf16"),
    "torch:ops.onednn.qlinear_prepack": partial(is_refused_or_not_chosen, "int8"),
    "torch:ops.onednn.qlinear_pointwise": partial(is_refused_or_not_chosen, "int8"),
    "torch:_C.__file__": kernels_multiply,
    "torch:ops.aten._addmm_activation": relu_is_computed_apart,
    "torch:_C._accelerator_setAllocatorSettings": a_gpu_is_chosen,
    "torch:_C._cuda_endAllocateToPool": a_recording_is_left,
    "torch:_C._cuda_releasePool": a_recording_is_left,
    "torch:_foreach_copy_": muon_stores_rows_one_by_one,
    "torch.nn.attention.varlen:varlen_attn": batches_are_padded,
    "torch._dynamo.config:optimize_ddp": training_compiles,
    "torch._dynamo.config:recompile_limit": training_compiles,
    "torch.fx.experimental._config:use_duck_shape": training_compiles,
    "torch._inductor.config:triton.mix_order_reduction_non_strict_mode": training_compiles,
    "torch._inductor.config:triton.mix_order_reduction_split_size": training_compiles,
    "torch._inductor.config:triton.mix_order_reduction_allow_multi_stages": training_compiles,
    "torch.distributed:Reducer._rebuild_buckets": an_update_begins,
    "torch.distributed:ProcessGroup._get_backend": a_group_connects,
    "torch.distributed.distributed_c10d:ProcessGroupNCCL._set_default_timeout": a_group_connects,
}


@pytest.fixture
def without(monkeypatch: Patch) -> Iterator[Callable[[str], None]]:
    """Return a function that makes PyTorch lack a function or option."""
    found = torch_internals.find

    def remove(gone: str) -> None:
        monkeypatch.setattr(torch_internals, "find", lambda name: None if name == gone else found(name))
        for function in CACHED:
            function.cache_clear()

    yield remove
    for function in CACHED:
        function.cache_clear()


@pytest.mark.parametrize("name", torch_internals.FALLBACKS)
def test_what_a_pytorch_lacks_is_done_without(name: str, monkeypatch: Patch, without: Callable[[str], None]) -> None:
    without(name)
    CHECKS[name](monkeypatch)


@pytest.mark.parametrize("name", torch_internals.FALLBACKS)
def test_this_pytorch_has_it(name: str) -> None:
    if "NCCL" in name and not dist.is_nccl_available():
        pytest.skip("this PyTorch was built without NCCL")
    assert torch_internals.find(name) is not None or name.endswith("split_size")  # None unless set


@pytest.mark.parametrize("name", ["torch.cpu:_never", "torch.never:there", "torch:ops.mkldnn._never"])
def test_what_is_not_there_is_none(name: str, monkeypatch: Patch) -> None:
    monkeypatch.setitem(torch_internals.FALLBACKS, name, "")
    assert torch_internals.find(name) is None
    torch_internals.set_option(name, True)
