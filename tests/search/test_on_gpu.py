"""Steps of a search that are recorded once and repeated where their tensors lie, without a GPU: traced by PyTorch."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from queues import Pile
from reference_search import assert_same, random_model
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from nmt.compute.recorded import Recorded
from nmt.recipe import Decoding
from nmt.search import on_gpu, way
from nmt.search.beam import SearchEngine
from nmt.search.constraints import Constraint, MinLength, NoRepeat
from nmt.search.plain import Plain
from nmt.search.sources import Hypothesis, Source
from nmt.search.state import Newest
from nmt.text.vocabulary import PAD

VOCABULARY = 103
CAPPED = {"norm": "pre", "positions": "learned", "max_positions": 24, "d_k": 3, "d_v": 5}
WORDS = {"positions": "words"}


def sources_of(count: int, seed: int = 1) -> list[Source]:
    """Their caps are the lengths that `CAPPED` serves."""
    pick = random.Random(seed)
    lists = [[pick.randrange(4, VOCABULARY) for _ in range(pick.randint(1, 12))] for _ in range(count)]
    return [Source(number, ids, cap=len(ids) + 12) for number, ids in enumerate(lists)]


class Traced:
    """Work that is done once and recorded, operation by operation, with the tensors that each reads and writes."""

    recorded = replayed = 0

    def __init__(self, work: Callable[[], None]) -> None:
        self._graph, self._is_done = make_fx(work)(), True
        Traced.recorded += 1

    def replay(self) -> None:
        if not self._is_done:
            self._graph()
            Traced.replayed += 1
        self._is_done = False


@pytest.fixture
def as_on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a CPU search as a GPU does, with the stand-in for CUDA graphs."""
    prepare = Recorded.__init__

    def begin(self: Recorded, device: torch.device, say: Callable[[str], None], active: bool) -> None:
        prepare(self, device, say, active=True)

    monkeypatch.setattr(way, "_on_cpu", way._on_gpu)
    for name, size in (("PAGE", 4), ("PAGES", 2), ("PLACES", 16)):  # so that tables and buffers grow
        monkeypatch.setattr(on_gpu, name, size)
    monkeypatch.setattr(on_gpu, "graph_rows", lambda count: -(-count // 4) * 4)  # to record fewer
    monkeypatch.setattr(Recorded, "__init__", begin)
    monkeypatch.setattr(Recorded, "_record", lambda self, work: Traced(work))
    monkeypatch.setattr(Traced, "recorded", 0)
    monkeypatch.setattr(Traced, "replayed", 0)


def found_by(engine: SearchEngine, how: str, sources: list[Source]) -> list[list[Hypothesis]]:
    return [found for _, found in sorted(engine.search(Pile(sources), engine.decoding.beam, how == "sample"))]


class LastTwo(NamedTuple):
    """Symbols of hypotheses (n, k)."""

    newer: Tensor
    older: Tensor


class NoSymbolOfTheLastTwo(Constraint[LastTwo]):
    """Hands a tensor on from one field to the other; for a beam of 1."""

    def begin(self, sources: Sequence[Source], end: int) -> LastTwo:
        none = torch.full((len(sources), self.beam), PAD, device=self.device)
        return LastTwo(none, none)

    def restrict(self, state: LastTwo, positions: Tensor, log_probs: Tensor) -> None:
        for symbols in state:
            log_probs.scatter_(2, symbols[:, :, None], -math.inf)

    def advance(self, state: LastTwo, newest: Newest) -> LastTwo:
        return LastTwo(newest.symbols, state.newer)


RULES = {
    "handed on": [NoSymbolOfTheLastTwo],
    "search": [],
    "sample": [partial(MinLength, 3)],
    "rules": [partial(MinLength, 5), partial(NoRepeat, 2)],
}


@pytest.mark.parametrize(
    ("how", "beam", "changes", "models"),
    [
        ("search", 4, {}, 1),
        ("rules", 2, WORDS, 2),
        ("sample", 3, CAPPED, 1),
        ("handed on", 1, {}, 1),
    ],
)
def test_a_search_by_repeated_steps_is_the_search(
    how: str, beam: int, changes: dict[str, Any], models: int, request: pytest.FixtureRequest
) -> None:
    sources, method = sources_of(7), "sample" if how == "sample" else "search"
    changes = {"layers": 1, **changes}
    several = [random_model(VOCABULARY, VOCABULARY, liking=1.0, seed=3 + each, **changes) for each in range(models)]
    decoding = Decoding(beam=beam, batch_tokens=52)
    expected = found_by(SearchEngine(several, decoding, RULES[how]), method, sources)
    request.getfixturevalue("as_on_gpu")
    engine = SearchEngine(several, decoding, RULES[how])
    for _ in range(2):
        assert_same(found_by(engine, method, sources), expected)
    assert Traced.replayed > 2 * Traced.recorded > 0


def test_a_search_goes_on_without_graphs_if_none_can_be_recorded(
    as_on_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("operation not permitted\nwhen stream is capturing")

    model, sources, said = random_model(VOCABULARY, VOCABULARY, liking=1.0, layers=1), sources_of(9), list[str]()
    decoding, results = Decoding(beam=3, batch_tokens=52), []
    monkeypatch.setattr(Recorded, "_record", refuse)
    for steps in ("graphs", "plainly"):
        engine = SearchEngine([model], decoding, [], said.append)
        if steps == "plainly":
            engine.way = partial(Plain, engine.models)
        results.append(found_by(engine, "search", sources))
    assert_same(*results)
    assert said == ["continuing without CUDA graphs: operation not permitted"]


def test_without_the_kernel_many_rows_are_given_what_they_use(as_on_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    model, sources, sizes = random_model(VOCABULARY, VOCABULARY, liking=1.0, layers=1), sources_of(9), set[int]()

    def observed(table: Tensor, own: Any, dtype: torch.dtype) -> Callable[..., Tensor]:
        sizes.add(table.size(1) if own is None else own[1].size(1))
        return gathered(table, own, dtype)

    gathered = on_gpu.gathered
    engine = SearchEngine([model], Decoding(beam=3, batch_tokens=52), [])
    expected = found_by(engine, "search", sources)
    monkeypatch.setattr(on_gpu, "SLOTS", 0)
    monkeypatch.setattr(on_gpu, "gathered", observed)
    assert_same(found_by(engine, "search", sources), expected)
    assert len(sizes) > 4


@pytest.mark.parametrize(("beam", "there"), [(4, False), (200, True)])
def test_wide_beams_have_no_kernel(beam: int, there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_gpu, "has_triton", lambda device: there)
    model = random_model(VOCABULARY, VOCABULARY, d_model=64, heads=2)
    assert not on_gpu.OnGPU([model], [], [], print, beam).has_kernel


def test_batches_are_filled_up_by_at_most_a_quarter_to_few_numbers_of_rows() -> None:
    found = [on_gpu.graph_rows(count) for count in range(1, 2049)]
    assert all(count <= rows <= 1.25 * count for count, rows in enumerate(found, 1))
    assert len(set(found)) == 40
