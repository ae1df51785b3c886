"""Alignments and log-probabilities against the whole output of the model, and an engine that adds them."""

from __future__ import annotations

import random
import threading
from collections.abc import Generator, Iterator

import pytest
import torch
from engines import Found, Mirror, Shuffling, pipeline
from feeds import Pile

from nmt.model.transformer import Transformer
from nmt.recipe import Model
from nmt.search import annotation
from nmt.search.annotation import AnnotatingEngine, align, probabilities
from nmt.search.feed import Feed, Source
from nmt.text.symbols import BOS, EOS

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
def expected(models: list[Transformer], source: list[int], output: list[int], layer: int) -> list[int]:
    """One pair by itself; rows of cross-attention belong to the symbols that they lead to."""
    if not output:
        return []
    total = torch.zeros(len(output), len(source) + 1, dtype=torch.double)
    for model in models:
        weights = model.attention_weights(torch.tensor([[*source, EOS]]), torch.tensor([[BOS, *output[:-1]]]))
        total += weights.cross[layer][0].mean(0)
    return [int(row[:-1].argmax()) for row in total]


@pytest.mark.parametrize(("decoder_layers", "layer", "window"), [(1, 0, None), (2, 0, None), (3, 1, None), (3, 1, 2)])
def test_alignments_are_the_heads_mean_in_the_penultimate_layer(
    decoder_layers: int, layer: int, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, pairs = tiny(decoder_layers, window=window), some_pairs(60)
    monkeypatch.setattr(annotation, "TOKENS", 100)  # several batches
    found = align([model], pairs)
    assert found == [expected([model], *pair, layer) for pair in pairs]
    assert sum(len(set(places)) > 1 for places in found) > 30


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


def test_an_engine_with_alignments_finds_what_it_finds_without(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["", *("".join(random.Random(seed).choices("abcdefgh", k=1 + seed % 20)) for seed in range(100)), ""]
    plain = list(pipeline(Shuffling(1)).stream(lines, n_best=2))
    model = tiny()
    for tokens in (1, 300):
        monkeypatch.setattr(annotation, "TOKENS", tokens)
        aligned = list(pipeline(AnnotatingEngine(Shuffling(2), [model])).stream(lines, n_best=2))
        assert [found.texts for found in aligned] == [found.texts for found in plain]
        for found in aligned:
            assert found.alignments == [expected([model], found.source, ids, 1) for ids in found.ids]
            pairs = [(found.source, ids) for ids in found.ids]
            assert list(map(len, found.log_probabilities)) == list(map(len, found.ids))
            for scores, again in zip(found.log_probabilities, probabilities([model], pairs), strict=True):
                assert scores == pytest.approx(again, abs=1e-9)


def test_nothing_is_held_back_while_there_is_nothing_else() -> None:
    answered = threading.Semaphore(0)

    class AtOnce(Shuffling):
        """Searches a source as soon as it is there, and looks for more before it gives it."""

        def search(self, feed: Feed, n_best: int) -> Generator[Found, None, None]:
            for found in super().search(feed, n_best):
                feed.take(0, wait=False)
                yield found

    def conversation() -> Iterator[str]:
        for line in ["ab", "cd", "", "ef"]:
            yield line
            assert answered.acquire(timeout=60)

    found = []
    for translation in pipeline(AnnotatingEngine(AtOnce(1), [tiny()])).stream(conversation()):
        found.append(translation.texts[0])
        answered.release()
    assert found == ["ba", "dc", "", "fe"]


SOURCES = [Source(number, [97 + number % 20, 98, 99, 100], cap=20) for number in range(12)]


def test_what_is_found_is_annotated_by_so_many_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    monkeypatch.setattr(annotation, "TOKENS", 16)  # of two sources and their outputs
    monkeypatch.setattr(annotation, "align", lambda models, pairs: counts.append(len(pairs)) or align(models, pairs))
    assert len(list(AnnotatingEngine(Mirror(), [tiny()]).search(Pile(SOURCES), 1))) == 12
    assert [count for count in counts if count] == [2] * 6
