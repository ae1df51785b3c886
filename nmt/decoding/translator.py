"""Models and text to text: what `nmt.load` gives.

Knows no files and prints nothing. A sentence's translation does not depend on what shares its batch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from typing import NoReturn

from nmt.bundle import common_tokenizer, resolve
from nmt.decoding.engine import SearchEngine
from nmt.decoding.parser import Parser
from nmt.decoding.pipeline import Pipeline, longest_served
from nmt.decoding.translation import Translating, Translation
from nmt.device import choose_device
from nmt.errors import UserError
from nmt.model.transformer import Transformer
from nmt.recipe import Decoding, override_decoding
from nmt.text.linear import TreeVocabulary
from nmt.text.tokenizer import Tokenizer

ModelPath = str | os.PathLike[str]


class Translator:
    """A model, or an ensemble of several, with its tokenizer and its way of searching."""

    def __init__(self, model: Transformer | Sequence[Transformer], tokenizer: Tokenizer, decoding: Decoding) -> None:
        """Raises UserError where decoding.max_source is beyond what a model serves."""
        models = [model] if isinstance(model, Transformer) else list(model)
        positions = longest_served((model.config for model in models), decoding)
        self.tokenizer, self.decoding = tokenizer, decoding
        engine = SearchEngine(models, decoding)
        self._pipeline = Pipeline(Translating(tokenizer, decoding), decoding, engine, positions)

    def translate(self, texts: Sequence[str]) -> list[str]:
        """Translates raw sentences; one for each, in order. Blank gives blank."""
        if isinstance(texts, str):
            raise TypeError("translate takes a list of sentences; for one: translate([sentence])")
        return [translation.texts[0] for translation in self.stream(texts)]

    def stream(self, lines: Iterable[str], n_best: int = 1) -> Generator[Translation, None, None]:
        """Translates lines as they come, in bounded memory; one for each, in order."""
        return self._pipeline.stream(lines, n_best)

    def parse(self, lines: Sequence[str]) -> NoReturn:
        """Raises UserError, as a parser's `translate` does."""
        raise UserError("this model is a translator, not a parser", "call model.translate([...])")


def load(path: ModelPath | Sequence[ModelPath], device: str = "auto", **decoding: object) -> Translator | Parser:
    """The model of a bundle or a run's directory, as `nmt.load("ckpts/", beam=8)`; of several, their ensemble.

    What it was trained for, it does; a language model is for `nmt score` alone. Keywords replace keys of the (first)
    bundle's decoding settings; `device` is auto, cpu, cuda or cuda:N. Raises UserError where there is no such model,
    key, value or device, where models have different tokenizers, or where one is a language model.
    """
    paths = [path] if isinstance(path, str | os.PathLike) else path
    bundles = [resolve(Path(path))[0] for path in paths]
    tokenizer = common_tokenizer(bundles)
    has_trees = isinstance(tokenizer.target, TreeVocabulary)
    for bundle in bundles:
        bundle.check_task("parse" if has_trees else "translate")
    settings = override_decoding(bundles[0].recipe.decoding, [f"{key}={json.dumps(v)}" for key, v in decoding.items()])
    place = choose_device(device, None)
    kind = Parser if has_trees else Translator
    return kind([bundle.model(place) for bundle in bundles], tokenizer, settings)
