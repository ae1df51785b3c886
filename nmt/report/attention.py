"""A model's attention: an HTML page of several sentences, or an SVG figure of one, like figures 3 to 5 of the paper.

The page is one file that works offline. It holds the weights of all sentences, rounded to 8 bits and compressed; its
script inflates them on demand, and draws lines as the figure does.
"""

from __future__ import annotations

import base64
import re
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np

from nmt.checkpoint.reading import Bundle
from nmt.report.page import render
from nmt.system.errors import UserError

if TYPE_CHECKING:
    from nmt.decoding.forced import Attention, AttentionType
    from nmt.decoding.pipeline import LineResult
    from nmt.model.transformer import Transformer

# --- shared by the page and the figure ----------------------------------------------------------------------------

COLOURS = ("#1f68bc", "#c26300", "#05893e", "#a34f9e", "#b94642", "#0099a3", "#9d7d00", "#6b4cae")
"""Colours of heads, for a white background; further heads reuse them"""
TITLES: dict[AttentionType, str] = {
    "encoder": "Encoder self-attention",
    "decoder": "Decoder self-attention",
    "cross": "Encoder-decoder attention",
}
SIDES: dict[AttentionType, tuple[str, str]] = {
    "encoder": ("source", "source"),
    "decoder": ("target_out", "target_in"),
    "cross": ("target_out", "source"),
}
"""Attributes of `nmt.decoding.forced.Attention` that hold queries and keys"""
FAINTEST = 0.02  # smallest weight that is drawn
SPREAD = (2.5, 16)
"""Maximum offset in pixels between the lines of adjacent heads, and between those of the first and last head"""

# --- the page -----------------------------------------------------------------------------------------------------

LEVELS = 255  # weights are quantised to 0..255


def page(attentions: Iterable[Attention], title: str, note: str) -> str:
    """Render several sentences as an HTML page; `note` describes them."""
    sentences, weights = [], []
    for attention in attentions:
        arrays = {kind: getattr(attention, kind) for kind in TITLES}
        shapes = {kind: array.shape for kind, array in arrays.items()}
        sides = {}
        for side in ("source", "target_in", "target_out"):
            each = getattr(attention, side)
            sides[side] = {"tokens": each.tokens, "words": each.words, "wordOf": each.word_of, "text": each.text}
        probabilities = np.exp(attention.log_probabilities).round(3).tolist()
        sentences.append({"shapes": shapes, **sides, "probabilities": probabilities})
        rounded = np.rint(np.concatenate([array.ravel() for array in arrays.values()]) * LEVELS).astype(np.uint8)
        weights.append(base64.b64encode(zlib.compress(rounded.tobytes(), 9)).decode())
    shared = {"colours": COLOURS, "titles": TITLES, "sides": SIDES, "faintest": FAINTEST, "spread": SPREAD}
    content = {"sentences": sentences, "levels": LEVELS, **shared}
    parts = ["colours", "attention", "views"]
    return render("attention.html", parts, title=title, note=note, content=content, weights=weights)


# --- the figure ---------------------------------------------------------------------------------------------------

