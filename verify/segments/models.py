"""Models that compute translations and their alignments, in the place of a search by a Transformer.

They stand at two seams of nmt: the engine that searches for sources, and the attention by which outputs are aligned.
All else is nmt's own: reading, splitting, placing, joining and writing, by its command line.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from difflib import SequenceMatcher
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from nmt import cli
from nmt.checkpoint.writing import save_bundle
from nmt.model.transformer import Transformer
from nmt.recipe import Decoding, Model, Recipe, TokenizerSettings
from nmt.search.sources import Hypothesis
from nmt.text.tokenizer import Tokenizer

from .generator import COPIED_OF, ENGLISH, HOLDERS, STARTERS
from .pieces import CJK, SIGNS, WIDE_SIGNS, translated

Part = tuple[str, int, int]
"""A piece of an output, and the span of the source that it stands for"""
_COPIED = {form for each in COPIED_OF.values() for raw in each for form in (raw, " ".join(raw.split()))}
_ATOM = "|".join(re.escape(raw) for raw in sorted({*HOLDERS, *_COPIED}, key=len, reverse=True))
_ATOM += r"|<(?P<name>[\w:]+)\b[^<>]*(?<!/)>.*?</(?P=name)>|</?[\w!?][^<>]*>|(?P<tick>`+)[^`]+(?P=tick)"
_TOKENS = re.compile(rf"(?P<atom>{_ATOM})|(?P<space>\s+)|(?P<word>[A-Za-z]+|[{CJK}])|.", re.DOTALL)
_WIDE = re.compile(f"[{CJK}]")
STOPPED = (130, 143)  # exit codes after Ctrl-C and SIGTERM
GARBLED = "xyzzy"  # what a model makes of a placeholder that it garbles


def _tokens(text: str) -> Iterator[re.Match[str]]:
    return _TOKENS.finditer(text)


def copy(text: str, call: int) -> Iterator[Part]:
    """Yield each token as it is."""
    for token in _tokens(text):
        yield (token[0], *token.span())


def trace(text: str, call: int) -> Iterator[Part]:
    """Translate word by word, and sign each word with the number of the call."""
    for token in _tokens(text):
        if not token["word"]:
            yield (token[0], *token.span())
            continue
        is_wide = _WIDE.match(token[0]) is not None
        goes_on = is_wide and _WIDE.match(text, token.end()) is not None
        letters = WIDE_SIGNS if is_wide else SIGNS
        sign = "".join(letters[call // 24**power % 24] for power in (3, 2, 1, 0))
        yield (translated(token[0]) + ("" if goes_on else sign), *token.span())


def garble(text: str, call: int) -> Iterator[Part]:
    """Translate word by word, with plain spaces; placeholders become a word."""
    for token in _tokens(text):
        plain = " " if token["space"] else translated(token[0]) if token["word"] else token[0]
        yield (GARBLED if token["atom"] else plain, *token.span())


def reverse(text: str, call: int) -> Iterator[Part]:
    """Translate in the reverse order of what spaces part; the end of the sentence stays."""
    core = len(re.sub(r"[\s.!?:…。！？]+\Z", "", text))
    groups: list[list[Part]] = [[]]
    for token in _tokens(text[:core]):
        if token["space"]:
            groups.append([])
        else:
            groups[-1].append((translated(token[0]) if token["word"] else token[0], *token.span()))
    is_first = True
    for group in reversed([group for group in groups if group]):
        if not is_first:
            yield (" ", group[0][1], group[0][1])
        is_first = False
        yield from group
    if core < len(text.rstrip()):
        yield (text[core:].strip(), core, len(text))


def fuse(text: str, call: int) -> Iterator[Part]:
    """Translate word by word; some words become two, and some two become one."""
    tokens = [*_tokens(text)]
    number, index = 0, 0
    while index < len(tokens):
        token = tokens[index]
        index += 1
        if not token["word"]:
            yield (token[0], *token.span())
            continue
        number += 1
        word = translated(token[0])
        following = tokens[index : index + 2]
        if number % 5 == 2 and len(following) == 2 and following[0][0] == " " and following[1]["word"]:
            yield (word + translated(following[1][0]), token.start(), following[1].end())
            index += 2
        elif number % 5 == 4 and len(word) > 4 and word.isascii():
            yield from ((word[:2], *token.span()), (" ", token.end(), token.end()), (word[2:], *token.span()))
        else:
            yield (word, *token.span())


TRANSLATORS: dict[str, Callable[[str, int], Iterator[Part]]] = {
    each.__name__: each for each in (copy, trace, garble, reverse, fuse)
}


class Fake:
    """A model of one of the translators: stands in for `SearchEngine`, and for the attention of the model."""

    def __init__(self, name: str, tokenizer: Tokenizer) -> None:
        self._translate, self._vocabulary = TRANSLATORS[name], tokenizer.source
        self._numbers = count()
        self._parts: dict[str, list[Part]] = {}
        self.texts: list[str] = []
        """All that the model was given"""

    def __call__(self, *_: Any, **__: Any) -> Fake:
        """Stand in for making an engine."""
        return self

    def _parts_of(self, text: str) -> list[Part]:
        if text not in self._parts:
            self._parts[text] = [*self._translate(text, next(self._numbers))]
            self.texts.append(text)
        return self._parts[text]

    def rounds(self, queue: Any, n_best: int, sample: bool = False) -> Iterator[list[tuple[Any, list[Hypothesis]]]]:
        """Search as `SearchEngine.rounds` does."""
        while batch := queue.take_sources(4000, wait=True):
            yield [(source, [self._search(source.ids)]) for source in batch]

    def rest(self) -> None:
        """Free nothing."""

    def _search(self, ids: list[int]) -> Hypothesis:
        output = "".join(part for part, _, _ in self._parts_of(self._vocabulary.decode(ids)))
        return Hypothesis(self._vocabulary.encode(output), -1.0, True)

    def attention(self, models: Any, pairs: Sequence[tuple[list[int], list[int]]]) -> list[torch.Tensor]:
        """Return (output subwords, source subwords) for each pair: 1 where an output stands for the source."""
        return [self._attention(*pair) for pair in pairs]

    def _attention(self, ids: list[int], output_ids: list[int]) -> torch.Tensor:
        text, output = self._vocabulary.decode(ids), self._vocabulary.decode(output_ids)
        spans: list[tuple[int, int]] = []  # of the source, for each character of the output
        own = ""
        for part, start, end in self._parts_of(text):
            own += part
            spans += [(start, end)] * len(part)
        if own != output:  # it was edited
            edited = [(0, 0)] * len(output)
            for at, start, size in SequenceMatcher(None, own, output, autojunk=False).get_matching_blocks():
                edited[start : start + size] = spans[at : at + size]
            spans = edited
        column_of = [0] * (len(text) + 1)  # of each character of the source
        for column, (start, end) in enumerate(_spans(self._vocabulary.ends_in(text, ids))):
            column_of[start:end] = [column] * (end - start)
        rows = []
        for first, last in _spans(self._vocabulary.ends_in(output, output_ids)):
            row = [0.1 / len(ids)] * len(ids)
            stands = {spans[at] for at in range(first, last) if not output[at].isspace()}
            columns = [column_of[at] for start, end in stands for at in range(start, end)]
            for column in columns:
                row[column] += 0.9 / len(columns)
            rows.append(row)
        return torch.tensor(rows).reshape(len(output_ids), len(ids))


def _spans(ends: Sequence[int]) -> list[tuple[int, int]]:
    return [*zip([0, *ends][:-1], ends, strict=True)]


def write_model(folder: Path) -> Tokenizer:
    """Write a bundle whose weights are never used, and return its tokenizer."""
    pairs = [(word, translated(word)) for word in (*ENGLISH, *STARTERS)]
    tokenizer = Tokenizer.train(pairs * 3, TokenizerSettings(vocab_size=600))
    model = Transformer(Model(layers=1, d_model=16, d_ff=16, heads=1), len(tokenizer.source), len(tokenizer.target))
    data: Any = {"name": "d", "source": "en", "target": "de", "train": [{"source": "a.en", "target": "b.de"}]}
    recipe = Recipe(
        name="segments",
        data=data,
        tokenizer=TokenizerSettings(vocab_size=600),
        model=model.config,
        decoding=Decoding(max_source=2000, max_extra=500, beam=1),
    )
    info = {"run": "r", "step": 1, "data": "d"}
    save_bundle(folder, dict(model.float().named_parameters()), recipe, tokenizer, info)
    return tokenizer


def run(fake: Fake, *argv: object) -> tuple[int, str]:
    """Run a command of nmt in this process with a model; return its exit code and what it said."""
    said = io.StringIO()
    with (
        patch("nmt.decoding.completion.SearchEngine", fake),
        patch("nmt.decoding.placement.attention_of", fake.attention),
        patch.object(sys, "argv", ["nmt", *map(str, argv)]),
        contextlib.redirect_stderr(said),
        contextlib.redirect_stdout(said),
    ):
        code: Any = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code
    if code in STOPPED:
        raise SystemExit(code)
    return int(code or 0), said.getvalue()
