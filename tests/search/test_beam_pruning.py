"""Hypotheses that cannot get into the n-best list are dropped, and what is found is the same as without that."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import pytest
from queues import Pile
from reference_search import assert_same, random_model
from torch import Tensor

from nmt.model.transformer import Transformer
from nmt.parsing.linearization import ANY, TreeVocabulary
from nmt.recipe import Decoding
from nmt.search import choosing, way
from nmt.search.beam import SearchEngine
from nmt.search.constraints import MakeConstraint, MinLength, NoRepeat, PrefixConstraint, TreeConstraint
from nmt.search.plain import Plain
from nmt.search.sources import Hypothesis, Prefix, Source
from nmt.search.state import Past
from nmt.text.vocabulary import EOS, Vocabulary

VOCABULARY = 24
SENTENCES = 6  # of each search
LETTERS = "....abcdefghijklmnop aabb"[: VOCABULARY - 2] + " a"


def none_unless_all(bounds: Tensor, worst: Tensor) -> Tensor:
    """Hypotheses are dropped only together, when the best of them is hopeless."""
    return (bounds[:, :1] <= worst).expand_as(bounds)


class Letters:
    """A vocabulary whose subwords spell one letter, or a space."""

    def spellings(self) -> list[str]:
        return ["", "", "", "", *LETTERS[4:]]


LETTERS_OF = cast(Vocabulary, Letters())
TREES = TreeVocabulary(
    json.dumps(
        {"tags": [], "labels": ["S", "NP", "VP"], "longest_run": 2, "punctuation": {}, "ambiguous": []}
    ).encode(),
    "a test's",
)


class Case(NamedTuple):
    """A kind of search: rules, target vocabulary, and what they need of a source."""

    rules: list[MakeConstraint]
    extra: Callable[[random.Random], dict[str, Any]] = lambda pick: {}
    vocabulary: int = VOCABULARY


def prefix(pick: random.Random) -> dict[str, Any]:
    rest = "".join(pick.choices("abc ", k=pick.randint(0, 3)))
    return {"prefix": pick.choice([None, Prefix(pick.choices(range(4, VOCABULARY), k=pick.randint(0, 2)), rest, [])])}


CASES = {
    "none": Case([partial(MinLength, 0)]),
    "minimum length": Case([partial(MinLength, 4)]),
    "repetitions": Case([partial(MinLength, 0), partial(NoRepeat, 1)]),
    "prefixes": Case([partial(MinLength, 2), partial(PrefixConstraint, LETTERS_OF)], prefix),
    "trees": Case([partial(TreeConstraint, TREES)], lambda pick: {"kinds": [ANY] * pick.randint(1, 6)}, len(TREES)),
}


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Hypotheses alive in each step."""
    counts: list[int] = []
    step = Plain.step

    def counting(self: Plain, past: Past, parents: Tensor, symbols: Tensor, alive: Tensor) -> Any:
        counts.append(int(alive.sum()) * len(self.models))
        return step(self, past, parents, symbols, alive)

    monkeypatch.setattr(Plain, "step", counting)
    return counts


def found(
    models: Sequence[Transformer], sources: list[Source], rules: list[MakeConstraint], n_best: int, decoding: Decoding
) -> list[list[Hypothesis]]:
    engine = SearchEngine(models, decoding, rules)
    return [hypotheses for _, hypotheses in sorted(engine.search(Pile(sources), n_best))]


def sources_of(case: Case, pick: random.Random) -> list[Source]:
    lists = [[pick.randrange(4, VOCABULARY) for _ in range(pick.randint(1, 6))] for _ in range(SENTENCES)]
    return [Source(number, ids, cap=pick.randint(9, 24), **case.extra(pick)) for number, ids in enumerate(lists)]


@pytest.mark.parametrize("name", list(CASES))
def test_pruning_changes_no_result(name: str, computed: list[int]) -> None:
    case, pick = CASES[name], random.Random(name)
    counts = {"pruned": 0, "unpruned": 0}
    for seed, alpha in enumerate((0.0, 0.6, 2.0)):
        favourite = EOS if case.vocabulary == VOCABULARY else pick.randrange(4, case.vocabulary)
        options = {"favourite": favourite, "liking": pick.choice([0.5, 2.0, 4.0]), "layers": 1}
        models = [random_model(VOCABULARY, case.vocabulary, seed=each, **options) for each in (seed, seed + 9)]
        sources = sources_of(case, pick)
        for beam in (1, 5):
            decoding = Decoding(beam=beam, alpha=alpha, batch_tokens=pick.choice([60, 4096]))
            for n_best in sorted({1, pick.randint(1, beam), beam}):
                results = {}
                for kind in counts:
                    computed.clear()
                    used = models[: 1 + seed % 2]
                    with pytest.MonkeyPatch.context() as patch:
                        if kind == "unpruned":
                            patch.setattr(choosing, "cannot_enter", none_unless_all)
                            patch.setattr(way, "kernels", lambda: None)  # which prune always
                        results[kind] = found(used, sources, case.rules, n_best, decoding)
                    counts[kind] += sum(computed)
                assert_same(results["pruned"], results["unpruned"])
    assert counts["pruned"] < counts["unpruned"]
