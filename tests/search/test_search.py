"""The fast search against the plain one, whatever comes and goes in its batch."""

import gc
import math
import random
import weakref
from dataclasses import replace
from functools import partial
from itertools import count
from operator import itemgetter

import pytest
import reference_search
import torch
from compiled import compiled
from reference_search import assert_same

from nmt.compute import cpu_products
from nmt.compute.cpu_products import Int8
from nmt.compute.native import INSTRUCTION_SETS, Kernels
from nmt.model.transformer import Transformer
from nmt.recipe import Decoding, Model
from nmt.search import choosing, way
from nmt.search.beam import BeamSearch, SearchEngine
from nmt.search.constraints import MinLength, NoRepeat
from nmt.search.in_c import InC, LayersInC
from nmt.search.plain import Plain
from nmt.search.sources import Source
from nmt.search.way import batch_tokens, for_search, pays
from nmt.system import torch_internals
from nmt.system.errors import UserError
from nmt.text.vocabulary import BOS, EOS, PAD, UNK

VOCABULARY = 203  # not a multiple of what vocabularies are filled up to


def random_model(**changes):
    return reference_search.random_model(VOCABULARY, VOCABULARY, **changes)


LIKE_MARIAN = {"activation": "silu", "attention_bias": True, "output_bias": True, "norm_epsilon": 1e-5}
MODELS = [
    {"liking": 1.0},
    {"liking": 2.0, "norm": "pre", "positions": "learned", "max_positions": 120, "d_k": 3, "d_v": 5, **LIKE_MARIAN},
    {"liking": 1.6, "positions": "words"},
]


def random_sources(count, longest=12, extra=12, seed=1):
    pick = random.Random(seed)
    lists = [[pick.randrange(4, VOCABULARY) for _ in range(pick.randint(1, longest))] for _ in range(count)]
    return [Source(number, ids, cap=len(ids) + extra) for number, ids in enumerate(lists)]


class ListFeed:
    """Gives sources in the order of the list, at most `most` at a time and, unless waited for, only now and then."""

    def __init__(self, sources, most=None, seed=0):
        self.sources, self.most, self.random = list(sources), most, random.Random(seed)
        self.takes = []

    def take_sources(self, tokens, wait):
        self.takes.append((tokens, wait))
        taken = []
        if self.most and not wait and self.random.random() < 0.5:
            return taken
        while self.sources and len(taken) != self.most:
            longest = max(len(source.ids) + 1 for source in [*taken, self.sources[0]])
            if (len(taken) + 1) * longest > tokens and not (wait and not taken):
                break
            taken.append(self.sources.pop(0))
        return taken


def search(models, sources, n_best=1, most=None, **decoding):
    engine = SearchEngine(models, Decoding(**decoding))
    found = list(engine.search(ListFeed(sources, most), n_best))
    assert sorted(number for number, _ in found) == [source.number for source in sources]
    return [hypotheses for _, hypotheses in sorted(found)]


def plain(models, sources, **options):
    return reference_search.reference_search(models, [s.ids for s in sources], [s.cap for s in sources], **options)


# --- the same as the plain search ---------------------------------------------------------------------------


@pytest.mark.parametrize(("beam", "changes"), list(zip((4, 2, 1), MODELS, strict=True)))
def test_the_fast_search_finds_what_the_plain_one_finds(beam, changes):
    model, sources = random_model(**changes), random_sources(30)
    expected = plain([model], sources, beam=beam, alpha=0.6, n_best=beam)
    lengths = [len(hypotheses[0].ids) for hypotheses in expected]
    assert len(set(lengths)) > 8  # worth comparing
    assert {hypotheses[0].finished for hypotheses in expected} == {True, False}
    for tokens, most in ((13, None), (100, 3), (5000, None)):
        found = search([model], sources, beam, most, beam=beam, alpha=0.6, batch_tokens=tokens)
        assert_same(found, expected)


@pytest.mark.parametrize(
    ("beam", "changes"),
    list(zip((4, 1, 4, 2), [*MODELS, {"liking": 1.0, "d_model": 64, "heads": 4, **LIKE_MARIAN}], strict=True)),
)
def test_a_search_in_fp32_finds_the_same_but_for_ties(beam, changes):
    """This is the search that uses the C kernels for its steps, where there are any."""
    model, sources = random_model(**changes), random_sources(30)
    expected = plain([model], sources, beam=beam, alpha=0.6, n_best=beam)
    for tokens in (13, 5000):
        found = search([model.float()], sources, beam, beam=beam, alpha=0.6, batch_tokens=tokens)
        same = [(a, b) for a, b in zip(found, expected, strict=True) if [h.ids for h in a] == [h.ids for h in b]]
        assert len(same) >= 28
        for one, other in same:
            assert [h.score for h in one] == pytest.approx([h.score for h in other], rel=1e-4)


