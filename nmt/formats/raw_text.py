"""How a unit writes the characters of its text, so that its translation writes them alike: &eacute; for é."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from nmt.formats.terms import COPIED, Span, find_copies, offsets_in


class RawText:
    """How a unit writes each character of its text."""

    def __init__(
        self, text: str, raws: Sequence[str], kept: Sequence[Span], walls: Sequence[int], escapes: Mapping[str, str]
    ) -> None:
        """Take a text, how it writes each character, what of it is copied, and the offsets of its codes.

        `escapes` say how a translation writes characters that the text does not have.
        """
        self._escapes = escapes
        copied = COPIED.spans(text, kept, walls)
        self._copies = {span.text_in(text): "".join(raws[span.start : span.end]) for span in copied}
        self._own = defaultdict[str, list[str]](list)  # of each character outside of what is copied, in order
        inside = offsets_in(copied)
        for at, (sign, raw) in enumerate(zip(text, raws, strict=False)):
            if at not in inside:
                self._own[sign].append(raw)

    def of(self, output: str) -> list[str]:
        """Return each character of a translation as it is written; what is copied is as the unit has it."""
        signs = [*output]
        copied = find_copies(output, self._copies)
        inside = offsets_in(copied)
        offsets = defaultdict[str, list[int]](list)  # of each character outside of what is copied
        for at, sign in enumerate(output):
            if at not in inside:
                offsets[sign].append(at)
        for sign, own_offsets in offsets.items():
            raws = self._raws(sign, len(own_offsets))
            for at, raw in zip(own_offsets, raws, strict=True):
                signs[at] = raw
        for span in copied:
            others = span.end - span.start - 1  # characters, which are written with the first
            signs[span.start : span.end] = [self._copies[span.text_in(output)], *[""] * others]
        return signs

    def _raws(self, sign: str, count: int) -> list[str]:
        """Return how each of `count` occurrences of a character is written.

        They are as in the unit if it has as many; else all are escaped if one of these is, and none if none is.
        """
        raws = self._own.get(sign, [])
        if len(raws) == count:
            return raws
        escaped = [raw for raw in raws if raw != sign]
        if escaped:
            return escaped[:1] * count
        if raws:
            return [sign] * count
        return [self._escapes.get(sign, sign)] * count
