"""Mistakes in inputs that are almost valid: all of a file is right, or all but a few of its places.

A reader that refuses everything at the door is not tested, so most of what is drawn has one mistake or none.
"""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

ODD_TEXTS = ["", " ", "a", "../a", "\0", "\ud800", "é", "x" * 300, "1e999", "NaN", "null", "<s>", "0", "-1", "1_0"]
ODD_NUMBERS = [0, -1, 1, 2, 2**31, 2**63, -(2**63), 10**30, 0.0, -0.5, 1e308, float("inf"), float("nan")]
SCALARS = st.sampled_from([None, True, False, *ODD_NUMBERS, *ODD_TEXTS])
JUNK = st.recursive(
    SCALARS,
    lambda values: (
        st.lists(values, max_size=3) | st.dictionaries(st.sampled_from([*ODD_TEXTS, "step"]), values, max_size=3)
    ),
    max_leaves=4,
)
"""JSON of the wrong kind."""


@st.composite
def mistaken(draw: DrawFn, values: SearchStrategy[Any], most: int = 2) -> Any:
    """Plain values in which up to `most` places hold junk, are missing, or have a neighbour they should not have."""
    tree = deepcopy(draw(values))
    for _ in range(draw(st.sampled_from([0, 0, *range(1, most + 1)]))):
        node = tree
        while isinstance(node, dict | list) and node:
            key = draw(st.sampled_from(sorted(node))) if isinstance(node, dict) else draw(_places(node))
            if isinstance(node[key], dict | list) and node[key] and draw(st.booleans()):
                node = node[key]
                continue
            _mistake(node, key, draw(st.sampled_from(["junk", "junk", "missing", "more"])), draw)
            break
    return tree


def _places(values: list[Any]) -> SearchStrategy[int]:
    return st.integers(0, len(values) - 1)


def _mistake(node: Any, key: Any, kind: str, draw: DrawFn) -> None:
    if kind == "junk":
        node[key] = draw(JUNK)
    elif kind == "missing":
        del node[key]
    elif isinstance(node, dict):
        node[draw(st.sampled_from(ODD_TEXTS))] = draw(JUNK)
    else:
        node.append(draw(JUNK))


@st.composite
def damaged(draw: DrawFn, contents: SearchStrategy[bytes], splinters: tuple[bytes, ...] = (), share: int = 3) -> bytes:
    """Contents of files, of which one in `share` has a few bytes that are changed, cut out, or put in."""
    content = bytearray(draw(contents))
    if draw(st.sampled_from([*[True] * (share - 1), False])):
        return bytes(content)
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3]))):
        at = draw(st.integers(0, len(content)))
        kind = draw(st.sampled_from(["flip", "flip", "flip", "cut", "put", "end"]))
        if kind == "flip" and at < len(content):
            content[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "cut":
            del content[at : at + draw(st.integers(1, 20))]
        elif kind == "put":
            content[at:at] = draw(st.sampled_from([*splinters, b"\0", b"\xff\xff\xff\x7f", b"\n", b"\xed\xa0\x80"]))
        else:
            del content[at:]
    return bytes(content)


def as_json(value: object) -> bytes:
    """JSON as a program may write it: infinite numbers and halves of surrogate pairs are possible."""
    return json.dumps(value).encode()