class Sometimes(MinLength):
    """Says only at every third step that it is nothing but a least length."""

    calls = count(1)

    def least_length(self, state):
        return super().least_length(state) if next(self.calls) % 3 == 0 else None


STEPS = [
    (4, {"liking": 1.0, "d_model": 64, "heads": 4}, MinLength),
    (1, {"liking": 1.0, "norm": "pre", "positions": "learned", "max_positions": 120, **LIKE_MARIAN}, MinLength),
    (3, {"liking": 1.0}, Sometimes),
]


@pytest.mark.parametrize("library", list(INSTRUCTION_SETS))
@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize(("beam", "changes", "rule"), STEPS)
def test_steps_taken_at_once_are_those_taken_one_by_one(monkeypatch, library, precision, beam, changes, rule):
    monkeypatch.setattr(way, "kernels", lambda: Kernels(compiled(library), INSTRUCTION_SETS[library]))
    decoding = Decoding(beam=beam, precision=precision, batch_tokens=70)
    engine = SearchEngine([random_model(**changes).float()], decoding, [partial(rule, 4)])
    if not engine.way(beam).can_take_steps(1):
        pytest.skip("this library has not all products")
    taken, search_in_c = [], LayersInC.search
    monkeypatch.setattr(LayersInC, "search", lambda *given: taken.append(search_in_c(*given)) or taken[-1])
    # Of one length, for PyTorch encodes in 8 bits, and padding changes how it rounds.
    sources = [replace(source, ids=(source.ids * 12)[:12]) for source in random_sources(20, extra=30)]
    at_once = sorted(engine.search(ListFeed(sources, 3), beam), key=itemgetter(0))
    assert max(taken) > 1
    monkeypatch.setattr(InC, "can_take_steps", lambda self, rows: False)
    assert sorted(engine.search(ListFeed(sources, 3), beam), key=itemgetter(0)) == at_once


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("library", list(INSTRUCTION_SETS))
def test_processors_that_multiply_8_bits_in_tiles_find_the_same(monkeypatch, library, precision):
    monkeypatch.setattr(way, "kernels", lambda: Kernels(compiled(library), INSTRUCTION_SETS[library]))
    model = random_model(liking=1.0, d_model=64, heads=4).float()
    sources = [replace(source, ids=(source.ids * 12)[:12]) for source in random_sources(20, extra=30)]
    found = []
    for amx in (False, True):
        monkeypatch.setattr(cpu_products, "has_amx", lambda amx=amx: amx)
        monkeypatch.setattr(cpu_products, "FEW_MULTIPLICATIONS", 0)
        found.append(search([model], sources, 3, beam=3, precision=precision, batch_tokens=70))
    assert_same(found[1], found[0])


def test_the_memory_of_a_search_is_free_as_soon_as_it_ends(monkeypatch):
    def watched(self, *given):
        past = admit(self, *given)
        buffers.extend(map(weakref.ref, past.memory.caches[0][0]))
        return past

    admit, buffers = Plain.admit, []
    monkeypatch.setattr(Plain, "admit", watched)
    gc.disable()
    try:
        search([random_model().float()], random_sources(5))
        assert [buffer() for buffer in buffers] == [None] * 4
    finally:
        gc.enable()


def test_a_vocabulary_that_is_compared_by_blocks(monkeypatch):
    for module in (way, choosing):
        monkeypatch.setattr(module, "AT_ONCE", VOCABULARY - 1)
    monkeypatch.setattr(way, "kernels", lambda: None)
    model, sources = random_model(liking=1.0), random_sources(20)
    expected = plain([model], sources, beam=4, alpha=0.6, n_best=4)
    assert_same(search([model], sources, 4, beam=4, alpha=0.6, batch_tokens=100), expected)


