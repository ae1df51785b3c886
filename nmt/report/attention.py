"""The page of what a model attends to: one file that works from disk, without a network and without other packages.

It holds the weights of all sentences, rounded to 8 bits and compressed. Its script inflates those of a sentence when it
is shown.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nmt.report.attention_figure import COLOURS, TITLES

if TYPE_CHECKING:
    from nmt.search.attention import Attention, Tokens

TEMPLATES = Path(__file__).parent / "templates"
LEVELS = 255  # of a weight


def page(attentions: Iterable[Attention], title: str, note: str) -> str:
    """Return the page of these sentences as HTML; `note` says what they are."""
    sentences, scripts = [], []
    for number, attention in enumerate(attentions):
        sentences.append(_described(attention))
        scripts.append(f'<script type="text/plain" id="weights-{number}">{_packed(attention)}</script>')
    template, colours, style, script = (
        (TEMPLATES / name).read_text("utf-8")
        for name in ("attention.html", "colours.css", "attention.css", "attention.js")
    )
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    parts = {
        "title": escape(title),
        "note": escape(note),
        "policy": f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:",
        "style": colours + style,
        "script": script,
        "content": _json({"sentences": sentences, "colours": COLOURS, "titles": TITLES, "levels": LEVELS}),
        "weights": "\n".join(scripts),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], template)


def _described(attention: Attention) -> dict[str, Any]:
    """What the page shows of a sentence besides its weights."""
    sides = {"source": attention.source, "read": attention.target_in, "written": attention.target_out}
    weights = {"encoder": attention.encoder, "decoder": attention.decoder, "cross": attention.cross}
    return {
        **{name: _tokens(side) for name, side in sides.items()},
        "shapes": {name: array.shape for name, array in weights.items()},
    }


def _tokens(side: Tokens) -> dict[str, Any]:
    return {"tokens": side.tokens, "words": side.words, "wordOf": side.word_of, "text": side.text}


def _packed(attention: Attention) -> str:
    """The weights of the encoder, of the decoder and between them: rounded, deflated, in base 64."""
    flat = np.concatenate([array.ravel() for array in (attention.encoder, attention.decoder, attention.cross)])
    rounded = np.rint(flat * LEVELS).astype(np.uint8)
    return base64.b64encode(zlib.compress(rounded.tobytes(), 9)).decode()


def _json(values: Any) -> str:
    """JSON that no script element can end in."""
    return json.dumps(values, separators=(",", ":")).replace("<", "\\u003c")
