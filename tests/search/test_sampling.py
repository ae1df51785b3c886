"""Samples: the same whatever the batch, as frequent as they are probable, and ended each by itself."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import reference_search
import torch
from queues import Pile
from reference_search import UncachedStep
from torch import Tensor

from nmt.model.transformer import Transformer
from nmt.recipe import Decoding
from nmt.search.beam import SearchEngine
from nmt.search.sampling import draw, key, random_bits, stream
from nmt.search.sources import Hypothesis, Source
from nmt.text.vocabulary import BOS, EOS

VOCABULARY = 203  # not a multiple of what vocabularies are filled up to
SOURCES = [Source(n, [4 + (7 * n + 5 * i) % 190 for i in range(1 + n % 9)], cap=6 + n % 11) for n in range(18)]


def random_model(**changes: Any) -> Transformer:
    return reference_search.random_model(VOCABULARY, VOCABULARY, **{"liking": 1.0, **changes})


def samples(
    models: Sequence[Transformer], sources: Sequence[Source], count: int, **decoding: Any
) -> list[list[Hypothesis]]:
    engine = SearchEngine(models, Decoding(**decoding))
    return [
        hypotheses
        for _, hypotheses in sorted(engine.search(Pile(sources), count, sample=True), key=lambda found: found[0])
    ]


def ids_of(found: list[list[Hypothesis]]) -> list[list[list[int]]]:
    return [[hypothesis.ids for hypothesis in hypotheses] for hypotheses in found]


def with_end(hypothesis: Hypothesis) -> list[int]:
    return [*hypothesis.ids, EOS] if hypothesis.finished else hypothesis.ids


@torch.inference_mode()
def plain_sample(
    models: Sequence[Transformer], source: Source, sample: int, decoding: Decoding
) -> tuple[list[int], float]:
    """The ids of one sample, `</s>` included, and its score; the hypothesis is decoded anew for each symbol."""
    step, ids, total = UncachedStep(models, [source.ids]), [BOS], 0.0
    while len(ids) <= source.cap and ids[-1] != EOS:
        log_probs = step(torch.tensor([[ids]]), torch.tensor([0]))
        if len(ids) <= decoding.min_length:
            log_probs[:, :, EOS] = -math.inf
        padded = torch.nn.functional.pad(log_probs, (0, -VOCABULARY % 16), value=-math.inf)
        bits = random_bits(torch.tensor([key(decoding.seed, source.ids)]), sample + 1, torch.tensor([[len(ids) - 1]]))
        symbol = int(draw(padded, bits[:, sample:], decoding))
        ids.append(symbol)
        total += float(log_probs[0, 0, symbol])
    return ids[1:], total / ((5 + len(ids) - 1) / 6) ** decoding.alpha


SETTINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.5, "alpha": 1.0, "seed": 7},
    {"top_k": 5, "min_length": 4},
    {"top_p": 0.7, "temperature": 1.5},
    {"top_k": 20, "top_p": 0.9},
]


@pytest.mark.parametrize("decoding", SETTINGS)
def test_samples_are_those_of_the_plain_way_in_any_batch(decoding: dict[str, Any]) -> None:
    models = [random_model()]
    expected = [[plain_sample(models, source, n, Decoding(**decoding)) for n in range(2)] for source in SOURCES]
    for tokens in (1, 60):
        for found, wanted in zip(samples(models, SOURCES, 2, batch_tokens=tokens, **decoding), expected, strict=True):
            assert [with_end(h) for h in found] == [ids for ids, _ in wanted]
            assert [h.score for h in found] == pytest.approx([score for _, score in wanted], abs=1e-4)
    lengths = {len(ids) for wanted in expected for ids, _ in wanted}
    assert len(lengths) > 5  # worth comparing
    ended = {ids[-1] == EOS for own in expected for ids, _ in own}
    assert ended == {True, False}


@pytest.mark.parametrize(
    "changes",
    [{"norm": "pre", "positions": "learned", "max_positions": 40}, {"positions": "words"}],
)
def test_samples_of_an_ensemble_and_of_other_models(changes: dict[str, Any]) -> None:
    models, decoding = [random_model(), random_model(seed=5, **changes)], Decoding()
    found = samples(models, SOURCES, 2, batch_tokens=60)
    for source, own in zip(SOURCES, found, strict=True):
        expected = [plain_sample(models, source, n, decoding)[0] for n in range(2)]
        assert [with_end(h) for h in own] == expected


def test_a_sample_depends_on_its_number_its_source_and_the_seed_only() -> None:
    models = [random_model()]
    three, one = (ids_of(samples(models, SOURCES, count)) for count in (3, 1))
    assert [own[:1] for own in three] == one
    moved = [Source(100 - source.number, source.ids, source.cap) for source in SOURCES]
    assert ids_of(samples(models, moved, 3)) == three[::-1]
    assert len({tuple(ids) for own in three for ids in own}) > 40  # of 54
    other = ids_of(samples(models, SOURCES, 3, seed=2))
    pairs = [pair for mine, theirs in zip(three, other, strict=True) for pair in zip(mine, theirs, strict=True)]
    assert sum(one != two for one, two in pairs) > 40


@torch.inference_mode()
def probabilities(model: Transformer, source: Source) -> dict[tuple[int, ...], float]:
    """Of all outputs of up to two symbols, `</s>` included."""

    def following(*ids: int) -> list[float]:  # after control symbols have been excluded
        return step(torch.tensor([[[BOS, *ids]]]), torch.tensor([0]))[0, 0].softmax(0).tolist()

    step, found = UncachedStep([model], [source.ids]), {}
    for one, share in enumerate(following()):
        if one == EOS:
            found[one,] = share
        else:
            found |= {(one, two): share * p for two, p in enumerate(following(one))}
    return found


def test_samples_are_as_frequent_as_they_are_probable() -> None:
    """Pearson's test; outputs that are expected less than ten times count as one."""
    model, count, source = reference_search.random_model(20, 20, liking=1.0), 20_000, Source(0, [5, 9], cap=2)
    found: Counter[tuple[int, ...]] = Counter()
    for seed in range(20):
        (own,) = samples([model], [source], count // 20, seed=seed)
        found.update(tuple(with_end(hypothesis)) for hypothesis in own)
    expected = {output: count * p for output, p in probabilities(model, source).items()}
    common = [(found[output], share) for output, share in expected.items() if share >= 10]
    rest = count - sum(seen for seen, _ in common), count - sum(share for _, share in common)
    assert len(common) > 50
    chi_squared = sum((seen - share) ** 2 / share for seen, share in (*common, rest))
    assert chi_squared < len(common) + 4 * math.sqrt(2 * len(common))  # four deviations, hardly ever exceeded


# --- drawing ------------------------------------------------------------------------------------------------


def frequencies(log_probs: Tensor, count: int, **decoding: Any) -> Tensor:
    """How often each symbol is drawn from log_probs (vocabulary,)."""
    bits = stream(torch.tensor([3]), count)
    found = draw(log_probs.expand(1, count, -1), bits, Decoding(**decoding))
    return torch.bincount(found.flatten(), minlength=len(log_probs))


def test_random_bits_are_those_of_splitmix64() -> None:
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]  # of the seed 0, as published
    assert [bits % 2**64 for bits in stream(torch.tensor(0), 3).tolist()] == expected


