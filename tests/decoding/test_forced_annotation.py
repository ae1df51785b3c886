"""Alignments and log-probabilities against the whole output of the model, and a search that adds them."""

from __future__ import annotations

import random

import pytest
import torch
from queues import Pile

from nmt.decoding import beam
from nmt.decoding import forced as annotation
from nmt.decoding.engine import Hypothesis, Source
from nmt.decoding.forced import annotate, attention_of
from nmt.decoding.search import SearchEngine
from nmt.model.transformer import Transformer
from nmt.recipe import Decoding, Model
from nmt.text.vocabulary import BOS, EOS

VOCABULARY = 128  # of ASCII


def tiny(decoder_layers: int = 3, seed: int = 1, window: int | None = None) -> Transformer:
    """A random model whose attention is sharp enough to tell places apart."""
    torch.manual_seed(seed)
    config = Model(layers=1, decoder_layers=decoder_layers, d_model=16, d_ff=16, heads=2, attention_window=window)
    model = Transformer(config, VOCABULARY, VOCABULARY).double().eval()
    with torch.no_grad():
        for layer in model.decoder:
            layer.cross.query.weight.mul_(6.0)
    return model


def some_pairs(count: int) -> list[tuple[list[int], list[int]]]:
    draw = random.Random(1)
    return [
        ([draw.randrange(4, VOCABULARY) for _ in range(draw.randint(1, 9))],
         [draw.randrange(4, VOCABULARY) for _ in range(draw.randint(0, 9))])
        for _ in range(count)
    ]  # fmt: skip


@torch.inference_mode()
def expected(models: list[Transformer], source: list[int], output: list[int], layers: slice) -> list[int]:
    """One pair by itself; rows of cross-attention belong to the symbols that they lead to."""
    if not output:
        return []
    total = torch.zeros(len(output), len(source) + 1, dtype=torch.double)
    for model in models:
        weights = model.attention_weights(torch.tensor([[*source, EOS]]), torch.tensor([[BOS, *output[:-1]]]))
        total += torch.stack(weights.cross[layers])[:, 0].mean((0, 1))
    return [int(row[:-1].argmax()) for row in total]


@pytest.mark.parametrize(("decoder_layers", "first", "window"), [(1, 0, None), (2, 1, None), (3, 1, None), (3, 1, 2)])
def test_alignments_are_the_mean_of_all_heads_and_layers_but_the_first(
    decoder_layers: int, first: int, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, pairs = tiny(decoder_layers, window=window), some_pairs(60)
    monkeypatch.setattr(annotation, "TOKENS", 100)  # several batches
    found = [weights.argmax(-1).tolist() for weights in attention_of([model], pairs)]
    assert found == [expected([model], *pair, slice(first, None)) for pair in pairs]
    assert sum(len(set(places)) > 1 for places in found) > 20


def probabilities(models: list[Transformer], pairs: list[tuple[list[int], list[int]]]) -> list[list[float]]:
    found = [(Source(0, source, 99), [Hypothesis(output, 0.0, True)]) for source, output in pairs]
    return [each.log_probabilities for _, (each,) in annotate(models, found)]


@torch.inference_mode()
def test_probabilities_are_those_of_each_symbol_given_those_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(annotation, "TOKENS", 100)  # several batches
    models, pairs = [tiny(3), tiny(3, seed=2)], some_pairs(40)
    for (source, output), found in zip(pairs, probabilities(models, pairs), strict=True):
        if not output:
            assert found == []
            continue
        target_in = torch.tensor([[BOS, *output[:-1]]])
        each = [model(torch.tensor([[*source, EOS]]), target_in)[0].softmax(-1) for model in models]
        mean = torch.stack(each).mean(0).log()
        assert found == pytest.approx([float(mean[at, symbol]) for at, symbol in enumerate(output)], abs=1e-9)


def engine_of(model: Transformer) -> SearchEngine:
    return SearchEngine([model], Decoding(beam=2, batch_tokens=60), annotated=True)


def test_an_engine_that_annotates_finds_what_it_finds_without(monkeypatch: pytest.MonkeyPatch) -> None:
    model, engine = tiny().float(), engine_of(tiny().float())
    sources = [Source(number, ids, cap=20) for number, (ids, _) in enumerate(some_pairs(40))]
    plain = dict(SearchEngine([model], engine.decoding).search(Pile(sources), 2))
    for tokens in (1, 300):
        monkeypatch.setattr(beam, "HELD", tokens)
        found = dict(engine.search(Pile(sources), 2))
        assert sorted(found) == sorted(plain)
        for source in sources:
            ((_, expected_of),) = annotate([model], [(source, plain[source.number])])
            for each, again in zip(found[source.number], expected_of, strict=True):
                assert (each.ids, each.alignment) == (again.ids, again.alignment)
                assert each.log_probabilities == pytest.approx(again.log_probabilities, abs=1e-4)


def test_nothing_is_held_back_while_there_is_nothing_else() -> None:
    """A source comes once there is an answer to the one before."""
    waiting = [Source(number, [97, 98, 99], cap=5) for number in range(3)]
    answered: list[int] = []

    class Conversation:
        def take(self, tokens: int, wait: bool) -> list[Source]:
            return [waiting.pop(0)] if waiting and len(answered) == 3 - len(waiting) else []

    for number, _ in engine_of(tiny().float()).search(Conversation(), 1):
        answered.append(number)
    assert answered == [0, 1, 2]


def test_what_ends_together_is_annotated_together(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    monkeypatch.setattr(annotation, "attention_of", lambda *given: counts.append(len(given[1])) or attention_of(*given))
    sources = [Source(number, [97 + number % 20, 98, 99, 100], cap=4) for number in range(100)]
    assert len(list(engine_of(tiny().float()).search(Pile(sources), 1))) == 100
    assert counts == [12] * 8 + [4]  # sources of 5 subwords in batches of 60
