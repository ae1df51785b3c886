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
        self._own = defaultdict[str, list[str]](list)  # of what is copied, and of other characters, in order
        copied = COPIED.spans(text, kept, walls)
        self._copies = {span.text_in(text) for span in copied}
        for span in copied:
            self._own[span.text_in(text)].append("".join(raws[span.start : span.end]))
        inside = offsets_in(copied)
        for at, (sign, raw) in enumerate(zip(text, raws, strict=False)):
            if at not in inside:
                self._own[sign].append(raw)

    def of(self, output: str) -> list[str]:
        """Return each character of a translation as it is written; what is copied is as the unit has it."""
        signs = [*output]
        copied = find_copies(output, self._copies)
        inside = offsets_in(copied)
        spans = defaultdict[str, list[Span]](list)  # of what is copied, and of other characters
        for span in copied:
            spans[span.text_in(output)].append(span)
        for at, sign in enumerate(output):
            if at not in inside:
                spans[sign].append(Span(at, at + 1))
        for text, own in spans.items():
            for (start, end), raw in zip(own, self._raws(text, len(own)), strict=True):
                signs[start:end] = [raw, *[""] * (end - start - 1)]
        return signs

    def _raws(self, sign: str, count: int) -> list[str]:
        """Return how each of `count` occurrences of a character, or of what is copied, is written.

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
