"""Models in Python programs: `nmt.load` gives a translator or a parser.

Nothing is printed. The result of a line does not depend on the other lines of its batch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack
from functools import cache, partial
from itertools import repeat
from pathlib import Path
from typing import Generic, Literal, NoReturn, Self, overload

from nmt.assembly import Assembly, only, pipeline_of
from nmt.bundle import common_tokenizer, resolve
from nmt.errors import UserError
from nmt.model.transformer import Transformer
from nmt.recipe import Decoding, TaskName, override_decoding
from nmt.search.attention import Attention, attend
from nmt.tasks.lines import Request
from nmt.tasks.parsing import Parse, Parsing
from nmt.tasks.pipeline import Pipeline, Result, Task
from nmt.tasks.translating import Translating, Translation
from nmt.text.lines import one_line
from nmt.text.terms import Term, Terms
from nmt.text.tokenizer import Tokenizer
from nmt.text.tree import Tree

ModelPath = str | os.PathLike[str]


class _Model(Generic[Result]):
    """What translators and parsers have in common: lines in, results out.

    A context: its workers end with the block, and in any case with the object.
    """

    _task: Callable[..., Task[Result]]
    """Makes the task that the model has been trained for."""

    def __init__(self, model: Transformer | Sequence[Transformer], tokenizer: Tokenizer, decoding: Decoding) -> None:
        """Raises UserError if decoding.max_source is longer than what a model serves."""
        models = [model] if isinstance(model, Transformer) else list(model)
        pipeline = pipeline_of(models, decoding, self._task(tokenizer, decoding))
        self._serve(tokenizer, decoding, pipeline, partial(only, models), ExitStack())

    @classmethod
    def _assembled(cls, assembly: Assembly, tokenizer: Tokenizer, **known: object) -> Self:
        """Serve the bundles of an assembly, which may have workers; `known` is for the task."""
        self = cls.__new__(cls)
        with ExitStack() as held:
            pipeline = held.enter_context(assembly.open(self._task(tokenizer, assembly.decoding, **known)))
            self._serve(tokenizer, assembly.decoding, pipeline, cache(assembly.model), held.pop_all())
        return self

    def _serve(
        self,
        tokenizer: Tokenizer,
        decoding: Decoding,
        pipeline: Pipeline[Result],
        model: Callable[[], Transformer],
        held: ExitStack,
    ) -> None:
        self.tokenizer, self.decoding, self._pipeline, self._held = tokenizer, decoding, pipeline, held
        self._model = model  # in this process and in full precision

    def stream(self, lines: Iterable[str | Request], n_best: int = 1) -> Generator[Result, None, None]:
        """Yield a result for each line as lines come, in order and in bounded memory."""
        return self._pipeline.stream(lines, n_best)

    def attention(self, source: str, target: str | None = None) -> Attention:
        """Return what the model attends to while it reads a sentence and writes `target`, by default its best output.

        The target of a parser is a tree over the words of the sentence, on one line. The weights, fp32, are `encoder`
        (layers, heads, s, s), `decoder` (layers, heads, t, t) and `cross` (layers, heads, t, s), where s counts the
        subwords of the source and t those of the target, each with `</s>`; section 3.2 and figures 3 to 5 of the paper.
        They are computed in full precision, whatever searches; with workers or CTranslate2, the first call loads the
        model into this process.

        Raises UserError for an ensemble, for a blank source, for one that is too long or that a search would split, and
        for a target of the wrong form or length.
        """
        for text in (source, target or ""):
            if not isinstance(text, str):
                raise TypeError("attention takes one sentence, and one target or None")
        model = self._model()
        return attend(model, self.tokenizer, *self._pipeline.pair(source, target))

    def close(self) -> None:
        """End the workers, if there are any."""
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


class Translator(_Model[Translation]):
    """A model, or an ensemble of several, with its tokenizer and its decoding settings."""

    _task: Callable[..., Task[Translation]] = Translating

    def stream(
        self, lines: Iterable[str | Request], n_best: int = 1, sample: int | None = None
    ) -> Generator[Translation, None, None]:
        """Yield a result for each line as lines come, in order and in bounded memory.

        It has up to `n_best` translations, or as many as `sample` says, which are drawn at random.
        """
        return self._pipeline.stream(lines, n_best, sample)

    @overload
    def translate(
        self,
        texts: Sequence[str],
        prefix: Sequence[str] | None = None,
        terms: Iterable[tuple[str, str]] = (),
        keep: Iterable[str] = (),
    ) -> list[str]: ...

    @overload
    def translate(
        self, texts: Sequence[str], prefix: Sequence[str] | None = None, *, sample: int
    ) -> list[list[str]]: ...

    def translate(
        self,
        texts: Sequence[str],
        prefix: Sequence[str] | None = None,
        terms: Iterable[tuple[str, str]] = (),
        keep: Iterable[str] = (),
        sample: int | None = None,
    ) -> list[str] | list[list[str]]:
        """Translate raw sentences; one for each, in order. Blank gives blank.

        If there is a `prefix` for each sentence, its translation begins with it; "" asks for nothing. Where the first
        of a pair of `terms` stands in a sentence, the second stands in its translation; several with the same first are
        alternatives. What the regular expressions `keep` match is copied. With `sample`, there is a list of so many
        translations for each sentence, which are drawn at random; `terms` and `keep` do not go with it.
        """
        if isinstance(texts, str) or isinstance(prefix, str):
            raise TypeError("translate takes a list of sentences; for one: translate([sentence])")
        if isinstance(keep, str):
            raise TypeError("keep takes a list of regular expressions; for one: keep=[pattern]")
        if sample is not None and (terms or keep):
            raise TypeError("sample does not go with terms and keep, which samples do not know")
        asked = Terms(map(_term, terms), keep, self.decoding.keep)
        prefixes = repeat("", len(texts)) if prefix is None else prefix
        lines = [Request(text, begin, asked) for text, begin in zip(texts, prefixes, strict=True)]
        found = self.stream(lines, sample=sample)
        return [result.texts[0] for result in found] if sample is None else [result.texts for result in found]

    def parse(self, lines: Sequence[str]) -> NoReturn:
        """Raises UserError, as `Parser.translate` does."""
        raise UserError("this model is a translator, not a parser", "call model.translate([...])")


class Parser(_Model[Parse]):
    """A model, or an ensemble of several, with its tokenizer and its decoding settings (section 6.3 of the paper)."""

    _task: Callable[..., Task[Parse]] = Parsing

    def parse(self, lines: Sequence[str]) -> list[Tree | None]:
        """Parse sentences of Treebank tokens separated by spaces; one tree for each, in order.

        The leaves of a tree are the words of its sentence, and its root is TOP. None for a blank line.
        """
        if isinstance(lines, str):
            raise TypeError("parse takes a list of sentences; for one: parse([sentence])")
        return [parse.trees[0] for parse in self.stream(lines)]

    def translate(self, texts: Sequence[str]) -> NoReturn:
        """Raises UserError, as `Translator.parse` does."""
        raise UserError("this model is a parser, not a translator", "call model.parse([...])")


MODELS: dict[TaskName, type[Translator] | type[Parser]] = {"translate": Translator, "parse": Parser}
"""What searches, by task; language models only score."""


def _term(pair: tuple[str, ...]) -> Term:
    """A pair as a term; raises TypeError for anything else, such as a word or a row of numbers."""
    if not isinstance(pair, tuple | list) or len(pair) < 2 or not all(isinstance(text, str) for text in pair[:2]):
        raise TypeError(f"terms takes pairs of a source term and a target term, not {pair!r}")
    source, target = (one_line(text).encode(errors="replace").decode() for text in pair[:2])  # as lines are read
    return Term(source, target, *map(bool, pair[2:]))


def load(
    path: ModelPath | Sequence[ModelPath],
    device: str = "auto",
    *,
    engine: Literal["nmt", "ctranslate2"] = "nmt",
    workers: int = 1,
    threads: int | None = None,
    **decoding: object,
) -> Translator | Parser:
    """Load the model of a bundle or a run's directory, as in `nmt.load("ckpts/", beam=8)`; of several, an ensemble.

    Other keywords replace keys of the (first) bundle's decoding settings, `precision` among them. `device` is auto,
    cpu, cuda or cuda:N. Several `workers`, which are processes, share the lines, and on a CPU `threads`. They are
    spawned, so the program's main module must be importable (`if __name__ == "__main__":`), and end with `close` or
    with the block of a `with`.

    Raises UserError if there is no such model, key, value or device, if models have different tokenizers, or if one is
    a language model, which only `nmt score` uses.
    """
    paths = [path] if isinstance(path, str | os.PathLike) else path
    bundles = [resolve(Path(path))[0] for path in paths]
    tokenizer = common_tokenizer(bundles)
    task: TaskName = "parse" if bundles[0].kind.has_trees else "translate"
    for bundle in bundles:
        bundle.check_task(task)
    settings = override_decoding(bundles[0].recipe, [f"{key}={json.dumps(v)}" for key, v in decoding.items()])
    assembly = Assembly(bundles, settings, engine, device, workers, threads, forks=False, say=_silent)
    known = {} if bundles[0].kind.has_trees else {"lengths": bundles[0].lengths}
    return MODELS[task]._assembled(assembly, tokenizer, **known)


def _silent(line: str) -> None:
    """Print nothing; a function that workers can import by name."""
