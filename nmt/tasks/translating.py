"""Translation: how lines are tokenised and split, and what their results are; imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from nmt.recipe import Decoding
from nmt.tasks.lines import Line, Part, distinct
from nmt.tasks.output import LineResult, as_json
from nmt.text.linear import TreeVocabulary
from nmt.text.lines import one_line
from nmt.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Translation(LineResult):
    """The translations of one line."""

    alignments: list[list[int]]
    """For each subword of each output the index in `source` that it attends to most; empty unless asked for."""

    @property
    def empty(self) -> bool:
        """Whether a line that is not blank has an empty translation."""
        return self.parts > 0 and not self.texts[0].strip()


class Translating:
    """Translation as the task of a `Pipeline`."""

    only_trees: TreeVocabulary | None = None
    warnings: Mapping[str, Callable[[Translation], int]] = {
        "caps hit": lambda translation: translation.capped,
        "inputs split": lambda translation: translation.parts > 1,
        "unknown characters": lambda translation: translation.unknown,
        "empty outputs": lambda translation: translation.empty,
    }

    def __init__(self, tokenizer: Tokenizer, decoding: Decoding, aligned: bool = False) -> None:
        self.tokenizer, self.aligned, self._limit = tokenizer, aligned, decoding.max_source

    def split(self, text: str) -> list[Part]:
        """See `Task`; a line beyond decoding.max_source subwords is cut, between words where there are any."""
        source = self.tokenizer.source
        ids = source.encode(text.strip().encode(errors="replace").decode())  # a lone surrogate is no text
        parts, start = [], 0
        while (end := start + self._limit) < len(ids):
            words = (i for i in range(end, start + self._limit // 2, -1) if source.starts_word(ids[i]))
            cut = next(words, end)
            parts.append(Part(ids[start:cut]))
            start = cut
        return [*parts, Part(ids[start:])] if ids else []

    def join(self, line: Line, n_best: int) -> Translation:
        """See `Task`."""
        found = distinct(((self._text(line, rank), rank) for rank in line.ranks()), n_best)
        alignments = [_alignment(line, rank) for rank in found.values()]
        return Translation.of(line, found.values(), self.tokenizer, list(found), alignments=alignments)

    def as_json(self, number: int, translation: Translation) -> str:
        """See `Task`."""
        hypotheses: list[dict[str, Any]] = [
            {"text": text, "score": score, "tokens": self.tokenizer.target.pieces(ids)}
            for text, score, ids in zip(translation.texts, translation.scores, translation.ids, strict=True)
        ]
        if self.aligned:
            for hypothesis, alignment in zip(hypotheses, translation.alignments, strict=True):
                hypothesis["alignment"] = alignment
        return as_json(number, translation, self.tokenizer, hypotheses)

    def _text(self, line: Line, rank: int) -> str:
        """Join the texts of all parts of a line in the hypotheses of a rank."""
        return " ".join(one_line(self.tokenizer.target.decode(part[rank].ids)) for part in line.hypotheses)


def _alignment(line: Line, rank: int) -> list[int]:
    """Join the alignments of all parts of a line in the hypotheses of a rank."""
    starts = accumulate((len(part.ids) for part in line.parts), initial=0)
    return [start + i for start, part in zip(starts, line.hypotheses, strict=False) for i in part[rank].alignment]
