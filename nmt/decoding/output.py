"""Translations as lines, and the ledger of what became of the inputs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from nmt.decoding.translation import Translation
from nmt.errors import UserError
from nmt.text.tokenizer import Tokenizer


def ranked(number: int, translation: Translation) -> str:
    """A line for each hypothesis of input line `number`: number, rank, score, text."""
    hypotheses = enumerate(zip(translation.scores, translation.texts, strict=True), 1)
    return "\n".join(f"{number}\t{rank}\t{score:.4f}\t{text}" for rank, (score, text) in hypotheses)


def as_json(number: int, translation: Translation, tokenizer: Tokenizer, aligned: bool) -> str:
    """All of a translation as one JSON object; `aligned` tells whether its alignments are known."""
    hypotheses = []
    for rank, text in enumerate(translation.texts):
        hypothesis = {
            "text": text,
            "score": translation.scores[rank],
            "tokens": tokenizer.target.pieces(translation.ids[rank]),
        }
        if aligned:
            hypothesis["alignment"] = translation.alignments[rank]
        hypotheses.append(hypothesis)
    line = {
        "line": number,
        "source": tokenizer.source.pieces(translation.source),
        "hypotheses": hypotheses,
        "parts": translation.parts,
        "capped": translation.capped,
        "unknown": translation.unknown,
    }
    return json.dumps(line, ensure_ascii=False)


PROBLEMS: dict[str, Callable[[Translation], int]] = {
    "caps hit": lambda translation: translation.capped,
    "inputs split": lambda translation: translation.parts > 1,
    "unknown characters": lambda translation: translation.unknown,
    "empty outputs": lambda translation: translation.empty,
}


class Ledger:
    """Counts what was translated, how fast, and what went less than well."""

    def __init__(self) -> None:
        self.lines = 0
        self._tokens = 0
        self._began = time.monotonic()
        self._counts = dict.fromkeys(PROBLEMS, 0)
        self._first: dict[str, int] = {}  # line in which a problem first was

    def add(self, translation: Translation) -> None:
        """Counts the next line."""
        self.lines += 1
        for problem, occurs in PROBLEMS.items():
            if count := occurs(translation):
                self._counts[problem] += count
                self._first.setdefault(problem, self.lines)

    def searched(self, tokens: int) -> None:
        """Counts the target subwords of a line that is done, `</s>` among them, before its turn comes."""
        self._tokens += tokens

    def speed(self) -> str:
        """Target subwords over the time since the beginning."""
        return f"{self._tokens / max(time.monotonic() - self._began, 1e-9):,.0f} tokens/s"

    def summary(self) -> str:
        """All in one line."""
        counts = ", ".join(f"{problem} {count:,}" for problem, count in self._counts.items())
        return f"{self.lines:,} sentences, {self.speed()}; {counts}"

    def check(self) -> None:
        """Raises UserError where anything went less than well, saying in which line first."""
        if self._first:
            found = [
                f"{problem} {count:,} (first in line {self._first[problem]:,})"
                for problem, count in self._counts.items()
                if count
            ]
            raise UserError(f"--strict: {', '.join(found)}", "all output is there; without --strict this is no error")
