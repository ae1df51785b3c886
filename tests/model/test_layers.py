"""The parts of the Transformer against the paper's formulas and figures."""

import math

import pytest
import torch

from nmt.model.layers import CrossAttention, DecoderLayer, FeedForward, Positions, SelfAttention, sinusoids
from nmt.recipe import Model

# --- positions ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("d_model", "position", "dimension", "expected"),
    [
        (4, 0, 0, 0.0),
        (4, 0, 1, 1.0),
        (4, 0, 3, 1.0),
        (4, 1, 0, 0.8414710),  # sin 1
        (4, 1, 1, 0.5403023),  # cos 1
        (4, 3, 2, 0.0299955),  # sin 0.03: 10000^(2/4) = 100
        (4, 3, 3, 0.9995500),
        (512, 100, 256, 0.8414710),  # 10000^(256/512) = 100
        (512, 100, 257, 0.5403023),
        (512, 50, 510, 0.0051831),  # sin(50 / 10000^(510/512))
        (512, 1000, 0, 0.8268795),  # sin 1000
    ],
)
def test_sinusoids_have_the_values_of_section_3_5(d_model, position, dimension, expected):
    assert float(sinusoids(1001, d_model)[position, dimension]) == pytest.approx(expected, abs=1e-6)


def test_sinusoids_have_the_precision_of_the_model():
    positions = Positions(Model(d_model=8, heads=1)).double()
    assert float(positions.table[1000, 0]) == math.sin(1000)
    assert float(positions.at(torch.tensor([[2000]]), 2001)[0, 0, 1]) == math.cos(2000)  # beyond
    assert torch.equal(positions.float().table, sinusoids(len(positions.table), 8))


def test_sinusoids_serve_any_length_and_any_position():
    positions = Positions(Model(d_model=8, heads=1))
    at = positions.at(torch.tensor([[5000], [3]]), 5001)
    assert torch.equal(at, sinusoids(5001, 8)[[5000, 3]][:, None])
    assert torch.equal(positions(torch.zeros(2, 3)), sinusoids(3, 8))


def test_learned_positions_end_at_max_positions():
    torch.manual_seed(4)
    positions = Positions(Model(d_model=64, heads=1, positions="learned", max_positions=500))
    assert positions.table.requires_grad
    assert float(positions.table.detach().std()) == pytest.approx(64**-0.5, rel=0.05)
    assert torch.equal(positions(torch.zeros(1, 500)), positions.table)
    with pytest.raises(ValueError, match=r"501.*max_positions 500"):
        positions.at(torch.tensor([[500]]), 501)


def test_positions_made_without_memory_are_computed_where_they_are_needed():
    with torch.device("meta"):
        positions = Positions(Model(d_model=8, heads=1))
    assert torch.equal(positions(torch.zeros(1, 3)), sinusoids(3, 8))
    assert not positions.state_dict()  # no file holds what a formula gives
    assert torch.equal(positions.double()(torch.zeros(1, 3)), sinusoids(3, 8, torch.float64))


# --- initialisation -----------------------------------------------------------------------------------------


def assert_glorot(weight, fan_out, fan_in):
    assert weight.shape == (fan_out, fan_in)
    bound = math.sqrt(6 / (fan_in + fan_out))
    assert 0.98 * bound < float(weight.abs().max()) <= bound
    assert float(weight.std()) == pytest.approx(bound / math.sqrt(3), rel=0.05)


def test_every_packed_matrix_has_its_own_glorot_bounds():
    torch.manual_seed(12)
    config = Model(d_model=96, heads=4, d_k=8, d_v=40, d_ff=200)
    own, cross = SelfAttention(config), CrossAttention(config)
    query, key, value = own.qkv.weight.detach().split([32, 32, 160])
    for weight, fan_out, fan_in in [
        (query, 32, 96),
        (key, 32, 96),
        (value, 160, 96),
        (own.out.weight, 96, 160),
        (cross.query.weight, 32, 96),
        (cross.key_value.weight[:32], 32, 96),
        (cross.key_value.weight[32:], 160, 96),
        (cross.out.weight, 96, 160),
    ]:
        assert_glorot(weight.detach(), fan_out, fan_in)


def test_feed_forward_starts_with_glorot_weights_and_zero_biases():
    torch.manual_seed(13)
    part = FeedForward(Model(d_model=96, heads=4, d_ff=200))
    assert_glorot(part.inner.weight.detach(), 200, 96)
    assert_glorot(part.outer.weight.detach(), 96, 200)
    assert part.inner.bias.eq(0).all()
    assert part.outer.bias.eq(0).all()


def test_attention_may_have_biases_too_which_start_at_zero():
    layer = DecoderLayer(Model(d_model=16, heads=2, d_k=3, d_v=5, attention_bias=True))
    biases = {name: bias for name, bias in layer.named_parameters() if name.endswith("bias") and "norm" not in name}
    assert {name: len(bias) for name, bias in biases.items() if not name.startswith("feed_forward")} == {
        "attention.qkv.bias": 2 * (3 + 3 + 5),
        "attention.out.bias": 16,
        "cross.query.bias": 2 * 3,
        "cross.key_value.bias": 2 * (3 + 5),
        "cross.out.bias": 16,
    }
    assert not any(bias.any() for bias in biases.values())


@pytest.mark.parametrize(
    ("activation", "formula"),
    [
        ("relu", lambda x: max(0.0, x)),
        ("silu", lambda x: x / (1 + math.exp(-x))),
        ("gelu", lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2),
    ],
)
def test_feed_forward_is_equation_2_with_any_activation(activation, formula):
    torch.manual_seed(14)
    part = FeedForward(Model(d_model=6, heads=1, d_ff=10, activation=activation)).double()
    torch.nn.init.normal_(part.inner.bias)
    torch.nn.init.normal_(part.outer.bias)
    x = torch.randn(2, 3, 6).double().requires_grad_()
    inner = (x @ part.inner.weight.T + part.inner.bias).detach().apply_(formula)
    expected = inner @ part.outer.weight.T + part.outer.bias
    torch.testing.assert_close(part(x), expected, rtol=0, atol=1e-12)
    with torch.no_grad():
        torch.testing.assert_close(part(x), expected, rtol=0, atol=1e-12)
    assert torch.autograd.gradcheck(lambda x, *_: part(x), (x, *part.parameters()))
