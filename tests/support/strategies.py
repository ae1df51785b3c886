"""What hypothesis draws for tests and for fuzzing: texts, lines, trees, lengths of pairs."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from nmt.parsing.tree import Tree

Lengths = tuple[NDArray[np.int32], NDArray[np.int32]]
"""Of sources and targets, (pairs,) each."""

# --- texts -------------------------------------------------------------------------------------------------------

# U+FDD0, a noncharacter, stands for U+2581 inside of a vocabulary.
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufdd0"), max_size=40)
HARD = "\u2581 \t\n\r\0\x0b\x1f\x85\u2028\u200b\u200d\ufeff\ufffdaé😀\U0010ffff<s>/"
TRICKY = st.text(st.sampled_from(HARD), max_size=30)

FRAGMENTS = [b"\n", b"\r", b"\r\n", b"\x0b", b"\x85", b"\xff", b"a", b"\x00", "\u2028".encode(), "\x85".encode()]
CONTENT = st.binary(max_size=60) | st.lists(st.sampled_from(FRAGMENTS), max_size=25).map(b"".join)
"""Of text files, with all that may be taken for the end of a line."""

# --- trees -------------------------------------------------------------------------------------------------------

# What other libraries take for spaces or the ends of lines is part of a word; so is what escapes elsewhere.
ODD = "\u00a0\u2028\x85\x1c\x1f\u200b\ufeff\0%#;*\\'\"<>&[]{}é😀\U0010ffff"
SPACES = "\t\n\x0b\x0c\r "
ATOMS = st.text(
    st.sampled_from("abXY-=12" + ODD) | st.characters(exclude_categories=["Cs"], exclude_characters="()" + SPACES),
    min_size=1,
    max_size=4,
)
LABELS = st.sampled_from(["S", "NP", "VP", "NP-SBJ", "NP=2", "TOP", "ROOT", "S1", "-NONE-", "-LRB-", "X"])
PRETERMINALS = st.builds(lambda tag, word: Tree(tag, (word,)), LABELS | ATOMS, ATOMS)
TREES = st.recursive(
    PRETERMINALS,
    lambda trees: st.builds(Tree, LABELS | ATOMS | st.just(""), st.lists(trees, min_size=1, max_size=3).map(tuple)),
    max_leaves=12,
)

# --- pairs -------------------------------------------------------------------------------------------------------


def arrays(pairs: list[tuple[int, int]]) -> Lengths:
    """Lengths of pairs as the lengths of both sides."""
    both = np.array(pairs, dtype=np.int32).reshape(-1, 2)
    return both[:, 0].copy(), both[:, 1].copy()


# Lists of few different lengths too, so that there are ties.
PAIRS = st.sampled_from([2, 12, 60]).flatmap(
    lambda top: st.lists(st.tuples(st.integers(0, top), st.integers(0, top)), max_size=120)
)
LENGTHS = PAIRS.map(arrays)