def test_greedy_search_stops_at_the_first_end():
    """However much better a longer output would score."""
    engine = SearchEngine([random_model()], Decoding(beam=1, alpha=4.0))
    (logits,) = engine.logits
    engine.logits = (lambda x: torch.zeros_like(logits(x)).index_fill(-1, torch.tensor(EOS), 0.1),)
    for _, (found,) in engine.search(ListFeed(random_sources(3)), 1):
        assert (found.ids, found.finished) == ([], True)


def test_an_ensemble_averages_probabilities():
    members = zip((3, 4, 5), ({}, {"heads": 4}, {"layers": 1}), strict=True)
    models = [random_model(seed=seed, liking=1.0, **changes) for seed, changes in members]
    sources = random_sources(40)
    expected = plain(models, sources, beam=3, alpha=0.6, n_best=3)
    assert_same(search(models, sources, 3, beam=3, alpha=0.6, batch_tokens=60), expected)
    alone = search(models[:1], sources, 3, beam=3, alpha=0.6, batch_tokens=60)
    assert sum(one[0].ids != other[0].ids for one, other in zip(alone, expected, strict=True)) > 10


@pytest.mark.parametrize("rules", [[], [partial(NoRepeat, 50)]], ids=["alone", "beside another rule"])
def test_no_output_is_shorter_than_min_length(rules):
    model, sources = random_model(liking=1.0), random_sources(40)
    expected = plain([model], sources, beam=3, alpha=0.6, min_length=7)
    engine = SearchEngine([model], Decoding(beam=3, alpha=0.6, min_length=7, batch_tokens=60), rules)
    found = [hypotheses for _, hypotheses in sorted(engine.search(ListFeed(sources), 1))]
    assert_same(found, expected)
    lengths = [len(one[0].ids) for one in found]
    assert min(lengths) == 7
    assert min(len(one[0].ids) for one in plain([model], sources, beam=3, alpha=0.6)) < 7


def test_control_symbols_are_never_output():
    model = random_model()
    with torch.no_grad():
        model.output_embedding.weight[[PAD, UNK, BOS]] *= 30.0
    for hypotheses in search([model], random_sources(20), 4, beam=4):
        for hypothesis in hypotheses:
            assert not {PAD, UNK, BOS, EOS} & set(hypothesis.ids)


# --- what comes and goes ------------------------------------------------------------------------------------


def test_it_waits_only_when_it_has_nothing_else_to_do():
    queue = ListFeed(random_sources(30), most=3)
    engine = SearchEngine([random_model()], Decoding(beam=2, batch_tokens=100))
    under_way = 0
    take = queue.take_sources

    def counting(tokens, wait):
        nonlocal under_way
        assert wait == (under_way == 0)
        taken = take(tokens, wait)
        under_way += len(taken)
        return taken

    queue.take_sources = counting
    for _ in engine.search(queue, 1):
        under_way -= 1
    assert queue.takes[-1][1]  # it waited for the end


def test_a_long_source_does_not_pad_many_short_ones_to_its_length():
    short = [Source(number, [5, 6], cap=20) for number in range(30)]
    long = Source(30, [7] * 80, cap=20)
    engine = SearchEngine([random_model()], Decoding(beam=2, batch_tokens=90))
    cells = []
    advance = BeamSearch._advance

    def spy(self):
        lengths = self._state.past.rows.source_lengths
        cells.append(len(lengths) * max(lengths))
        return advance(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BeamSearch, "_advance", spy)
        found = dict(engine.search(ListFeed([*short, long]), 1))
    assert len(found) == 31
    assert max(cells) == 90


# --- best extensions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("k", "count"), [(1, 1), (4, 8), (9, 18)])
@pytest.mark.parametrize("vocabulary", [112, 64 * 31])
def test_best_extensions_are_those_of_a_whole_sort(k, count, vocabulary):
    torch.manual_seed(k)
    log_probs = torch.randn(5, k, vocabulary).log_softmax(-1)
    log_probs[:, :, ::3] = -math.inf
    alive = torch.randn(5, k)
    alive[1, 1:] = -math.inf
    expected, index = (log_probs + alive[:, :, None]).flatten(1).topk(count)
    totals, parents, symbols = choosing.BeamOperations().best_extensions(log_probs, alive, count)
    assert torch.equal(totals, expected)
    assert torch.equal(parents * vocabulary + symbols, index)


# --- precision ----------------------------------------------------------------------------------------------


NEEDS_BF16 = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this processor does not multiply in bf16"
)


