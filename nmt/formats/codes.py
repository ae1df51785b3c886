"""Codes of a segment, and the white space between them in a translation.

A code is what a unit has besides words, such as a tag. Space inside an element, as in `<b> word`, belongs to it and
stays. Space outside, as in `a <b>word`, belongs to the words on both sides: it is there if the translation has it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from nmt.text.scripts import UNSPACED, joins

CLOSING_MARK = re.compile(r"[.!?…,;:)\]}»”’\"'。！？、，；：）」』】]")
PLAIN_SPACES = " \n"  # what a line of markup may have as white space without a meaning of its own


@dataclass(eq=False)
class Code:
    """A code as a unit writes it, and what stands beside it there."""

    raw: str
    kind: Literal["open", "close", "alone"]
    number: int  # among the codes of the unit
    before: str  # white space
    behind: str
    follows: bool  # whether nothing but white space is between the code before and it
    parts: bool  # whether it parts words even without a space
    ends: bool  # whether a sentence ends at it
    is_between_words: bool  # with no other codes beside it
    is_blank: bool  # whether it is white space, maybe as an entity
    is_mark: bool  # as `Token.is_mark`
    mark: str  # first character of the text behind it and its space: before . or !, only a space of the unit's stays
    is_empty: bool = False  # whether it has no words inside

    @property
    def is_word_space(self) -> bool:
        """Whether it is white space inside a sentence."""
        return self.is_blank and not self.ends

    @property
    def is_space(self) -> bool:
        """Whether it keeps the words on both sides of it apart, without a space."""
        return self.parts or self.is_blank


def spaces_around(codes: Sequence[Code], beside: tuple[str, str], space: str, touching: int) -> list[str]:
    """Return the white space before, between and behind codes that have no words between them.

    `beside` are the characters of the translation on both sides, empty at its ends, and `space` is what it has between
    them. The first `touching` codes stand directly behind the word on the left.
    """
    spaces: list[str] = []
    for left, right in pairwise([None, *codes, None]):
        own = _inside(left, right)
        if own is None:
            own = _outside(left, right, beside[left is not None], space)
        spaces.append(own)
    needs_one = space and not all(UNSPACED.match(each) for each in beside)
    if needs_one and not any(spaces) and not any(code.is_space for code in codes):
        spaces[_first_that_may_have_it(codes, touching)] = space
    return spaces


def _inside(left: Code | None, right: Code | None) -> str | None:
    """Return the space between two codes that belongs to an element, or to neighbours; None if it is of the words."""
    if left and right and right.follows and right.number == left.number + 1:
        return left.behind
    if left and right and left.kind == "open" and right.kind == "close":
        return left.behind or right.before
    if left and left.kind == "open":
        return left.behind
    if right and right.kind == "close":
        return right.before
    return None


def _outside(left: Code | None, right: Code | None, beside: str, space: str) -> str:
    """Return the space outside of elements that the unit has there, if it may stand in the translation."""
    if left and right:
        if left.is_space:
            return left.behind
        if right.is_space:
            return right.before
        return left.behind or right.before
    code = left or right
    if not beside or not code:
        return ""
    own = code.behind if left else code.before
    if space.strip(PLAIN_SPACES):
        return space if own else ""
    if space:
        return own
    is_of_code = code.is_empty and (left is None or beside == code.mark or not CLOSING_MARK.match(beside))
    return own if is_of_code or joins(beside) or beside in "<>" else ""


def _first_that_may_have_it(codes: Sequence[Code], touching: int) -> int:
    """Return the index of the code before which space goes that the unit lacks.

    It is the first code that need not touch the word on its left; the number of codes if all must.
    """
    for index, code in enumerate(codes):
        if code.kind != "close" and not (code.is_empty and index < touching):
            return index
    return len(codes)
