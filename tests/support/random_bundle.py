"""Bundles of small random translators, for what reads or converts any bundle."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

import torch

from nmt.checkpoint.reading import Bundle
from nmt.checkpoint.writing import save_bundle
from nmt.model.transformer import Transformer
from nmt.recipe import Decoding, Model, Recipe, TokenizerSettings
from nmt.text.tokenizer import Tokenizer

WORDS = ["tree", "house", "dog", "cat", "river", "garden", "window", "teacher", "sees", "likes", "the", "."]


def sentence(seed: int) -> str:
    """One to nine words."""
    draw = random.Random(seed)
    return " ".join(draw.choices(WORDS, k=draw.randint(1, 9)))


@cache
def tokenizer_of_words(shared: bool) -> Tokenizer:
    """Subwords of such sentences, and in capitals of their translations."""
    pairs = [(sentence(seed), sentence(seed).upper()) for seed in range(300)]
    return Tokenizer.train(pairs, TokenizerSettings(vocab_size=320, shared=shared))


def random_bundle(
    path: Path, shared: bool = True, decoding: Decoding | None = None, info: dict[str, Any] | None = None, **model: Any
) -> Bundle:
    """Write a bundle of a random translator."""
    torch.manual_seed(3)
    settings = {"layers": 2, "d_model": 32, "d_ff": 48, "heads": 2} | model
    tokenizer = tokenizer_of_words(shared)
    transformer = Transformer(Model(**settings), len(tokenizer.source), len(tokenizer.target))
    return write_bundle(path, transformer, shared, decoding, info)


def write_bundle(
    path: Path,
    transformer: Transformer,
    shared: bool = True,
    decoding: Decoding | None = None,
    info: dict[str, Any] | None = None,
) -> Bundle:
    """Write a bundle of a translator, with norms and biases that are not the neutral ones that training begins with."""
    with torch.no_grad():
        for weight in transformer.parameters():
            if weight.dim() == 1:
                weight.add_(torch.randn_like(weight), alpha=0.1)
    data = {"name": "d", "source": "en", "target": "de", "train": [{"source": "a.en", "target": "b.de"}]}
    recipe = Recipe(
        name="random",
        data={**data, "max_length": 70},  # type: ignore[arg-type]
        tokenizer=TokenizerSettings(vocab_size=320, shared=shared),
        model=transformer.config,
        decoding=decoding or Decoding(max_source=70, max_extra=9),
    )
    weights = dict(transformer.float().named_parameters())
    save_bundle(path, weights, recipe, tokenizer_of_words(shared), {"run": "r", "step": 3, "data": "d"} | (info or {}))
    return Bundle.read(path)
