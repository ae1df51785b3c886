"""What drops out in training on a CPU, against the plain formulas with the same masks, in value and every gradient."""

import math

import pytest
import torch
from gradients import assert_same, leaves
from torch import nn

from nmt.compute import cpu_training
from nmt.compute.cpu_training import Mask, TrainingOnCPU
from nmt.model.layers import DecoderLayer
from nmt.model.operations import look_ahead_mask
from nmt.model.transformer import computed_by
from nmt.recipe import Model

P = 0.3
TRAINING = TrainingOnCPU()


def same_mask(shape):
    """The mask, divided by 1 − P, that the next kernel draws after this."""
    torch.manual_seed(3)
    kept = Mask.draw(P).drawn(math.prod(shape)).view(shape).double() / (1 - P)
    torch.manual_seed(3)
    return kept


# --- masks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [0.0001, 0.1, 1 / 3, 0.5, 0.9999])
def test_a_mask_drops_a_share_of_p(p):
    torch.manual_seed(5)
    count = 200_000
    dropped = 1 - Mask.draw(p).drawn(count).double()
    assert set(dropped.unique().tolist()) == {0.0, 1.0}
    assert float(dropped.mean()) == pytest.approx(p, abs=5 * math.sqrt(p * (1 - p) / count))


@pytest.mark.parametrize("count", [1, 3, 4, 5, 63, 64, 65, 1000])
def test_masks_of_any_length_are_put_together_from_blocks(monkeypatch, count):
    monkeypatch.setattr(cpu_training, "MASKED_AT_ONCE", 64)
    torch.manual_seed(4)
    kept = torch.stack([Mask.draw(0.5).drawn(count) for _ in range(200)]).double()
    assert kept.shape == (200, count)
    assert kept.mean(0).sub(0.5).abs().max() < 0.2  # every element is now kept and now not


@pytest.mark.parametrize("distance", [1, 2, 3, 4, 5, 8, 256, 1000])
def test_elements_are_dropped_independently_of_each_other(monkeypatch, distance):
    monkeypatch.setattr(cpu_training, "MASKED_AT_ONCE", 1000)  # also of those at the same place of another block
    torch.manual_seed(6)
    dropped = 1 - Mask.draw(P).drawn(2_000_000).double()
    both = (dropped[distance:] * dropped[:-distance]).mean()
    assert float(both) == pytest.approx(P * P, abs=0.001)


def test_masks_are_a_function_of_pytorchs_seed_and_every_draw_is_another():
    torch.manual_seed(7)
    first, second = Mask.draw(0.5).drawn(1000), Mask.draw(0.5).drawn(1000)
    torch.manual_seed(7)
    assert torch.equal(Mask.draw(0.5).drawn(1000), first)
    assert torch.equal(Mask.draw(0.5).drawn(1000), second)
    assert float((first == second).double().mean()) == pytest.approx(0.5, abs=0.1)


# --- dropout and feed-forward -------------------------------------------------------------------------------


@pytest.fixture(params=[64, cpu_training.MASKED_AT_ONCE], ids=["blocks", "one block"], autouse=True)
def _blocks(request, monkeypatch):
    monkeypatch.setattr(cpu_training, "MASKED_AT_ONCE", request.param)


def test_dropout_masks_and_scales():
    (x,) = leaves((5, 7, 6))
    kept = same_mask(x.shape)
    assert_same(TRAINING.dropout(x, P), x * kept, [x])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_dropout_keeps_the_type_and_scales_exactly(dtype):
    x = torch.full((1000,), 3.0, dtype=dtype, requires_grad=True)
    dropped = TRAINING.dropout(x, 0.25)
    dropped.sum().backward()
    assert dropped.dtype == x.grad.dtype == dtype
    assert set(dropped.tolist()) == {0.0, 4.0}
    assert x.grad.sub(4 / 3).abs().lt(0.01).logical_or(x.grad == 0).all()


def test_the_residual_sum_drops_the_second_part_alone():
    x, y = leaves((5, 7, 6), (5, 7, 6))
    kept = same_mask(y.shape)
    assert_same(TRAINING.add_dropped(x, y, P), x + y * kept, [x, y])


def test_feed_forward_is_equation_2_with_a_mask():
    inner, outer, (x,) = nn.Linear(6, 8).double(), nn.Linear(8, 6).double(), leaves((5, 7, 6))
    kept = same_mask((5, 7, 8))
    expected = outer(inner(x).clamp(min=0.0) * kept)
    found = TRAINING.feed_forward(x, inner, outer, "relu", P)
    assert_same(found, expected, [x, *inner.parameters(), *outer.parameters()])


# --- attention ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "padding", "causal", "cross"])
def test_attention_is_equation_1_with_a_mask(kind):
    b, h, t, s, d_k, d_v = 3, 2, 5, 7 if kind == "cross" else 5, 4, 6
    query, key, value = given = leaves((b, h, t, d_k), (b, h, s, d_k), (b, h, s, d_v))
    allowed = torch.ones(b, 1, 1, s, dtype=torch.bool)
    if kind in ("padding", "cross"):
        allowed[1, :, :, 3:] = False
    mask = allowed if kind in ("padding", "cross") else None
    hidden = ~look_ahead_mask(t) if kind == "causal" else ~allowed
    kept = same_mask((b, h, t, 16))[..., :s]  # a whole cache line of weights is drawn
    scores = (query @ key.transpose(2, 3) / math.sqrt(d_k)).masked_fill(hidden, -math.inf)
    expected = scores.softmax(-1) * kept @ value
    assert_same(TRAINING.dense_attention(*given, mask, kind == "causal", P), expected, given)


# --- in bf16 ------------------------------------------------------------------------------------------------


def test_in_bf16_only_products_outside_attention_are_rounded(monkeypatch):
    """Each layer's result and gradients are within bf16's rounding of those with the same masks in fp32."""
    torch.manual_seed(11)
    config = Model(d_model=32, d_ff=48, heads=4, dropout=P, attention_dropout=P, feed_forward_dropout=P)
    layer, x, memory = computed_by(DecoderLayer(config), TRAINING), torch.randn(3, 7, 32), torch.randn(3, 5, 32)
    attended = []
    own = TRAINING.dense_attention
    monkeypatch.setattr(TRAINING, "dense_attention", lambda *inputs: attended.append(own(*inputs)) or attended[-1])

    def results(dtype):
        torch.manual_seed(12)
        inputs = [x.clone().requires_grad_(), memory.clone().requires_grad_(), *layer.parameters()]
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            y = layer(inputs[0], inputs[1], None)
        return [y, *torch.autograd.grad(y.sin().sum(), inputs)]

    for found, expected in zip(results(torch.bfloat16), results(torch.float32), strict=True):
        assert found.dtype == torch.float32
        assert 0.0 < (found - expected).norm() < 2**-5 * expected.norm()
    assert [mixed.dtype for mixed in attended] == 4 * [torch.float32]  # of both attentions, twice
