"""Training in C against the same in PyTorch's operations, with the same dropout masks, in value and every gradient."""

from __future__ import annotations

import math
from ctypes import CDLL
from functools import partial
from typing import Any

import gradients
import pytest
import torch
from compiled import assert_close, numbers
from gradients import assert_same
from torch import Tensor, nn

from nmt.compute import cpu_training
from nmt.compute.cpu_training import Mask, TrainingOnCPU
from nmt.compute.cpu_training_in_c import TrainingByNmt, TrainingInC
from nmt.compute.header import constant, structure
from nmt.model.operations import PLAIN, Attending

P = 0.3
MOST_KEYS = constant("MOST_KEYS")
leaves = partial(gradients.leaves, dtype=torch.float32)


def assert_same_with_masks(found: Any, name: str, inputs: list[Tensor], *others: Any) -> None:
    """An operation of `found` computes what it does without C kernels, for inputs that need gradients."""
    results = []
    for operations in (found, TrainingOnCPU()):
        torch.manual_seed(3)
        results.append(getattr(operations, name)(*inputs, *others))
    assert_same(*results, [each for each in inputs if each is not None])


# --- products -----------------------------------------------------------------------------------------------


def transposed(x: Tensor) -> Tensor:
    """The same numbers, of which those of a column are adjacent."""
    return x.t().contiguous().t()


@pytest.mark.parametrize("turn_a", [False, True])
@pytest.mark.parametrize("turn_b", [False, True])
@pytest.mark.parametrize("width", [1, 16, 37, 1100])
def test_products_of_any_two_matrices(functions: CDLL, turn_a: bool, turn_b: bool, width: int) -> None:
    operations = TrainingByNmt(functions)
    for rows, outputs in ((1, 1), (3, 17), (33, 8), (70, 50), (8, 200)):
        a, b, bias = numbers(rows, width), numbers(width, outputs, seed=1), numbers(outputs, seed=2)
        expected = 1.5 * (a.double() @ b.double())
        a, b = transposed(a) if turn_a else a, transposed(b) if turn_b else b
        assert_close(operations.multiply(a, b, 1.5, bias), expected + bias, width**0.5)
        total = torch.ones(rows, outputs)
        operations.multiply(a, b, 1.5, total=total)
        assert_close(total, expected + 1, width**0.5)
        gate = numbers(rows, outputs, seed=3)
        assert_close(
            operations.multiply(a, b, 1.5, finish=structure("nmt_finish")(gate=gate.data_ptr())),
            expected * gate.gt(0),
            width**0.5,
        )


def test_weights_of_long_batches_have_gradients_in_parts(functions: CDLL) -> None:
    grad, x = numbers(2300, 1040), numbers(2300, 20, seed=1)  # more than are laid out at a time
    found, sums = TrainingByNmt(functions).weight_gradient(grad, x)
    assert_close(found, grad.double().t() @ x.double(), 50)
    assert_close(sums, grad.double().sum(0), 50)


def test_nothing_depends_on_the_number_of_threads(functions: CDLL) -> None:
    operations, threads = TrainingByNmt(functions), torch.get_num_threads()
    rows, weight, heads = numbers(300, 160), numbers(160, 100, seed=1), numbers(9, 40, 2 * 3 * 32, seed=2)
    results = []
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            torch.manual_seed(4)
            x, y, norm = heads.clone().requires_grad_(), rows.clone().requires_grad_(), nn.LayerNorm(160)
            mixed = operations.projected_attention(x, None, 2, (32, 32), Attending(None, True, P))
            both = operations.add_norm(y, y, P, norm)
            sums = sum(each.sin().sum() for each in (mixed, *both))
            products = operations.multiply(rows, weight), operations.multiply(transposed(rows), weight)
            results.append([*products, mixed, *both, *torch.autograd.grad(sums, [x, y, *norm.parameters()])])
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(*pair) for other in results[1:] for pair in zip(other, results[0], strict=True))


# --- dropout and residual connections -----------------------------------------------------------------------


