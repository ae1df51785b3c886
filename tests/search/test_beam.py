"""The plain beam search of tests against exhaustive search, on random step functions."""

import functools
import math

import numpy as np
import pytest
import torch
from reference_search import beam_search

from nmt.search.choosing import length_penalty
from nmt.search.sources import Hypothesis

BOS, EOS = 0, 1


def random_table(seed, vocabulary):
    """A random step function: log-probabilities of the next symbol that depend on the whole prefix.

    Sharp for some seeds and flat for others; in odd ones `<s>` is never output.
    """
    sharpness = np.random.default_rng(seed).uniform(0.3, 4.0)

    @functools.cache
    def log_probs(prefix):
        random = np.random.default_rng((seed, len(prefix), *prefix))
        logits = sharpness * random.standard_normal(vocabulary)
        if seed % 2:
            logits[BOS] = -np.inf
        return (logits - np.log(np.exp(logits).sum())).astype(np.float32)

    return log_probs


def search(tables, caps, **options):
    def step(ids, sentences):
        assert ids[:, :, 0].eq(BOS).all()
        pairs = zip((tables[s] for s in sentences.tolist()), ids[:, :, 1:].tolist(), strict=True)
        return torch.from_numpy(np.array([[table(tuple(prefix)) for prefix in row] for table, row in pairs]))

    return beam_search(step, caps, bos=BOS, eos=EOS, **options)


def penalty(length, alpha):
    return ((5 + length) / 6) ** alpha


def assert_same(found, expected):
    assert [h.ids for h in found] == [h.ids for h in expected]
    assert [h.finished for h in found] == [h.finished for h in expected]
    assert [h.score for h in found] == pytest.approx([h.score for h in expected], rel=1e-5, abs=1e-5)


# --- exhaustive search --------------------------------------------------------------------------------------


def everything(table, cap, alpha, prefix=(), total=0.0):
    """Every output of at most `cap` symbols, and those that the cap cuts off."""
    for symbol, log_prob in enumerate(table(prefix).tolist()):
        if log_prob == -math.inf:
            continue
        ids, score = (*prefix, symbol), total + log_prob
        if symbol == EOS or len(ids) == cap:
            normalised = score / penalty(len(ids), alpha)
            finished = symbol == EOS
            yield Hypothesis(list(ids[:-1] if finished else ids), normalised, finished)
        else:
            yield from everything(table, cap, alpha, ids, score)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("vocabulary", [3, 4])
def test_a_wide_beam_finds_what_exhaustive_search_finds(alpha, vocabulary):
    caps = [1, 2, 3, 4, 5, 5]
    beam = vocabulary * (vocabulary - 1) ** (max(caps) - 1)  # as many as there can be candidates
    for first in range(0, 240, len(caps)):
        tables = [random_table(first + i, vocabulary) for i in range(len(caps))]
        found = search(tables, caps, beam=beam, alpha=alpha, n_best=2)
        best = search(tables, caps, beam=beam, alpha=alpha)
        for i, cap in enumerate(caps):
            expected = sorted(everything(tables[i], cap, alpha), key=lambda h: -h.score)
            assert_same(found[i], expected[:2])
            assert best[i] == found[i][:1]


# --- lengths, caps and when to stop -------------------------------------------------------------------------


def test_length_penalty_has_the_values_of_its_formula():
    lengths = torch.tensor([1.0, 7.0, 13.0, 55.0])
    assert length_penalty(lengths, 0.0).tolist() == [1.0] * 4
    assert length_penalty(lengths, 1.0).tolist() == pytest.approx([1.0, 2.0, 3.0, 10.0])
    assert length_penalty(lengths, 0.6).tolist() == pytest.approx([1.0, 1.515717, 1.933182, 3.981072])
