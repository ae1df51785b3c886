"""Shortlists of symbols: which there are, and that outputs are those of a search in which others are impossible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import reference_search
import torch
from compiled import compiled

from nmt.compute import cpu_products
from nmt.compute.native import Kernels
from nmt.model.transformer import Lexicon, Transformer
from nmt.recipe import Decoding
from nmt.search import way
from nmt.search.beam import BeamSearch, SearchEngine
from nmt.search.plain import Plain
from nmt.search.sources import Hypothesis, Pool, Prefix, Source
from nmt.system.errors import UserError
from nmt.text.vocabulary import EOS

VOCABULARY = 523  # which the layer of logits fills up to 576
NO_C = "is for a CPU with C kernels, in fp32 or int8"
FREQUENT = [*range(EOS + 1), 9, 40]
EACH = 5


@pytest.fixture(params=["_avx2", "_avx512"])  # the others leave products to libraries
def by_kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Kernels(compiled(request.param), "a test's")
    monkeypatch.setattr(way, "kernels", lambda: found)
    # A processor with VNNI sums larger weights exactly than kernels for AVX2 do, which then leave products to oneDNN.
    largest = min(found.functions.nmt_int8_limit(), cpu_products.largest_exact_weight())
    monkeypatch.setattr(cpu_products, "largest_exact_weight", lambda: largest)


class Queue:
    """Gives a few sources at a time."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.pool = Pool(sources)

    def take_sources(self, tokens: int, wait: bool) -> list[Source]:
        return self.pool.take_sources(min(tokens, 40), at_least=int(wait))


def search(model: Transformer, sources: Sequence[Source], n_best: int = 1, **decoding: Any) -> list[list[Hypothesis]]:
    found = dict(SearchEngine([model], Decoding(**decoding)).search(Queue(sources), n_best))
    return [found[source.number] for source in sources]


def random_sources(count: int) -> list[Source]:
    pick = Random(1)
    lists = [[pick.randrange(4, VOCABULARY) for _ in range(pick.randint(1, 12))] for _ in range(count)]
    return [Source(number, ids, cap=len(ids) + 12) for number, ids in enumerate(lists)]


def random_model(**changes: Any) -> Transformer:
    model: Transformer = reference_search.random_model(VOCABULARY, VOCABULARY, **changes).float()
    return model


def model_with(frequent: Sequence[int] = FREQUENT, **changes: Any) -> Transformer:
    """A model whose lexicon has EACH random translations of each symbol."""
    model = random_model(**changes)
    given = torch.randint(-1, VOCABULARY, (VOCABULARY, 1 + EACH), generator=torch.Generator().manual_seed(3))
    model.lexicon = Lexicon(given.int(), torch.tensor(frequent, dtype=torch.int32))
    return model


def listed(model: Transformer, source: Source, count: int) -> set[int]:
    assert model.lexicon is not None
    return {*model.lexicon.translations[source.ids, : 1 + count].flatten().tolist(), *FREQUENT, *source.first}


def assert_same(found: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert [each.ids for each in one] == [each.ids for each in other]
        assert [each.score for each in one] == pytest.approx([each.score for each in other], rel=1e-5)


@pytest.mark.usefixtures("by_kernels")
@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("beam", [1, 3])
def test_a_search_in_c_finds_what_it_finds_where_other_symbols_are_impossible(
    monkeypatch: pytest.MonkeyPatch, beam: int, precision: str
) -> None:
    model = model_with(output_bias=True)
    sources = random_sources(30)
    options = {"beam": beam, "precision": precision, "shortlist": 3, "min_length": 2}
    found = search(model, sources, n_best=beam, **options)
    for source, hypotheses in zip(sources, found, strict=True):
        for each in hypotheses:
            assert set(each.ids) <= listed(model, source, 3)
    alone = [search(model, [source], n_best=beam, **options)[0] for source in sources[:10]]
    monkeypatch.setattr(BeamSearch, "_least_length", lambda *_: None)  # whole steps in C are for no rules
    plain = search(model, sources, n_best=beam, **options)
    assert_same(found + alone, plain + plain[:10])


@pytest.mark.usefixtures("by_kernels")
def test_a_list_of_all_symbols_changes_nothing() -> None:
    model = model_with(range(VOCABULARY))
    sources = random_sources(20)
    found = search(model, sources, shortlist=1)
    assert_same(found, search(model, sources))


@pytest.mark.usefixtures("by_kernels")
def test_forced_symbols_are_possible_and_a_prefix_makes_all_so() -> None:
    model = model_with()
    engine = SearchEngine([model], Decoding(shortlist=1))
    assert engine.shortlists is not None
    source = replace(random_sources(1)[0], first=[150])
    symbols = engine.shortlists.of(source).symbols.tolist()
    assert 150 in symbols
    assert len(symbols) % 16 == 0
    assert set(symbols) - {-1} == listed(model, source, 1) - {-1}
    all_of = engine.shortlists.of(replace(source, prefix=Prefix([7], "", [])))
    assert all_of.symbols.tolist()[:VOCABULARY] == list(range(VOCABULARY))
    assert set(all_of.symbols.tolist()[VOCABULARY:]) == {-1}
    assert len(all_of.symbols) == all_of.in_c.outputs  # C reads as many
    with_prefix = [replace(each, prefix=Prefix([7], "", [])) for each in random_sources(12)]
    others = random_sources(12)
    mixed = [others[n] if n % 2 else with_prefix[n] for n in range(12)]
    found = search(model, mixed, shortlist=1)
    expected = [search(model, [each], shortlist=1)[0] for each in mixed]
    assert_same(found, expected)


def test_a_model_without_a_lexicon_and_an_ensemble_are_refused() -> None:
    with pytest.raises(UserError, match="this model has no lexicon") as refused:
        SearchEngine([random_model()], Decoding(shortlist=1))
    assert "nmt average CKPTS" in refused.value.hint
    with pytest.raises(UserError, match="not for an ensemble of 2"):
        SearchEngine([model_with(), model_with()], Decoding(shortlist=1))


def test_where_c_takes_no_steps_all_symbols_are_possible_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(way, "kernels", lambda: None)
    said: list[str] = []
    engine = SearchEngine([model_with()], Decoding(shortlist=1), say=said.append)
    assert engine.shortlists is None
    assert [line for line in said if NO_C in line] == said[-1:]
    assert isinstance(engine.way(1), Plain)
