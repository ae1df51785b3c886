"""Packed training is padded training: the same losses, gradients and runs, in fp64; and where it is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from padded import Ids, padded
from reverse_task import BARE, metrics, parameters, small
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from nmt.compute.gpu import GPU as OnGPU
from nmt.model.batch import Batch
from nmt.model.operations import Operations
from nmt.model.transformer import Transformer
from nmt.recipe import Model, Training
from nmt.system.errors import UserError
from nmt.training.batches import Packer, split_update, use_packing
from nmt.training.loss import Objective, compile_parts

SMALL = small("device_tokens: 260, updates: 8, log_updates: 4", *BARE)

CPU, GPU = torch.device("cpu"), torch.device("cuda")
LONGEST = 21


def tiny(**settings: object) -> Transformer:
    torch.manual_seed(1)
    options = {"layers": 2, "d_model": 16, "d_ff": 24, "heads": 2, "dropout": 0.0, "tie_embeddings": "target"}
    starts = [symbol % 3 != 0 for symbol in range(60)]
    return Transformer(Model(**options | settings), 60, 60, (starts, starts)).double()


def sentences(seed: int, count: int = 14) -> tuple[Ids, Ids]:
    draw = np.random.default_rng(seed)
    sides = ([draw.integers(4, 60, length).tolist() for length in draw.integers(0, LONGEST, count)] for _ in range(2))
    return next(sides), next(sides)


def results(objective: Objective, batches: list[Batch]) -> list[Tensor]:
    """Sums of losses and their gradients."""
    objective.zero_grad()
    losses = []
    for each in batches:
        loss, nll = objective(each)
        loss.backward()
        losses.append(torch.stack((loss.detach(), nll)))
    return [torch.stack(losses).sum(0), *(parameter.grad.clone() for parameter in objective.parameters())]


def assert_same(found: list[Tensor], expected: list[Tensor]) -> None:
    for tensor, other in zip(found, expected, strict=True):
        torch.testing.assert_close(tensor, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"positions": "words"},
        {"positions": "learned", "max_positions": LONGEST},
        {"norm": "pre"},
        {"output_bias": True},
    ],
    ids=["base", "words", "learned", "pre-norm", "bias"],
)
def test_losses_and_gradients_are_those_of_padded_batches(settings: dict[str, object]) -> None:
    objective = Objective(tiny(**settings), 0.1)
    sources, targets = sentences(1)
    expected = results(objective, [padded(sources, targets)])
    lengths = [np.array([len(ids) for ids in side], np.int32) for side in (sources, targets)]
    for devices in (1, 2):
        parts = split_update(*lengths, 100, devices, packed=True)
        assert len(parts) > 1
        each = [[[side[i] for i in part] for side in (sources, targets)] for part in parts]
        batches = [padded(source, target) for source, target in each]
        assert_same(results(objective, [Packer(100, LONGEST).pack(batch, 100) for batch in batches]), expected)


def weights_of(query: Tensor, key: Tensor, queries: Tensor, keys: Tensor, window: list[int]) -> Tensor:
    """(h, t, s): what the documentation of `varlen_attn` says, by a mask over all tokens."""
    rows, columns = (torch.arange(int(bounds[-1])) for bounds in (queries, keys))
    sequence, other = (
        torch.searchsorted(bounds, places, right=True) for bounds, places in ((queries, rows), (keys, columns))
    )
    away = columns - rows[:, None]
    allowed = sequence[:, None] == other
    if window[0] >= 0:
        allowed &= away >= -window[0]
    if window[1] >= 0:
        allowed &= away <= window[1]
    scores = torch.einsum("qhd,khd->hqk", query, key) / query.size(2) ** 0.5
    return scores.masked_fill(~allowed, -torch.inf).softmax(-1)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lets a CPU take the way of a GPU, with the kernel's operators computed by plain formulas."""

    def forward(
        q: Tensor, k: Tensor, v: Tensor, at_q: Tensor, at_k: Tensor, most_q: int, most_k: int, *rest: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        causal, _, window = rest[:3]
        assert int(at_q.diff().max()) <= most_q
        assert int(at_k.diff().max()) <= most_k
        assert (window == [-1, 0]) == causal
        mixed = torch.einsum("hqk,khd->qhd", weights_of(q, k, at_q, at_k, window), v)
        return mixed, q.new_zeros(()), q.new_zeros(())

    def backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
        at_q, at_k, window = rest[2], rest[3], rest[9]
        weights = weights_of(q, k, at_q, at_k, window)
        up = torch.einsum("qhd,khd->hqk", grad, v)
        scores = weights * (up - (up * weights).sum(-1, keepdim=True)) / q.size(2) ** 0.5
        return (
            torch.einsum("hqk,khd->qhd", scores, k),
            torch.einsum("hqk,qhd->khd", scores, q),
            torch.einsum("hqk,qhd->khd", weights, grad),
        )

    with torch.library._scoped_library("torch_attn", "IMPL") as library:
        library.impl("_varlen_attn", forward, "CPU")
        library.impl("_varlen_attn_backward", backward, "CPU")
        monkeypatch.setattr(Operations, "packed_attention", OnGPU.packed_attention)
        yield


SETTINGS = [{}, {"positions": "words"}]


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("settings", SETTINGS, ids=["base", "words"])
def test_the_kernel_is_asked_for_the_same(settings: dict[str, object]) -> None:
    objective = Objective(tiny(**settings), 0.1)
    sources, targets = sentences(2)
    batch = padded(sources, targets)
    assert_same(results(objective, [Packer(400, LONGEST).pack(batch, 400)]), results(objective, [batch]))


@pytest.mark.usefixtures("kernel", "fresh_graphs")
def test_layers_are_compiled_to_one_graph_each_for_packed_batches_of_any_size() -> None:
    plain, compiled = (Objective(tiny(layers=1), 0.1) for _ in range(2))
    counter = CompileCounterWithBackend("eager")
    compile_parts(compiled, counter)
    compiled.softmax = plain.softmax  # sees tokens, packed or not
    same, _ = sentences(1)
    for sides in ((same, same), sentences(2, 3), sentences(3, 40)):  # a size that both sides have, and others
        packed = Packer(700, LONGEST).pack(padded(*sides), 700)
        assert_same(results(compiled, [packed]), results(plain, [packed]))
    assert counter.frame_count == 3  # of the embedding, the encoder and the decoder


def test_packed_runs_are_those_of_padded_ones(train, task) -> None:
    exact = "training.precision=fp64", "model.dropout=0"
    train(*exact, out="padded")
    train(*exact, "training.packing=true", out="packed")
    first, second = parameters(task / "packed"), parameters(task / "padded")
    for name, tensor in first.items():
        torch.testing.assert_close(tensor, second[name], rtol=1e-9, atol=1e-9)
    losses = [[row["loss"] for row in metrics(task / out) if "loss" in row] for out in ("packed", "padded")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)


@pytest.fixture
def modern(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Pretends that there is a GPU."""

    def pretend(capability: tuple[int, int] = (9, 0), flash: bool = True) -> None:
        monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: flash)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "GPU of old")
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *_, **__: True)

    pretend()
    return pretend


def packs(device: torch.device, training: dict[str, Any] | None = None, **model: object) -> bool:
    return use_packing(Model(**model), Training(**training or {}), device)


def test_a_cpu_packs_if_told_to() -> None:
    assert not packs(CPU)
    assert not packs(CPU, {"packing": False})
    assert packs(CPU, {"packing": True, "precision": "fp64"}, attention_dropout=0.1, d_k=7)


@pytest.mark.usefixtures("modern")
def test_a_gpu_packs_unless_told_not_to() -> None:
    assert packs(GPU)
    assert packs(GPU, {"packing": True, "precision": "bf16"}, positions="words")
    assert not packs(GPU, {"packing": False})


@pytest.mark.parametrize(
    ("training", "model", "device", "reason", "hint"),
    [
        ({"precision": "tf32"}, {}, {}, "training.precision is tf32", "training.precision=bf16"),
        ({}, {"attention_dropout": 0.1}, {}, "model.attention_dropout is 0.1", "model.attention_dropout=0,"),
        ({}, {"heads": 128}, {}, "keys have 4 numbers", "heads"),
        ({}, {"d_k": 64, "d_v": 32}, {}, "keys have 64 numbers and its values 32", "model.d_k"),
        ({}, {"d_model": 1024, "heads": 2}, {}, "at most 256", "heads"),
        ({}, {}, {"capability": (7, 5)}, "GPU of old is too old", "training.packing=auto"),
        ({}, {}, {"flash": False}, "no FlashAttention", "training.packing=auto"),
    ],
)
def test_what_the_kernel_cannot_do_is_padded_or_refused(
    modern: Callable[..., None],
    training: dict[str, object],
    model: dict[str, object],
    device: dict[str, Any],
    reason: str,
    hint: str,
) -> None:
    modern(**device)
    assert not packs(GPU, training, **model)
    with pytest.raises(UserError, match=reason) as refused:
        packs(GPU, training | {"packing": True}, **model)
    assert refused.value.message.startswith("training.packing: ")
    assert hint in refused.value.hint
    assert "training.packing=auto" in refused.value.hint
