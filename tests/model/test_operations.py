"""Attention against equation 1, restricted or not, and log-probabilities in chunks against the whole softmax."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from nmt.model.operations import PLAIN, Attending, look_ahead_mask, perplexity
from nmt.model.transformer import Transformer
from nmt.recipe import Model


def attention(query, key, value, *given, **options):
    return PLAIN.attention(query, key, value, Attending(*given, **options))


def test_look_ahead_mask_hides_what_comes_later():
    assert look_ahead_mask(4).int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]


@pytest.mark.parametrize("case", ["plain", "causal", "padding"])
def test_recorded_attention_equals_the_fused_one(case):
    torch.manual_seed(2)
    query, key, value = (torch.randn(2, 3, 5, width).double() for width in (4, 4, 7))
    mask = torch.ones(2, 1, 1, 5, dtype=torch.bool)
    mask[1, :, :, 3:] = False
    options = {"causal": case == "causal", "mask": mask if case == "padding" else None}
    record: list[torch.Tensor] = []
    recorded = attention(query, key, value, **options, record=record)
    torch.testing.assert_close(recorded, attention(query, key, value, **options), rtol=0, atol=1e-12)
    torch.testing.assert_close(record[0].sum(-1), torch.ones(2, 3, 5).double(), rtol=0, atol=1e-12)
    if case == "causal":
        assert record[0].masked_select(~look_ahead_mask(5)).eq(0).all()
    if case == "padding":
        assert record[0][1, :, :, 3:].eq(0).all()


# --- log-probabilities in chunks ----------------------------------------------------------------------------


TOKENS, WIDTH, VOCABULARY = 23, 6, 11


def example(dtype=torch.float64, scale=1.0):
    torch.manual_seed(1)
    states, weight = scale * torch.randn(TOKENS, WIDTH), torch.randn(VOCABULARY, WIDTH)
    return states.to(dtype), weight.to(dtype), torch.randint(0, VOCABULARY, (TOKENS,))


def log_probabilities(states, weight, targets, bias=None):
    """What a model with this output projection computes."""
    sizes = {"layers": 1, "d_model": weight.size(1), "d_ff": 4, "heads": 1, "positions": "learned", "max_positions": 1}
    config = Model(**sizes, output_bias=bias is not None)
    model = Transformer(config, len(weight), len(weight)).to(weight.dtype)
    with torch.no_grad():
        model.output_embedding.weight.copy_(weight)
        if bias is not None:
            model.output_bias.copy_(bias)
        return model.log_probabilities(states, targets)


@pytest.mark.parametrize("rows", [1, 4, 22, 23, 100])
@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_chunks_give_what_the_whole_softmax_gives(monkeypatch, rows, scale):
    monkeypatch.setattr(PLAIN, "chunk_rows", lambda vocabulary: rows)
    states, weight, targets = example(scale=scale)
    expected = (states @ weight.T).log_softmax(-1)[range(TOKENS), targets]
    torch.testing.assert_close(log_probabilities(states, weight, targets), expected, rtol=1e-12, atol=1e-12)
    bias = torch.randn(VOCABULARY, dtype=torch.float64)
    expected = (states @ weight.T + bias).log_softmax(-1)[range(TOKENS), targets]
    torch.testing.assert_close(log_probabilities(states, weight, targets, bias), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_softmax_is_at_least_fp32(dtype):
    states, weight, targets = example(dtype)
    found = log_probabilities(states, weight, targets)
    assert found.dtype == torch.float32
    logits = (states @ weight.T).double()
    torch.testing.assert_close(found.double(), logits.log_softmax(-1)[range(TOKENS), targets], rtol=0, atol=1e-6)


class Largest(TorchDispatchMode):
    """Elements of the largest result of any operation."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for part in result if isinstance(result, tuple | list) else (result,):
            self.elements = max(self.elements, part.numel() if isinstance(part, torch.Tensor) else 0)
        return result


def test_no_more_than_a_chunk_of_logits_is_held(monkeypatch):
    monkeypatch.setattr(PLAIN, "chunk_rows", lambda vocabulary: 5)
    states, weight, targets = torch.zeros(1000, 2), torch.zeros(VOCABULARY, 2), torch.zeros(1000, dtype=torch.int64)
    with Largest() as seen:
        log_probabilities(states, weight, targets)
    assert 5 * VOCABULARY <= seen.elements < 2 * 1000 + 1


def test_no_tokens_have_no_probabilities():
    states, weight, targets = example()
    assert log_probabilities(states[:0], weight, targets[:0]).shape == (0,)


def test_perplexity_is_the_size_of_a_fair_choice():
    assert perplexity(5 * math.log(7), 5) == pytest.approx(7.0)
    assert perplexity(1e9, 1) < math.inf
