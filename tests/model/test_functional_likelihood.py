"""Log-probabilities in chunks against the plain softmax, and what they hold in memory."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from nmt.model.functional import CHUNK_LOGITS, log_probabilities, perplexity

TOKENS, WIDTH, VOCABULARY = 23, 6, 11


def example(dtype=torch.float64, scale=1.0):
    torch.manual_seed(1)
    states, weight = scale * torch.randn(TOKENS, WIDTH), torch.randn(VOCABULARY, WIDTH)
    return states.to(dtype), weight.to(dtype), torch.randint(0, VOCABULARY, (TOKENS,))


@pytest.mark.parametrize("rows", [1, 4, 22, 23, 100])
@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_chunks_give_what_the_whole_softmax_gives(monkeypatch, rows, scale):
    monkeypatch.setitem(CHUNK_LOGITS, "cpu", rows * VOCABULARY)
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
    monkeypatch.setitem(CHUNK_LOGITS, "cpu", 5 * VOCABULARY)
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
