"""A model's attention: an HTML page of several sentences, with lines as in figures 3 to 5 of the paper.

The page is one file that works offline. It holds the weights of all sentences, rounded to 8 bits and compressed; its
script inflates them on demand.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from nmt.checkpoint.reading import Bundle
from nmt.report.page import render
from nmt.system.errors import UserError

if TYPE_CHECKING:
    from nmt.decoding.forced import Attention, Tokens
    from nmt.decoding.pipeline import LineResult
    from nmt.model.transformer import Transformer

KINDS = ("encoder", "decoder", "cross")
LEVELS = 255  # weights are quantised to 0..255
MOST_SENTENCES = 50
LONGEST = 200  # maximum symbols per side; the number of weights grows quadratically


def page(attentions: Iterable[Attention], title: str, note: str) -> str:
    """Render several sentences as an HTML page; `note` describes them."""
    sentences = []
    weights = []
    for attention in attentions:
        sentences.append(_described(attention))
        weights.append(_packed(attention))
    content = {"sentences": sentences, "levels": LEVELS}
    parts = ["colours", "elements", "attention", "views", "attention_page"]
    return render("attention.html", parts, title=title, note=note, content=content, weights=weights)


def _described(attention: Attention) -> dict[str, Any]:
    """Return a sentence's values for attention.js, all but its weights."""
    probabilities = np.exp(attention.log_probabilities).round(3)
    return {
        "shapes": {kind: getattr(attention, kind).shape for kind in KINDS},
        "source": _side(attention.source),
        "target_in": _side(attention.target_in),
        "target_out": _side(attention.target_out),
        "probabilities": probabilities.tolist(),
    }


def _side(side: Tokens) -> dict[str, Any]:
    return {"tokens": side.tokens, "words": side.words, "wordOf": side.word_of, "text": side.text}


def _packed(attention: Attention) -> str:
    """Return a sentence's weights, rounded and compressed, as base64."""
    weights = np.concatenate([getattr(attention, kind).ravel() for kind in KINDS])
    levels = np.rint(weights * LEVELS).astype(np.uint8)
    compressed = zlib.compress(levels.tobytes(), 9)
    return base64.b64encode(compressed).decode()


class AttentionView:
    """Collector of a search's first sentences; writes a page of the model's attention."""

    def __init__(self, stream: IO[bytes], path: Path, bundle: Bundle) -> None:
        self._stream = stream
        self._path = path
        self._bundle = bundle
        self._kept: list[tuple[list[int], list[int]]] = []  # subwords of source and output
        self._sentences = 0
        self._long = 0  # sentences that were left out

    def add(self, result: LineResult) -> None:
        """Collect a line's parts, each with its best output or first sample, up to the maximum number and length."""
        for pair in result.pairs:
            self._sentences += 1
            if max(map(len, pair)) > LONGEST:
                self._long += 1
            elif len(self._kept) < MOST_SENTENCES:
                self._kept.append(pair)

    def write(self, load: Callable[[], Transformer]) -> None:
        """Write the page, using the model returned by `load`.

        Raise UserError if there is no sentence to show; by then the search's output is complete.
        """
        if not self._kept:
            problem = f"--attention {self._path}: there is no sentence of 1 to {LONGEST} subwords to show"
            raise UserError(problem, "the output is whole; leave out --attention, or give it other lines")
        from nmt.decoding.forced import attend

        model = load()
        tokenizer = self._bundle.tokenizer()
        attended = (attend(model, tokenizer, *pair) for pair in self._kept)
        made = page(attended, "What the model attends to", f"{self._bundle.path}: {self.shown}")
        self._stream.write(made.encode())

    @property
    def shown(self) -> str:
        """Description of the sentences shown"""
        count = len(self._kept)
        named = "the first sentence" if count == 1 else f"the first {count} sentences"
        if count < self._sentences:
            named += f" of {self._sentences:,}"
        if self._long:
            named += f", without {self._long:,} of more than {LONGEST} subwords"
        return named
