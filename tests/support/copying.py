"""A translator that copies: what it puts back is what was taken apart."""

from __future__ import annotations

from nmt.formats.alignment import Aligned, AlignedLine
from nmt.formats.segments import Segment


def as_it_was(segment: Segment) -> str:
    """Put the codes of a segment around its own text."""
    part = Aligned.copied(segment.text, segment.walls)
    return segment.put(AlignedLine(segment.text, [(0, 0, part)]))