STEP, HEIGHT, MARGIN, FONT = 26, 200, 16, 14  # pixels: word spacing, row distance, margin, font size
LEGEND = 44  # pixels per head in the legend
NO_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def figure(attention: Attention, kind: AttentionType, layer: int, heads: Sequence[int], word: int | None = None) -> str:
    """Draw one sentence's word-to-word weights as SVG; `layer` and `heads` are 0-based, `word` is 1-based.

    Words in the upper row attend to words in the lower row. A line's opacity is its weight. With `word`, draw only the
    lines of that word of the upper row; raise UserError if there is no such word.
    """
    attention = attention.by_words()
    queries, keys = (getattr(attention, side) for side in SIDES[kind])
    weights = getattr(attention, kind)
    title = f"{TITLES[kind]}, layer {layer + 1} of {len(weights)}, {_named(heads, weights.shape[1])}"
    above, below = ([NO_XML.sub("\ufffd", each) for each in side.words] for side in (queries, keys))
    count = len(above) - 1  # without `</s>`
    if word and word > count:
        raise UserError(
            f"--word {word}: the {'source' if kind == 'encoder' else 'output'} of the first sentence has {count} words",
            f"the output is whole; give a word from 1 to {count}; punctuation marks count as words",
        )
    if word:
        title += f": “{above[word - 1]}”"
    width = max(STEP * max(len(above), len(below)), LEGEND * len(heads), _pixels(title))
    top = MARGIN + 3 * FONT + max(map(_pixels, above))
    rows = [[MARGIN + (place + 0.5) * width / len(row) for place in range(len(row))] for row in (above, below)]
    lines = []
    for place, head in enumerate(heads):  # shift heads' lines apart
        shift = (place - (len(heads) - 1) / 2) * min(SPREAD[0], SPREAD[1] / len(heads))
        of_head = [
            (rows[0][query] + shift, rows[1][key] + shift, weights[layer, head, query, key])
            for query, key in np.argwhere(weights[layer, head] >= FAINTEST)
            if word is None or query == word - 1
        ]
        lines.append((COLOURS[head % len(COLOURS)], head, of_head))
    svg = render(
        "attention.svg",
        [],
        title=title,
        texts=[NO_XML.sub("\ufffd", side.text) for side in ((queries,) if kind == "encoder" else (queries, keys))],
        words=[list(zip(*row, strict=True)) for row in zip((above, below), rows, strict=True)],
        chosen=word,
        lines=lines,
        size=(width + 2 * MARGIN, top + HEIGHT + max(map(_pixels, below)) + MARGIN),
        ends=(top, top + HEIGHT),
        pixels={"margin": MARGIN, "font": FONT, "legend": LEGEND},
    )
    return svg + "\n"


def _named(heads: Sequence[int], count: int) -> str:
    if len(heads) == count > 1:
        return f"all {count} heads"
    *others, last = (str(head + 1) for head in heads)
    return f"heads {', '.join(others)} and {last} of {count}" if others else f"head {last} of {count}"


def _pixels(text: str) -> int:
    """Estimate a text's width in pixels."""
    return int(0.62 * FONT * sum(1 + (unicodedata.east_asian_width(letter) in "WF") for letter in text)) + 12


MOST_SENTENCES = 50  # per page
LONGEST = 200  # maximum symbols per side; the number of weights grows quadratically


class AttentionView:
    """Collector of a search's first sentences; writes a page or figure of the model's attention."""

    def __init__(self, stream: IO[bytes], path: Path, bundle: Bundle, figure: Figure | None) -> None:
        self._stream, self._path, self._bundle, self._figure = stream, path, bundle, figure
        self._kept: list[tuple[list[int], list[int]]] = []
        self._sentences = self._long = 0

    def add(self, result: LineResult) -> None:
        """Collect a line's parts, each with its best output or first sample, up to the maximum number and length."""
        for pair in result.pairs:
            self._sentences += 1
            fits = max(map(len, pair)) <= LONGEST
            self._long += not fits
            if fits and len(self._kept) < (1 if self._figure else MOST_SENTENCES):
                self._kept.append(pair)

    def write(self, load: Callable[[], Transformer]) -> None:
        """Write the page or figure, using the model returned by `load`.

        Raise UserError if there is no sentence to show; by then the search's output is complete.
        """
        if not self._kept:
            raise UserError(
                f"--attention {self._path}: there is no sentence of 1 to {LONGEST} subwords to show",
                "the output is whole; leave out --attention, or give it other lines",
            )
        from nmt.decoding.forced import attend

        model, tokenizer = load(), self._bundle.tokenizer()
        attended = (attend(model, tokenizer, *pair) for pair in self._kept)
        if self._figure is None:
            made = page(attended, "What the model attends to", f"{self._bundle.path}: {self.shown}")
        else:
            made = figure(next(attended), *self._figure)
        self._stream.write(made.encode())

    @property
    def shown(self) -> str:
        """Description of the sentences shown"""
        count = len(self._kept)
        named = "the first sentence" if count == 1 else f"the first {count} sentences"
        of = f" of {self._sentences:,}" if count < self._sentences else ""
        return named + of + (f", without {self._long:,} of more than {LONGEST} subwords" if self._long else "")


Figure = tuple["AttentionType", int, list[int], int | None]
"""Type, layer, heads and word of a figure; layer and heads are 0-based, the word is 1-based, and None shows all"""
