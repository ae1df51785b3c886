"""A small treebank generated from a grammar, in sections of .mrg files like the Penn Treebank."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

NOUNS, VERBS = ("dog", "cat", "tree", "house", "river", "bird"), ("sees", "likes", "draws", "hears")


def sentence(draw: random.Random) -> str:
    """A tree as the Penn Treebank writes it: with an unnamed root, functional tags and a trace."""

    def noun() -> str:
        return f"(NN {draw.choice(NOUNS)})"

    adjective = draw.choice(("", "(ADJP (RB very) (JJ old)) ", "(JJ small) "))
    subject = f"(NP-SBJ (DT the) {adjective}{noun()})"
    place = draw.choice(("", f" (PP-LOC (IN near)\n        (NP (DT the) {noun()}))", " (NP-ADV (-NONE- *T*-1))"))
    return f"( (S {subject}\n    (VP (VBZ {draw.choice(VERBS)}) (NP (DT a) {noun()}){place})\n    (. .)) )"


def write_treebank(folder: Path, sections: Sequence[str], trees: int = 10) -> None:
    """Write FOLDER/SECTION/wsj_SECTION00.mrg with this many trees each, and beside it a file without trees."""
    for section in sections:
        draw = random.Random(int(section))
        path = folder / section / f"wsj_{section}00.mrg"
        path.parent.mkdir(parents=True)
        path.write_text("\n".join(sentence(draw) for _ in range(trees)) + "\n")
        (path.parent / "readme.txt").write_text("no trees here")