def test_top_k_and_top_p_keep_the_most_probable_symbols() -> None:
    log_probs = torch.tensor([0.4, 0.05, 0.3, 0.05, 0.15, 0.05]).log()

    def kept(**decoding: Any) -> list[int]:
        return frequencies(log_probs, 2000, **decoding).nonzero().flatten().tolist()

    assert kept() == [0, 1, 2, 3, 4, 5]
    assert kept(top_k=2) == [0, 2]
    assert kept(top_k=100) == [0, 1, 2, 3, 4, 5]
    assert kept(top_p=0.39) == [0]
    assert kept(top_p=0.41) == kept(top_p=0.69) == [0, 2]
    assert kept(top_p=0.8) == [0, 2, 4]
    assert kept(top_k=3, top_p=0.8) == [0, 2]  # of the three, 0.4 and 0.3 have 82%
    assert frequencies(log_probs, 2000, top_k=2)[0] == pytest.approx(2000 * 4 / 7, abs=100)


def test_a_temperature_is_an_exponent() -> None:
    log_probs = torch.tensor([0.8, 0.2]).log()
    for temperature, share in ((0.5, 0.64 / 0.68), (1.0, 0.8), (2.0, 2 / 3)):
        found = frequencies(log_probs, 10_000, temperature=temperature)
        assert found[0] == pytest.approx(10_000 * share, abs=200)
