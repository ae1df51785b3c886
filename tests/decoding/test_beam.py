"""Beam search against exhaustive and readable beam search, on random step functions."""

import functools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_search import beam_search

from nmt.decoding.beam import length_penalty
from nmt.decoding.engine import Hypothesis

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


class TableStep:
    """A step of one table per sentence."""

    def __init__(self, tables):
        self.tables = list(tables)

    def __call__(self, ids, sentences):
        assert ids[:, :, 0].eq(BOS).all()
        pairs = zip((self.tables[s] for s in sentences.tolist()), ids[:, :, 1:].tolist(), strict=True)
        return torch.from_numpy(np.array([[table(tuple(prefix)) for prefix in row] for table, row in pairs]))


def search(tables, caps, **options):
    return beam_search(TableStep(tables), caps, bos=BOS, eos=EOS, **options)


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


# --- a readable beam search ---------------------------------------------------------------------------------


def readable_beam_search(table, cap, beam, alpha, n_best, min_length):
    """The rules of the module's docstring for one sentence, with lists."""
    alive, finished = [((), np.float32(0.0))], []
    for length in range(1, cap + 1):
        extensions = [
            ((*ids, symbol), total + log_prob)
            for ids, total in alive
            for symbol, log_prob in enumerate(table(ids))
            if log_prob > -np.inf and (symbol != EOS or length > min_length)
        ]
        extensions.sort(key=lambda extension: -extension[1])
        alive = []
        for rank, (ids, total) in enumerate(extensions[: 2 * beam if beam > 1 else 1]):
            if ids[-1] != EOS and length < cap:
                alive.append((ids, total))
            elif rank < beam:
                output, whole = (ids[:-1], True) if ids[-1] == EOS else (ids, False)
                finished.append(Hypothesis(list(output), float(total) / penalty(length, alpha), whole))
        alive = alive[:beam]
        finished = sorted(finished, key=lambda h: -h.score)[:beam]
        if not alive:
            break
        bound = float(alive[0][1]) / penalty(cap, alpha)
        if len(finished) >= n_best and finished[n_best - 1].score >= bound:
            break
    return finished[:n_best]


@settings(max_examples=300)
@given(data=st.data())
def test_a_narrow_beam_follows_the_rules(data):
    vocabulary = data.draw(st.integers(2, 6))
    beam = data.draw(st.integers(1, 5))
    n_best = data.draw(st.integers(1, beam))
    alpha = data.draw(st.sampled_from([0.0, 0.3, 0.6, 1.0, 1.7]))
    caps = data.draw(st.lists(st.integers(1, 10), min_size=1, max_size=4))
    min_length = data.draw(st.integers(0, 11))
    seed = data.draw(st.integers(0, 10**6))
    tables = [random_table(seed + i, vocabulary) for i in range(len(caps))]
    found = search(tables, caps, beam=beam, alpha=alpha, n_best=n_best, min_length=min_length)
    for table, cap, hypotheses in zip(tables, caps, found, strict=True):
        assert_same(hypotheses, readable_beam_search(table, cap, beam, alpha, n_best, min_length))
        assert all(len(h.ids) >= min_length for h in hypotheses if h.finished)


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_a_beam_of_1_takes_the_best_symbol_until_the_first_end_symbol(alpha):
    tables, caps = [random_table(seed, 7) for seed in range(200)], [1 + seed % 15 for seed in range(200)]
    found = search(tables, caps, beam=1, alpha=alpha)
    for table, cap, hypotheses in zip(tables, caps, found, strict=True):
        assert_same(hypotheses, readable_beam_search(table, cap, 1, alpha, 1, 0))
    assert {one.finished for (one,) in found} == {True, False}  # both ends occur


# --- lengths, caps and when to stop -------------------------------------------------------------------------


def test_length_penalty_has_the_values_of_its_formula():
    lengths = torch.tensor([1.0, 7.0, 13.0, 55.0])
    assert length_penalty(lengths, 0.0).tolist() == [1.0] * 4
    assert length_penalty(lengths, 1.0).tolist() == pytest.approx([1.0, 2.0, 3.0, 10.0])
    assert length_penalty(lengths, 0.6).tolist() == pytest.approx([1.0, 1.515717, 1.933182, 3.981072])
