"""The printed figure of attention, as figures 3 to 5 of the paper: words in two rows, and lines coloured by head."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from nmt.search.attention import Attention, Kind, Tokens

COLOURS = ("#1f68bc", "#c26300", "#05893e", "#a34f9e", "#b94642", "#0099a3", "#9d7d00", "#6b4cae")
"""Of heads, on white; further heads have them again."""
TITLES: dict[Kind, str] = {
    "encoder": "Encoder self-attention",
    "decoder": "Decoder self-attention",
    "cross": "Encoder-decoder attention",
}
FAINTEST = 0.02  # weight below which a line would not be seen
STEP, HEIGHT, MARGIN, FONT = 26, 200, 16, 14  # pixels: between words, of the lines, around all, of a letter
LEGEND = 44  # pixels that a head takes in the legend
NO_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def colour(head: int) -> str:
    """Return the colour of a head, counted from 0."""
    return COLOURS[head % len(COLOURS)]


def figure(attention: Attention, kind: Kind, layer: int, heads: Sequence[int]) -> str:
    """Draw the weights between the words of a sentence as SVG; layer and heads are counted from 0.

    The words of the upper row attend to those of the lower one. The opacity of a line is its weight.
    """
    attention = attention.by_words()
    queries, keys, weights = attention.of(kind)
    title = f"{TITLES[kind]}, layer {layer + 1} of {len(weights)}, {_named(heads, weights.shape[1])}"
    width = max(STEP * max(len(queries.words), len(keys.words)), LEGEND * len(heads), _pixels(title))
    rows = [_places(len(side.words), width) for side in (queries, keys)]
    top = MARGIN + 3 * FONT + max(map(_pixels, queries.words))
    total_width, total_height = width + 2 * MARGIN, top + HEIGHT + max(map(_pixels, keys.words)) + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total_width} {total_height}" width="{total_width}" '
        f'height="{total_height}" role="img" aria-labelledby="title desc" font-family="Helvetica, Arial, sans-serif" '
        f'font-size="{FONT}">',
        f'<title id="title">{title}</title>',
        f'<desc id="desc">{_description(queries, keys, kind)}</desc>',
        f'<rect width="{total_width}" height="{total_height}" fill="#fff"/>',
        f'<text x="{MARGIN}" y="{MARGIN + FONT}" font-weight="bold">{title}</text>',
        *(_legend(heads) if len(heads) > 1 else ()),
        *(line for place, head in enumerate(heads) for line in _lines(weights[layer, head], rows, top, place, heads)),
        *_words(queries.words, rows[0], top - 6, "start"),
        *_words(keys.words, rows[1], top + HEIGHT + 6, "end"),
        "</svg>\n",
    ]
    return "\n".join(parts)


def _named(heads: Sequence[int], count: int) -> str:
    if len(heads) == count > 1:
        return f"all {count} heads"
    *others, last = (str(head + 1) for head in heads)
    return f"heads {', '.join(others)} and {last} of {count}" if others else f"head {last} of {count}"


def _description(queries: Tokens, keys: Tokens, kind: Kind) -> str:
    above = _text(queries.text)
    below = "" if kind == "encoder" else f" The words below are: {_text(keys.text)}"
    return (
        "Lines lead from each word above to the words below that it attends to. The more opaque a line is, the greater "
        f"is its weight; its colour tells the head. The words above are: {above}{below}"
    )


def _text(text: str) -> str:
    """A text as XML can hold it."""
    return escape(NO_XML.sub("\ufffd", text))


def _pixels(text: str) -> int:
    """How long a text is, about."""
    return int(0.62 * FONT * sum(1 + (unicodedata.east_asian_width(letter) in "WF") for letter in text)) + 12


def _places(count: int, width: int) -> list[float]:
    """Where the words of a row stand, from left to right."""
    return [MARGIN + (index + 0.5) * width / count for index in range(count)]


def _legend(heads: Sequence[int]) -> Iterator[str]:
    y = MARGIN + 2 * FONT
    for place, head in enumerate(heads):
        x = MARGIN + LEGEND * place
        yield f'<rect x="{x}" y="{y}" width="{FONT - 2}" height="{FONT - 2}" fill="{colour(head)}"/>'
        yield f'<text x="{x + FONT + 3}" y="{y + FONT - 3}">{head + 1}</text>'


def _lines(
    weights: NDArray[np.float32], rows: Sequence[list[float]], top: int, place: int, heads: Sequence[int]
) -> Iterator[str]:
    """The lines of a head; those of several heads lie beside each other."""
    shift = (place - (len(heads) - 1) / 2) * min(2.5, 16 / len(heads))
    yield f'<g stroke="{colour(heads[place])}" stroke-width="2">'
    for query, row in zip(rows[0], weights, strict=True):
        for key, weight in zip(rows[1], row, strict=True):
            if weight >= FAINTEST:
                ends = f'x1="{query + shift:.1f}" y1="{top}" x2="{key + shift:.1f}" y2="{top + HEIGHT}"'
                yield f'<line {ends} stroke-opacity="{weight:.2f}"/>'
    yield "</g>"


def _words(words: Sequence[str], row: Sequence[float], y: int, anchor: str) -> Iterator[str]:
    """Words that read upwards; those above the lines start at them, and those below end at them."""
    for word, x in zip(words, row, strict=True):
        x += 0.35 * FONT
        yield f'<text transform="translate({x:.1f} {y}) rotate(-90)" text-anchor="{anchor}">{_text(word)}</text>'
