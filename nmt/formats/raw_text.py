"""How a unit writes the characters of its text: entities, escapes and what is copied, for its translation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from nmt.formats.terms import Span, Terms, find_copies

_PLACEHOLDERS = Terms()


class RawText:
    """How each character of a text is written."""

    def __init__(
        self, text: str, raws: Sequence[str], kept: Sequence[Span], walls: Sequence[int], escapes: Mapping[str, str]
    ) -> None:
        """Take a text, how it writes each character, what of it is copied, and the offsets of its codes.

        `escapes` say how a translation writes characters that the text does not have.
        """
        self._escapes = escapes
        copied = _PLACEHOLDERS.spans(text, kept, walls)
        self._copies = {text[slice(*span)]: "".join(raws[slice(*span)]) for span in copied}
        self._own = defaultdict[str, list[str]](list)  # of each character outside of what is copied, in order
        inside = _offsets(copied)
        for at, (sign, raw) in enumerate(zip(text, raws, strict=False)):
            if at not in inside:
                self._own[sign].append(raw)

    def of(self, output: str) -> list[str]:
        """Return each character of a translation as it is written; what is copied is as the unit has it."""
        signs = [*output]
        copied = find_copies(output, self._copies)
        inside = _offsets(copied)
        places = defaultdict[str, list[int]](list)
        for at, sign in enumerate(output):
            if at not in inside:
                places[sign].append(at)
        for sign, own_places in places.items():
            for at, raw in zip(own_places, self._raws(sign, len(own_places)), strict=True):
                signs[at] = raw
        for span in copied:
            signs[slice(*span)] = [self._copies[output[slice(*span)]], *[""] * (span.end - span.start - 1)]
        return signs

    def _raws(self, sign: str, count: int) -> list[str]:
        """Return how a character is written in each place: as in the unit if it is there as often."""
        raws = self._own.get(sign, [])
        if len(raws) == count:
            return raws
        escaped = next((raw for raw in raws if raw != sign), None)
        if escaped is None:
            escaped = sign if raws else self._escapes.get(sign, sign)
        return [escaped] * count


def _offsets(spans: Sequence[Span]) -> set[int]:
    return {at for span in spans for at in range(*span)}
