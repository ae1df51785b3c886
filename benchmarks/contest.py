"""Engines that translate the same sources in turn, and a model of random weights for them to translate with."""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from nmt import recipe as recipes
from nmt.checkpoint.reading import Bundle
from nmt.checkpoint.writing import save_bundle
from nmt.decoding.engine import Engine, Pool, Source
from nmt.model.transformer import Transformer
from nmt.recipe import TokenizerSettings
from nmt.text.tokenizer import Tokenizer

Contestant = Callable[[], float]
"""Translates all sources once; target tokens/s."""


class Pile:
    """A queue that holds all its sources from the beginning."""

    def __init__(self, sources: list[Source]) -> None:
        self._pool = Pool(sources)

    def take(self, tokens: int, wait: bool) -> list[Source]:
        return self._pool.take(tokens, at_least=int(wait))


def ours(engine: Engine, sources: list[Source], alone: bool = False) -> Contestant:
    """Our engine; with `alone`, it gets one source after another."""

    def run() -> float:
        start, tokens = time.perf_counter(), 0
        for pile in [[source] for source in sources] if alone else [sources]:
            for _, (best,) in engine.search(Pile(pile), 1):
                tokens += len(best.ids) + best.finished
        return tokens / (time.perf_counter() - start)

    return run


def theirs(translator: Any, pieces: list[list[str]], options: Mapping[str, object], alone: bool = False) -> Contestant:
    """A `ctranslate2.Translator`; with `alone`, it gets one source after another."""

    def run() -> float:
        start, results = time.perf_counter(), []
        for batch in [[each] for each in pieces] if alone else [pieces]:
            results += translator.translate_batch(batch, **options)
        ends = "min_decoding_length" not in options
        return sum(len(result.hypotheses[0]) + ends for result in results) / (time.perf_counter() - start)

    return run


def forced_lengths(length: int) -> dict[str, object]:
    """The options by which CTranslate2 makes every output as long, as `decoding.min_length` and caps do ours."""
    return {"min_decoding_length": length, "max_decoding_length": length}


def series(title: str, contestants: dict[str, Contestant], against: str, pairs: int) -> list[dict[str, float]]:
    """Lets all run in turn; prints medians, and ratios to the one that they are compared with; returns the speeds."""
    for run in contestants.values():
        run()  # allocates, compiles
    rounds = [{name: run() for name, run in contestants.items()} for _ in range(pairs)]
    print(f"{title}; {pairs} rounds, {datetime.now():%Y-%m-%d}")
    for name in contestants:
        speed = statistics.median(one[name] for one in rounds)
        print(
            f"  {name:34s} {speed:8,.0f} tokens/s   {spread([one[name] / one[against] for one in rounds])}", flush=True
        )
    return rounds


def spread(ratios: list[float]) -> str:
    """Their median, least and greatest."""
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def random_bundle(folder: Path, model: Mapping[str, object], vocabulary: int) -> Bundle:
    """An untrained model with a vocabulary of random words; `model` has the keys of a recipe's section of that name."""
    letters = random.Random(1)
    alphabet = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(letters.choices(alphabet, k=letters.randint(3, 9))) for _ in range(max(20_000, vocabulary))]
    lines = [" ".join(letters.choices(words, k=12)) for _ in range(10_000)]
    tokenizer = Tokenizer.train(list(zip(lines, lines, strict=True)), TokenizerSettings(vocab_size=vocabulary))
    train = [{"source": "a", "target": "b"}]
    content = {"name": "random", "data": {"source": "en", "target": "de", "train": train}, "model": dict(model)}
    recipe_file = folder / "recipe.yaml"
    recipe_file.write_text(json.dumps(content))
    recipe = recipes.load(recipe_file)
    torch.manual_seed(1)
    transformer = Transformer(recipe.model, vocabulary, vocabulary)
    info = {"run": "random", "step": 0, "data": ""}
    save_bundle(folder / "bundle", dict(transformer.named_parameters()), recipe, tokenizer, info)
    return Bundle.read(folder / "bundle")


def random_sources(lengths: Iterable[int], cap: int, vocabulary: int) -> list[Source]:
    """Sources of random subwords, of these lengths."""
    pick = random.Random(2)
    return [
        Source(number, [pick.randrange(4, vocabulary) for _ in range(length)], cap)
        for number, length in enumerate(lengths)
    ]
