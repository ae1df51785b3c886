"""Restricted self-attention in blocks against the plain formula under a band, in value and gradient."""

import math

import pytest
import torch

from nmt.model import functional
from nmt.model.functional import attention, band, restricted_attention
from nmt.recipe import Model

CPU = torch.device("cpu")


def inputs(length, batch=2):
    torch.manual_seed(1)
    return [torch.randn(batch, 3, length, width, dtype=torch.float64, requires_grad=True) for width in (4, 4, 7)]


def padding(length, *real):
    return (torch.arange(length) < torch.tensor(real)[:, None])[:, None, None]


def plain(query, key, value, reach, mask=None):
    """Equation 1 with a loop for what each position sees."""
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))
    hidden = torch.ones(len(query), 1, *scores.shape[2:], dtype=torch.bool)
    for row in range(len(query)):
        for i in range(query.size(2)):
            for j in range(max(0, i - reach[0]), min(query.size(2), i + reach[1] + 1)):
                hidden[row, 0, i, j] = not (i == j or mask is None or mask[row, 0, 0, j])
    return scores.masked_fill(hidden, -math.inf).softmax(-1) @ value


def assert_same(found, expected, tensors):
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    weighting = torch.randn_like(expected)
    gradients = (torch.autograd.grad(value, tensors, weighting, retain_graph=True) for value in (found, expected))
    for gradient, right in zip(*gradients, strict=True):
        torch.testing.assert_close(gradient, right, rtol=0, atol=1e-11)


@pytest.mark.parametrize(("r", "centred"), [(1, (0, 0)), (2, (1, 0)), (3, (1, 1)), (4, (2, 1)), (5, (2, 2))])
def test_a_window_of_r_shows_r_positions(r, centred):
    config = Model(attention_window=r)
    assert (config.reach(causal=False), config.reach(causal=True)) == (centred, (r - 1, 0))
    for causal in (False, True):
        seen = band(9, None, config.reach(causal), CPU)
        assert seen[4].sum() == r
        assert seen.diagonal().all()
        assert not (causal and seen.triu(1).any())
    assert Model().reach(causal=True) is None


@pytest.mark.parametrize("length", [1, 7, 8, 9, 16, 23])  # below, at and beyond whole blocks
@pytest.mark.parametrize("reach", [(0, 0), (2, 1), (4, 0), (1, 1)])
@pytest.mark.parametrize("padded", [False, True])
def test_blocks_give_what_the_band_gives(monkeypatch, length, reach, padded):
    monkeypatch.setattr(functional, "LEAST", 4)
    tensors = inputs(length)
    mask = padding(length, length, (length + 1) // 2) if padded else None
    expected = plain(*tensors, reach, mask)
    assert_same(restricted_attention(*tensors, reach, mask), expected, tensors)
    assert_same(restricted_attention(*tensors, reach, mask, record=[]), expected, tensors)


@pytest.mark.parametrize("reach", [(150, 149), (299, 0)])
def test_blocks_too_wide_for_training_kernels_use_the_fused_kernel(reach):
    tensors, mask = inputs(801), padding(801, 801, 500)
    found, record = restricted_attention(*tensors, reach, mask), []
    assert_same(found, restricted_attention(*tensors, reach, mask, record=record), tensors)
    assert torch.equal(record[0][0, 0] > 0, band(801, None, reach, CPU))
    with torch.no_grad():
        torch.testing.assert_close(restricted_attention(*tensors, reach, mask), found, rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_a_window_wider_than_the_sequence_is_full_attention(causal):
    tensors, mask = inputs(40), None if causal else padding(40, 40, 25)
    expected = attention(*tensors, None if mask is None else mask | torch.eye(40).bool(), causal)
    reach = Model(attention_window=80).reach(causal)
    assert_same(restricted_attention(*tensors, reach, mask), expected, tensors)
    assert_same(functional.join(attention(*functional.cut(*tensors, mask, reach)), 40), expected, tensors)


def test_padding_that_sees_nothing_but_padding_spoils_no_gradient():
    tensors = inputs(200)
    found = restricted_attention(*tensors, (4, 4), padding(200, 200, 3))
    assert found.isfinite().all()
    found[1, :, :3].sum().backward()
    for tensor in tensors:
        assert tensor.grad.isfinite().all()
        assert not tensor.grad[1, :, 3:].any()
