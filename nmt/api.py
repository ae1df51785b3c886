"""Models from Python: what `nmt.load` gives, a translator or a parser.

Prints nothing. What a line becomes does not depend on what shares its batch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Generic, Literal, NoReturn, Self

from nmt.assembly import Assembly, pipeline_of
from nmt.bundle import common_tokenizer, resolve
from nmt.errors import UserError
from nmt.model.transformer import Transformer
from nmt.recipe import Decoding, override_decoding
from nmt.tasks.parsing import Parse, Parsing
from nmt.tasks.pipeline import Pipeline, Result
from nmt.tasks.translating import Translating, Translation
from nmt.text.linear import TreeVocabulary
from nmt.text.tokenizer import Tokenizer
from nmt.text.tree import Tree

ModelPath = str | os.PathLike[str]


class _Answering(Generic[Result]):
    """Something that answers lines; a context, at whose end its workers end, as they do with the object itself."""

    _pipeline: Pipeline[Result]
    _held: ExitStack

    @classmethod
    def _over(cls, tokenizer: Tokenizer, decoding: Decoding, pipeline: Pipeline[Result], held: ExitStack) -> Self:
        self = cls.__new__(cls)
        self._begin(tokenizer, decoding, pipeline, held)
        return self

    def _begin(
        self, tokenizer: Tokenizer, decoding: Decoding, pipeline: Pipeline[Result], held: ExitStack | None = None
    ) -> None:
        self.tokenizer, self.decoding, self._pipeline, self._held = tokenizer, decoding, pipeline, held or ExitStack()

    def stream(self, lines: Iterable[str], n_best: int = 1) -> Generator[Result, None, None]:
        """Answers lines as they come, in bounded memory; a result for each, in order."""
        return self._pipeline.stream(lines, n_best)

    def close(self) -> None:
        """Ends the workers, if there are any."""
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


class Translator(_Answering[Translation]):
    """A model, or an ensemble of several, with its tokenizer and its way of searching."""

    def __init__(self, model: Transformer | Sequence[Transformer], tokenizer: Tokenizer, decoding: Decoding) -> None:
        """Raises UserError where decoding.max_source is beyond what a model serves."""
        self._begin(tokenizer, decoding, pipeline_of(_several(model), decoding, Translating(tokenizer, decoding)))

    def translate(self, texts: Sequence[str]) -> list[str]:
        """Translates raw sentences; one for each, in order. Blank gives blank."""
        if isinstance(texts, str):
            raise TypeError("translate takes a list of sentences; for one: translate([sentence])")
        return [translation.texts[0] for translation in self.stream(texts)]

    def parse(self, lines: Sequence[str]) -> NoReturn:
        """Raises UserError, as a parser's `translate` does."""
        raise UserError("this model is a translator, not a parser", "call model.translate([...])")


class Parser(_Answering[Parse]):
    """A model, or an ensemble of several, with its tokenizer and its way of searching (section 6.3 of the paper)."""

    def __init__(
        self,
        model: Transformer | Sequence[Transformer],
        tokenizer: Tokenizer,
        decoding: Decoding,
        constrained: bool = True,
    ) -> None:
        """Unless `constrained`, the search finds what the model says on its own, tree or not.

        Raises UserError where decoding.max_source is beyond what a model serves.
        """
        parsing = Parsing(tokenizer, decoding, constrained)
        self._begin(tokenizer, decoding, pipeline_of(_several(model), decoding, parsing))

    def parse(self, lines: Sequence[str]) -> list[Tree | None]:
        """Parses sentences, each of Treebank tokens with a space between; one tree for each, in order.

        Its leaves are the sentence's words, its root TOP. None where a line is blank, and, without the constraint,
        where what was found is no tree over the words.
        """
        if isinstance(lines, str):
            raise TypeError("parse takes a list of sentences; for one: parse([sentence])")
        return [parse.trees[0] for parse in self.stream(lines)]

    def translate(self, texts: Sequence[str]) -> NoReturn:
        """Raises UserError, as a translator's `parse` does."""
        raise UserError("this model is a parser, not a translator", "call model.parse([...])")


def load(
    path: ModelPath | Sequence[ModelPath],
    device: str = "auto",
    *,
    engine: Literal["nmt", "ctranslate2"] = "nmt",
    workers: int = 1,
    threads: int | None = None,
    **decoding: object,
) -> Translator | Parser:
    """The model of a bundle or a run's directory, as `nmt.load("ckpts/", beam=8)`; of several, their ensemble.

    What it was trained for, it does; a language model is for `nmt score` alone. Other keywords replace keys of the
    (first) bundle's decoding settings, `precision` among them. `device` is auto, cpu, cuda or cuda:N. With several
    `workers`, processes share the lines, and `threads` of a CPU among them: they start anew, so the program's main
    module must be importable (`if __name__ == "__main__":`), and end with `close`, or with the block of a `with`.

    Raises UserError where there is no such model, key, value or device, where models have different tokenizers, or
    where one is a language model.
    """
    paths = [path] if isinstance(path, str | os.PathLike) else path
    bundles = [resolve(Path(path))[0] for path in paths]
    tokenizer = common_tokenizer(bundles)
    has_trees = isinstance(tokenizer.target, TreeVocabulary)
    for bundle in bundles:
        bundle.check_task("parse" if has_trees else "translate")
    settings = override_decoding(bundles[0].recipe.decoding, [f"{key}={json.dumps(v)}" for key, v in decoding.items()])
    assembly = Assembly(bundles, settings, engine, device, workers, threads, forks=False, say=_silent)
    with ExitStack() as held:
        if has_trees:
            trees = held.enter_context(assembly.open(Parsing(tokenizer, settings)))
            return Parser._over(tokenizer, settings, trees, held.pop_all())
        texts = held.enter_context(assembly.open(Translating(tokenizer, settings)))
        return Translator._over(tokenizer, settings, texts, held.pop_all())


def _several(model: Transformer | Sequence[Transformer]) -> list[Transformer]:
    return [model] if isinstance(model, Transformer) else list(model)


def _silent(line: str) -> None:
    """Says nothing; a function that workers import by its name."""