def test_kernels_drop_what_masks_say(functions: CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    """With seeds that have any sign in both halves."""
    monkeypatch.setattr(cpu_training, "kernels", lambda: None)
    monkeypatch.setattr(cpu_training, "MASKED_AT_ONCE", 700)
    operations, ones = TrainingByNmt(functions), torch.ones(40, 48)
    for seed in (5, -5, 2**62 + 3, -(2**40)):
        mask = Mask(seed, -(2**30))
        finish = structure("nmt_finish")(seed=mask.seed, bound=mask.bound)
        relu = operations.multiply(ones, torch.eye(48), finish=finish)
        dropped = torch.empty_like(ones)
        functions.nmt_add_dropped(ones.numel(), None, ones.data_ptr(), *mask, 1.0, dropped.data_ptr(), None, 1)
        assert torch.equal(relu, dropped)
        drawn = torch.full((1000,), -1, dtype=torch.int8)
        functions.nmt_draw(992, *mask, drawn.data_ptr())
        assert drawn[992] == -1
        assert torch.equal(dropped.flatten().to(torch.int8)[:992], drawn[:992])
        assert torch.equal(mask.drawn(985), drawn[:985])
        assert 0.6 < float(dropped.mean()) < 0.9


@pytest.mark.parametrize("width", [16, 48, 512])
@pytest.mark.parametrize("p", [0.0, P])
def test_residual_connections(functions: CDLL, width: int, p: float) -> None:
    operations, norm = TrainingInC(functions), nn.LayerNorm(width, eps=1e-3)
    for parameter, values in zip(norm.parameters(), numbers(2, width, seed=7), strict=True):
        parameter.data.copy_(values)
    for rows in ((1, 1), (3, 100)):  # of more than one partial sum
        x, y = leaves((*rows, width), (*rows, width))
        assert_same_with_masks(operations, "add_norm", [x, y], p, norm)
        parameters = list(norm.parameters())
        torch.manual_seed(3)
        found = operations.add_norm(x, y, p, norm)[1]
        torch.manual_seed(3)
        assert_same(found, TrainingOnCPU().add_norm(x, y, p, norm)[1], [x, y, *parameters])
        assert_same_with_masks(operations, "add_dropped", [x, y], p)
        assert_same_with_masks(operations, "dropout", [x], p)


def test_a_feed_forward_layer_drops_and_rectifies(functions: CDLL) -> None:
    inner, outer, (x,) = nn.Linear(16, 40), nn.Linear(40, 16), leaves((3, 70, 16))
    results = []
    for operations in (TrainingByNmt(functions), TrainingOnCPU()):
        torch.manual_seed(3)
        results.append(operations.feed_forward(x, inner, outer, "relu", P))
    assert_same(*results, [x, *inner.parameters(), *outer.parameters()])


def test_rectifying_hides_nothing_that_is_not_a_number(functions: CDLL) -> None:
    x = torch.full((1, 16), math.nan)
    assert (
        TrainingByNmt(functions)
        .multiply(x, torch.ones(16, 3), finish=structure("nmt_finish")(bound=Mask().bound))
        .isnan()
        .all()
    )


# --- attention and the softmax of the loss ------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "padding", "causal", "cross"])
@pytest.mark.parametrize(("heads", "width"), [(1, 16), (3, 32), (2, 64), (1, 128)])
def test_attention_of_projections(functions: CDLL, kind: str, heads: int, width: int) -> None:
    for length, keys in ((1, 1), (7, 17), (70, 33), (90, MOST_KEYS)):
        lengths = length, keys if kind == "cross" else length
        shapes = ((3, length, heads * width), (3, keys, heads * 2 * width))
        given = leaves(*shapes) if kind == "cross" else [*leaves((3, length, heads * 3 * width)), None]
        mask = torch.ones(3, 1, 1, lengths[1], dtype=torch.bool)
        mask[1, ..., lengths[1] // 2 + 1 :] = False
        mask[2, ..., 1 : lengths[1] // 3] = False  # need not be the last ones
        for p in (0.0, P):
            how = Attending(mask if kind in ("padding", "cross") else None, kind == "causal", p)
            assert_same_with_masks(TrainingInC(functions), "projected_attention", given, heads, (width, width), how)


def test_other_attention_is_that_of_pytorch(functions: CDLL) -> None:
    """Of widths or lengths that the kernel does not take, windows, and weights that are recorded."""
    operations = TrainingInC(functions)
    for length, widths, how in (
        (5, (24, 24), Attending()),
        (5, (16, 32), Attending()),
        (MOST_KEYS + 1, (16, 16), Attending()),
        (5, (16, 16), Attending(record=[])),
    ):
        (x,) = leaves((2, length, 2 * widths[0] + widths[1]))
        found, expected = (each.projected_attention(x, None, 1, widths, how) for each in (operations, PLAIN))
        assert_same(found, expected, [x])


def test_a_hidden_position_has_no_influence(functions: CDLL) -> None:
    x, mask = numbers(2, 20, 48), torch.ones(2, 1, 1, 20, dtype=torch.bool)
    mask[0, ..., 9:] = False
    results = []
    for value in (1.0, 1e30):
        x[0, 9:] = value
        given = x.clone().requires_grad_()
        out = TrainingInC(functions).projected_attention(given, None, 1, (16, 16), Attending(mask))
        (gradient,) = torch.autograd.grad(out[:, :9].sum(), [given])
        results.append((out[:, :9], gradient[:, :9]))
        assert not gradient[0, 9:].any()
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


@pytest.mark.parametrize("width", [1, 16, 37, 1000])
def test_exponentials_of_logits(functions: CDLL, width: int) -> None:
    logits = 30 * numbers(5, width)
    found = TrainingInC(functions).exponentials(logits.clone(), torch.float32)
    right = PLAIN.exponentials(logits.double(), torch.float64)
    for mine, other in zip(found, right, strict=True):
        torch.testing.assert_close(mine.double(), other, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("width", [1, 16, 37, 1000])
def test_exponentials_of_logits_in_bf16_are_rounded_after_they_are_summed(functions: CDLL, width: int) -> None:
    logits = 30 * numbers(5, width)
    rounded = logits.bfloat16()
    operations = TrainingInC(functions)
    found, *sums = operations.exponentials(rounded.clone(), torch.float32)
    right, *right_sums = operations.exponentials(rounded.float(), torch.float32)
    assert torch.equal(found, right.bfloat16())
    assert all(torch.equal(*pair) for pair in zip(sums, right_sums, strict=True))