@pytest.mark.parametrize(
    ("precision", "error"), [("fp32", 1e-5), pytest.param("bf16", 0.02, marks=NEEDS_BF16), ("int8", 0.05)]
)
@pytest.mark.parametrize("changes", [{}, LIKE_MARIAN])
def test_a_twin_computes_the_same_but_for_its_precision(precision, error, changes):
    torch.manual_seed(1)
    model = Transformer(Model(layers=2, d_model=64, d_ff=128, heads=2, **changes), 300, 300).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # norms and biases that are not the neutral ones they begin as
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
    source, target = torch.randint(4, 300, (6, 9)), torch.randint(4, 300, (6, 11))
    with torch.inference_mode():
        expected = model(source, target)
        (twin,), (logits,), *_ = for_search([model], precision, print)
        found = logits(twin.decode_states(target, twin.encode(source)))
        assert found.shape == (6, 11, 304)
        assert found.dtype == torch.float32
        difference = found[:, :, :300] - expected
        assert difference.norm() < error * expected.norm()
        if precision != "fp32":
            assert difference.norm() > 1e-4 * expected.norm()
        assert torch.equal(model(source, target), expected)  # the model itself is as it was


def values(spread, *shape):
    """Random numbers, or the same one everywhere, or the largest with either sign."""
    torch.manual_seed(len(shape))
    return {
        "normal": torch.randn(shape),
        "uniform": 2 * torch.rand(shape) - 1,
        "positive": torch.rand(shape),
        "constant": torch.ones(shape),
        "extreme": torch.randn(shape).sign(),
    }[spread]


@pytest.mark.parametrize(
    ("of_rows", "of_weights"),
    [
        ("normal", "uniform"),
        ("uniform", "extreme"),
        ("positive", "constant"),
        ("constant", "positive"),
        ("extreme", "normal"),
    ],
)
def test_an_int8_product_is_within_2_percent_on_any_processor(of_rows, of_weights):
    rows, weight = values(of_rows, 8, 512), values(of_weights, 256, 512)
    expected, found = rows @ weight.t(), Int8(weight, None)(rows)
    assert (found - expected).norm() <= 0.02 * expected.norm()


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_a_precision_is_what_it_is_asked_for_only_where_it_pays(monkeypatch, precision):
    model = random_model().float()
    with monkeypatch.context() as patched:
        patched.setattr(way, "pays", lambda wanted: False)
        assert SearchEngine([model], Decoding(precision=precision)).precision == "fp32"
    if precision == "bf16" and NEEDS_BF16.args[0]:
        assert not pays("bf16")  # which raises nothing
        return
    monkeypatch.setattr(way, "pays", lambda wanted: wanted == precision)
    assert SearchEngine([model], Decoding(precision=precision)).precision == precision


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_models_in_fp64_stay_so_even_beside_others(monkeypatch, precision):
    monkeypatch.setattr(way, "pays", lambda wanted: True)
    models, sources = [random_model(seed=seed, liking=1.0) for seed in (3, 4)], random_sources(20)
    expected = plain(models[1:], sources, beam=3, alpha=0.6)
    assert_same(search(models[1:], sources, beam=3, batch_tokens=60, precision=precision), expected)
    expected = plain(models, sources, beam=3, alpha=0.6)
    models[0].float()
    found = search(models, sources, beam=3, batch_tokens=60, precision=precision)
    same = [one[0].ids == other[0].ids for one, other in zip(found, expected, strict=True)]
    assert sum(same) >= (19 if precision == "fp32" else 10)


def test_a_precision_that_this_pytorch_has_not_is_a_users_error(monkeypatch):
    def missing(name):
        raise NotImplementedError("no kernel\nfor this machine")

    monkeypatch.setattr(torch_internals, "require", missing)
    with pytest.raises(UserError, match=r"precision bf16: .*no kernel"):
        for_search([random_model().float()], "bf16", print)
    monkeypatch.setattr(torch_internals, "find", lambda name: None)
    assert SearchEngine([random_model().float()], Decoding(precision="bf16")).precision == "fp32"


@pytest.mark.parametrize(("beam", "tokens"), [(1, 2048), (4, 2048), (21, 390), (1000, 8)])
def test_a_wide_beam_has_fewer_tokens_searched_together(beam, tokens):
    assert batch_tokens(Decoding(beam=beam), [random_model()]) == tokens
    assert batch_tokens(Decoding(beam=beam, batch_tokens=5000), [random_model()]) == 5000
