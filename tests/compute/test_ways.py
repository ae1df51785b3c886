"""Every way of computing against the plain one: values, gradients, whole models and linear layers of a search.

`tests/search` compares steps of a search, and the choice of extensions.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import gradients
import pytest
import torch
from compiled import compiled, numbers
from gradients import assert_same
from step_by_step import VOCABULARY, tiny
from torch import nn

from nmt.compute.cpu_products import AsStored, BFloat16, Int8, Int8InC, Panels
from nmt.compute.cpu_training import TrainingOnCPU
from nmt.compute.cpu_training_in_c import TrainingByNmt, TrainingInC
from nmt.compute.gpu import GPU, HalfPrecision, Logits
from nmt.compute.header import constant
from nmt.compute.native import INSTRUCTION_SETS
from nmt.model.layers import DecoderLayer, EncoderLayer
from nmt.model.operations import ACTIVATIONS, PLAIN, Attending, Operations
from nmt.model.transformer import computed_by
from nmt.recipe import Model

MOST_KEYS = constant("MOST_KEYS")
WAYS = [TrainingOnCPU, GPU]
IN_C = [(make, name) for name in INSTRUCTION_SETS for make in (TrainingInC, TrainingByNmt)]


@pytest.fixture(params=[*((make,) for make in WAYS), *IN_C], ids=lambda way: " ".join([way[0].__name__, *way[1:]]))
def way(request: pytest.FixtureRequest) -> Operations:
    make, *libraries = request.param
    return make(*map(compiled, libraries))  # type: ignore[no-any-return]


leaves = partial(gradients.leaves, dtype=torch.float32)


@pytest.mark.parametrize("shape", [(7, 24, 40), (300, 64, 96), (1, 5, 3)])
@pytest.mark.parametrize("bias", [True, False])
def test_linear(way: Operations, shape: tuple[int, int, int], bias: bool) -> None:
    rows, inputs, outputs = shape
    given = leaves((2, rows, inputs), (outputs, inputs), (outputs,))[: 2 + bias]
    assert_same(way.linear(*given), PLAIN.linear(*given), given)
    given[0].requires_grad_(False)
    assert_same(way.linear(*given), PLAIN.linear(*given), given[1:])
    assert way.linear(given[0][:0], given[1]).shape == (0, rows, outputs)


@pytest.mark.parametrize("scale", [1.0, 1.25])
def test_products(way: Operations, scale: float) -> None:
    a, b, bias = numbers(30, 20).t(), numbers(12, 30, seed=1).t(), numbers(12, seed=2)
    for shift in (None, bias):
        torch.testing.assert_close(way.product(a, b, scale, shift), PLAIN.product(a, b, scale, shift))
    found, expected = torch.ones(2, 20, 12)
    way.add_product(found, a, b)
    PLAIN.add_product(expected, a, b)
    torch.testing.assert_close(found, expected)
    stacks, total = (numbers(3, 20, 30), numbers(3, 12, 30, seed=1).mT, scale), numbers(3, 20, 12, seed=2)
    torch.testing.assert_close(way.products(*stacks), PLAIN.products(*stacks))
    torch.testing.assert_close(way.products(*stacks, total, 0.5), PLAIN.products(*stacks, total, 0.5))


@pytest.mark.parametrize("kind", ["plain", "padding", "causal", "per query", "cross", "long"])
def test_attention(way: Operations, kind: str) -> None:
    t = MOST_KEYS + 1 if kind == "long" else 5
    s = 7 if kind == "cross" else t
    given = leaves((3, 2, t, 4), (3, 2, s, 4), (3, 2, s, 6))
    mask = None
    if kind in ("padding", "cross"):
        mask = torch.ones(3, 1, 1, s, dtype=torch.bool)
        mask[1, :, :, 3:] = False
    if kind == "per query":
        mask = numbers(3, 2, t, s) < 0.5
        mask[..., 0] = True
    how = Attending(mask, kind == "causal")
    assert_same(way.attention(*given, how), PLAIN.attention(*given, how), given)


@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_feed_forward(way: Operations, activation: str) -> None:
    inner, outer, (x,) = nn.Linear(6, 8), nn.Linear(8, 6), leaves((5, 7, 6))
    inputs = [x, *inner.parameters(), *outer.parameters()]
    each = (operations.feed_forward(x, inner, outer, activation, 0.0) for operations in (way, PLAIN))
    assert_same(*each, inputs)


def test_relu_within_the_product_before_it_is_that_apart() -> None:
    inner, outer, (x,) = nn.Linear(16, 32), nn.Linear(32, 16), leaves((5, 7, 16))
    inputs, results = [x, *inner.parameters(), *outer.parameters()], []
    with torch.autocast("cpu", torch.bfloat16):
        for operations in (GPU(), PLAIN):
            y = operations.feed_forward(x, inner, outer, "relu", 0.0)
            results.append((y, *torch.autograd.grad(y.float().square().sum(), inputs)))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02 * float(expected.detach().abs().max()))


def test_residual_sum_without_dropout(way: Operations) -> None:
    x, y = given = leaves((5, 7, 6), (5, 7, 6))
    assert_same(way.add_dropped(x, y, 0.0), x + y, given)
    assert way.dropout(x, 0.0) is x


def test_dropout_keeps_a_share_of_each_input_and_its_gradient(way: Operations) -> None:
    x, y = torch.ones(100, 100), torch.ones(100, 100, requires_grad=True)
    for dropped in (way.dropout(y, 0.5), way.add_dropped(x, y, 0.5) - 1.0):
        (gradient,) = torch.autograd.grad(dropped.sum(), [y])
        assert torch.equal(gradient, dropped.detach())
        assert gradient.unique().tolist() == [0.0, 2.0]
        assert float(gradient.mean()) == pytest.approx(1.0, abs=0.05)


def test_softmax_of_the_loss(way: Operations) -> None:
    states, weight, targets = numbers(9, 6), numbers(11, 6, seed=1), torch.arange(9)[:, None]
    for one, other in zip(
        *(each.softmax(states, weight, targets, torch.float32) for each in (way, PLAIN)), strict=True
    ):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("changes", [{"norm": "pre"}, {"norm": "post", "activation": "gelu"}])
@pytest.mark.parametrize("padded", [False, True])
def test_whole_models(way: Operations, changes: dict[str, Any], padded: bool) -> None:
    model = tiny(dropout=0.0, **changes).float()
    source, target = (torch.randint(4, VOCABULARY, shape, generator=torch.Generator()) for shape in ((4, 6), (4, 5)))
    if padded:
        source[1, 4:] = 0
    parameters = [each for each in model.parameters() if each.requires_grad]
    assert_same(computed_by(model, way)(source, target), model(source, target), parameters)


def test_layers_compile_in_one_piece() -> None:
    """As training on a GPU and compiled training on a CPU need them."""
    config = Model(d_model=8, d_ff=12, heads=2, attention_dropout=0.1, feed_forward_dropout=0.1)
    x, memory = torch.randn(4, 5, 8), torch.randn(4, 6, 8)
    mask = torch.ones(4, 1, 1, 5, dtype=torch.bool)
    for operations in (PLAIN, GPU()):
        for layer, given in ((EncoderLayer(config), (mask,)), (DecoderLayer(config), (memory, None))):
            torch.compiler.reset()
            compiled_layer = torch.compile(computed_by(layer, operations), backend="eager", fullgraph=True)
            assert compiled_layer(x, *given).shape == x.shape


# --- search -------------------------------------------------------------------------------------------------


LAYOUTS: dict[str, tuple[Any, ...]] = {  # how to make one, how much it rounds, and its library
    "as stored": (partial(AsStored, PLAIN), 1e-6),
    "bf16": (BFloat16, 0.02),
    "int8": (Int8, 0.02),
    "bf16 of a GPU": (partial(HalfPrecision, dtype=torch.bfloat16), 0.02),
    "logits of a GPU": (partial(Logits, dtype=torch.float32), 1e-6),
    **{f"panels, {name}": (Panels, 1e-5, name) for name in INSTRUCTION_SETS},
    **{f"int8, {name}": (Int8InC, 0.02, name) for name in INSTRUCTION_SETS},
}


@torch.inference_mode()
@pytest.mark.parametrize("layout", list(LAYOUTS))
@pytest.mark.parametrize("bias", [True, False])
def test_linear_layers_of_a_search(layout: str, bias: bool) -> None:
    make, rounding, *library = LAYOUTS[layout]
    functions = map(compiled, library)
    weight, shift = numbers(50, 64), numbers(50, seed=1) if bias else None
    try:
        layer = make(*functions, weight, shift)
        found = [layer(numbers(*shape, 64, seed=2)) for shape in ((7,), (1,), (3, 4))]
    except (NotImplementedError, RuntimeError) as error:
        pytest.skip(f"PyTorch cannot compute this here: {error}")
    for y, shape in zip(found, ((7,), (1,), (3, 4)), strict=True):
        expected = PLAIN.linear(numbers(*shape, 64, seed=2), weight, shift)
        assert (y.float() - expected).norm() <= rounding * expected.norm()
