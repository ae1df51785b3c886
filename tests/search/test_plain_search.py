"""Beam search against exhaustive, greedy and readable beam search, on random step functions."""

import functools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_search import beam_search

from nmt.search.beam import length_penalty
from nmt.search.feed import Hypothesis

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
        self.calls = []
        """(sentences, beam) of every call"""

    def __call__(self, ids, sentences):
        self.calls.append(tuple(ids.shape[:2]))
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


def greedy(table, cap, alpha):
    ids, total = [], 0.0
    while len(ids) < cap:
        log_probs = table(tuple(ids))
        symbol = int(log_probs.argmax())
        total += float(log_probs[symbol])
        if symbol == EOS:
            return Hypothesis(ids, total / penalty(len(ids) + 1, alpha), True)
        ids.append(symbol)
    return Hypothesis(ids, total / penalty(cap, alpha), False)


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_a_beam_of_1_takes_the_best_symbol_until_the_first_end_symbol(alpha):
    tables, caps = [random_table(seed, 7) for seed in range(200)], [1 + seed % 15 for seed in range(200)]
    found = search(tables, caps, beam=1, alpha=alpha)
    expected = [greedy(table, cap, alpha) for table, cap in zip(tables, caps, strict=True)]
    for hypotheses, one in zip(found, expected, strict=True):
        assert_same(hypotheses, [one])
    assert {one.finished for one in expected} == {True, False}  # both ends occur


# --- batches and n-best lists -------------------------------------------------------------------------------


@pytest.mark.parametrize("beam", [1, 2, 4])
def test_the_output_of_a_sentence_does_not_depend_on_batch_mates(beam):
    tables, caps = [random_table(seed, 6) for seed in range(40)], [1 + seed * 7 % 12 for seed in range(40)]
    options = {"beam": beam, "alpha": 0.6, "n_best": beam}
    together = search(tables, caps, **options)
    backwards = search(tables[::-1], caps[::-1], **options)
    alone = [search([table], [cap], **options)[0] for table, cap in zip(tables, caps, strict=True)]
    assert together == alone  # scores too, to the bit
    assert together == backwards[::-1]


@pytest.mark.parametrize("beam", [2, 3, 5])
def test_n_best_hypotheses_are_distinct_ordered_and_begin_with_the_best(beam):
    tables, caps = [random_table(seed, 5) for seed in range(60)], [2 + seed % 9 for seed in range(60)]
    best = search(tables, caps, beam=beam, alpha=0.6)
    for n_best in range(1, beam + 1):
        for one, several in zip(best, search(tables, caps, beam=beam, alpha=0.6, n_best=n_best), strict=True):
            scores = [h.score for h in several]
            assert len(one) == 1
            assert several[:1] == one
            assert len(several) == n_best
            assert scores == sorted(scores, reverse=True)
            assert len({tuple(h.ids) for h in several}) == n_best


@pytest.mark.parametrize("n_best", [0, 3])
def test_n_best_outside_1_to_beam_is_refused(n_best):
    with pytest.raises(ValueError, match="n_best"):
        search([random_table(1, 4)], [3], beam=2, alpha=0.6, n_best=n_best)


# --- lengths, caps and when to stop -------------------------------------------------------------------------


def table_of(probabilities, otherwise):
    """A step function from probabilities after the prefixes that matter."""

    def log_probs(prefix):
        with np.errstate(divide="ignore"):
            return np.log(np.array(probabilities.get(prefix, otherwise), dtype=np.float32))

    return log_probs


GOLDEN = table_of(
    {
        (): [0.005, 0.005, 0.5, 0.49],  # <s>, </s>, a, b
        (2,): [0.1, 0.5, 0.25, 0.15],
        (3,): [0.2, 0.05, 0.3, 0.45],
    },
    otherwise=[0.25, 0.25, 0.25, 0.25],
)


def test_length_counts_the_end_symbol_and_not_the_begin_symbol():
    # "a </s>": ln(0.5 · 0.5) / ((5 + 2) / 6)^0.6 = -1.386294 / 1.096903
    # "b b", cut off: ln(0.49 · 0.45) / 1.096903
    (found,) = search([GOLDEN], [2], beam=2, alpha=0.6, n_best=2)
    assert_same(found, [Hypothesis([2], -1.263826, True), Hypothesis([3, 3], -1.378285, False)])


def test_length_penalty_has_the_values_of_its_formula():
    lengths = torch.tensor([1.0, 7.0, 13.0, 55.0])
    assert length_penalty(lengths, 0.0).tolist() == [1.0] * 4
    assert length_penalty(lengths, 1.0).tolist() == pytest.approx([1.0, 2.0, 3.0, 10.0])
    assert length_penalty(lengths, 0.6).tolist() == pytest.approx([1.0, 1.515717, 1.933182, 3.981072])


def test_at_the_cap_alive_hypotheses_compete_and_are_marked_unfinished():
    never_ends = table_of({}, otherwise=[0.0, 0.001, 0.6, 0.399])
    (found,) = search([never_ends], [3], beam=2, alpha=1.0)
    assert_same(found, [Hypothesis([2, 2, 2], 3 * math.log(0.6) / (8 / 6), False)])


def test_a_finished_hypothesis_can_beat_those_cut_off():
    table = table_of({(): [0.01, 0.4, 0.59]}, otherwise=[0.5, 0.0, 0.5])
    (found,) = search([table], [6], beam=2, alpha=0.0)
    assert_same(found, [Hypothesis([], math.log(0.4), True)])


def test_a_longer_output_wins_by_its_length_only_with_a_penalty():
    # after "a" the ending is certain: "a </s>" has probability 0.45, "</s>" 0.5
    table = table_of({(): [0.05, 0.5, 0.45], (2,): [0.0, 1.0, 0.0]}, otherwise=[0.4, 0.2, 0.4])
    (plain,) = search([table], [10], beam=2, alpha=0.0)
    (penalised,) = search([table], [10], beam=2, alpha=1.0)
    assert_same(plain, [Hypothesis([], math.log(0.5), True)])
    assert_same(penalised, [Hypothesis([2], math.log(0.45) / (7 / 6), True)])


def test_search_stops_once_nothing_alive_can_win():
    step = TableStep([table_of({}, otherwise=[0.0005, 0.999, 0.0005])])
    beam_search(step, [50], beam=4, alpha=0.6, bos=BOS, eos=EOS)
    assert len(step.calls) == 1  # ln 0.999 ≥ ln 0.0005 / lp(50)


def test_sentences_that_are_done_leave_the_batch():
    quick, slow = table_of({}, otherwise=[0.0005, 0.999, 0.0005]), table_of({}, otherwise=[0.3, 0.01, 0.69])
    step = TableStep([slow, quick, slow])
    beam_search(step, [4, 6, 6], beam=2, alpha=0.6, bos=BOS, eos=EOS)
    assert step.calls == [(3, 2)] + [(2, 2)] * 3 + [(1, 2)] * 2


def test_an_output_is_never_longer_than_its_own_cap():
    tables = [random_table(seed, 5) for seed in range(100)]
    caps = [1 + seed % 8 for seed in range(100)]
    for cap, hypotheses in zip(caps, search(tables, caps, beam=3, alpha=1.0, n_best=3), strict=True):
        for h in hypotheses:
            assert len(h.ids) + h.finished <= cap
            assert h.finished or len(h.ids) == cap
            assert EOS not in h.ids
