"""Results as lines, and the ledger of what became of the inputs; imports no torch."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Generic, Protocol

from nmt.decoding.parsing import Parse
from nmt.decoding.pipeline import Result
from nmt.decoding.translation import Translation
from nmt.errors import UserError
from nmt.text.tokenizer import Tokenizer


class Outcome(Protocol):
    """What became of one line, be it a translation or a parse."""

    @property
    def texts(self) -> list[str]:
        """Of each hypothesis, best first."""
        ...

    @property
    def scores(self) -> list[float]:
        """Of each hypothesis."""
        ...

    @property
    def source(self) -> list[int]:
        """Subwords of the line."""
        ...

    @property
    def parts(self) -> int:
        """How many pieces the line was split into; 0 where it is blank."""
        ...

    @property
    def capped(self) -> bool:
        """Whether the best output was cut off at its cap."""
        ...

    @property
    def unknown(self) -> int:
        """Characters of the line for which the vocabulary has no subword."""
        ...


def best(number: int, result: Outcome) -> str:
    """The line of the best hypothesis."""
    return result.texts[0]


def ranked(number: int, result: Outcome) -> str:
    """A line for each hypothesis of input line `number`: number, rank, score, text."""
    hypotheses = enumerate(zip(result.scores, result.texts, strict=True), 1)
    return "\n".join(f"{number}\t{rank}\t{score:.4f}\t{text}" for rank, (score, text) in hypotheses)


def drawn(number: int, parse: Parse) -> str:
    """The best tree drawn over several lines, of which the last is empty; only that one where there is none."""
    tree = parse.trees[0]
    return "" if tree is None else f"{tree.pretty()}\n"


def translation_json(number: int, translation: Translation, tokenizer: Tokenizer, aligned: bool) -> str:
    """All of a translation as one JSON object; `aligned` tells whether its alignments are known."""
    hypotheses = []
    for rank, text in enumerate(translation.texts):
        hypothesis: dict[str, Any] = {
            "text": text,
            "score": translation.scores[rank],
            "tokens": tokenizer.target.pieces(translation.ids[rank]),
        }
        if aligned:
            hypothesis["alignment"] = translation.alignments[rank]
        hypotheses.append(hypothesis)
    return _json(number, translation, tokenizer, hypotheses)


def parse_json(number: int, parse: Parse, tokenizer: Tokenizer) -> str:
    """All of a parse as one JSON object; a tree is null where there is none."""
    hypotheses = [
        {
            "tree": text or None,
            "score": parse.scores[rank],
            "malformed": parse.malformed[rank],
            "tokens": tokenizer.target.pieces(parse.ids[rank]),
        }
        for rank, text in enumerate(parse.texts)
    ]
    return _json(number, parse, tokenizer, hypotheses, cut=parse.cut)


def _json(number: int, result: Outcome, tokenizer: Tokenizer, hypotheses: list[dict[str, Any]], **more: int) -> str:
    line = {
        "line": number,
        "source": tokenizer.source.pieces(result.source),
        "hypotheses": hypotheses,
        "parts": result.parts,
        "capped": result.capped,
        "unknown": result.unknown,
        **more,
    }
    return json.dumps(line, ensure_ascii=False)


TRANSLATION_PROBLEMS: dict[str, Callable[[Translation], int]] = {
    "caps hit": lambda translation: translation.capped,
    "inputs split": lambda translation: translation.parts > 1,
    "unknown characters": lambda translation: translation.unknown,
    "empty outputs": lambda translation: translation.empty,
}
PARSE_PROBLEMS: dict[str, Callable[[Parse], int]] = {
    "caps hit": lambda parse: parse.capped,
    "inputs split": lambda parse: parse.parts > 1,
    "words cut": lambda parse: parse.cut,
    "unknown characters": lambda parse: parse.unknown,
    "malformed": lambda parse: parse.malformed[0],
    "mended": lambda parse: parse.mended,
    "failed": lambda parse: parse.failed,
}


class Ledger(Generic[Result]):
    """Counts what was searched, how fast, and the problems there were."""

    def __init__(self, problems: Mapping[str, Callable[[Result], int]]) -> None:
        """`problems` are all that can be, by what they are called: how often one is in a result."""
        self.lines = 0
        self._problems = problems
        self._tokens = 0
        self._began: float | None = None
        self._counts = dict.fromkeys(problems, 0)
        self._first: dict[str, int] = {}  # line in which a problem first was

    def timed(self, lines: Iterator[str]) -> Iterator[str]:
        """The same lines; the time that `speed` counts begins when the first of them is there."""
        first = list(islice(lines, 1))
        self._began = time.monotonic()
        yield from first
        yield from lines

    def add(self, result: Result) -> None:
        """Counts the next line."""
        self.lines += 1
        for problem, occurs in self._problems.items():
            if count := occurs(result):
                self._counts[problem] += count
                self._first.setdefault(problem, self.lines)

    def searched(self, tokens: int) -> None:
        """Counts the target symbols of a line that is done, `</s>` among them, before its turn comes."""
        self._tokens += tokens

    def speed(self) -> str:
        """Target symbols over the time since the first line came."""
        seconds = 0.0 if self._began is None else time.monotonic() - self._began
        return f"{self._tokens / max(seconds, 1e-9):,.0f} tokens/s"

    def summary(self) -> str:
        """All in one line."""
        counts = ", ".join(f"{problem} {count:,}" for problem, count in self._counts.items())
        return f"{self.lines:,} sentences, {self.speed()}; {counts}"

    def check(self) -> None:
        """Raises UserError where there was any problem, saying in which line first."""
        if self._first:
            found = [
                f"{problem} {count:,} (first in line {self._first[problem]:,})"
                for problem, count in self._counts.items()
                if count
            ]
            raise UserError(f"--strict: {', '.join(found)}", "use the output, which is complete, or leave out --strict")
