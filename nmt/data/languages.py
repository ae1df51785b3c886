"""Find pairs with a side in another language than declared, in a sample of each data set.

py3langid identifies the languages, if it is installed. Texts that are too short for it are not judged, and neither are
languages that it does not know.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from nmt.data.duplicates import Hashes
from nmt.data.pairs import Pair
from nmt.text.language_codes import Language

JUDGED = 1000  # pairs of each data set
LONGEST = 1000  # characters of a text that are looked at
SHORTEST = 15  # bytes of letters in UTF-8: 15 letters of English, 8 of Russian, 5 of Chinese
LIKELY = 0.5  # minimum probability of the other language
UNLIKELY = 0.02  # maximum probability of the one declared
NO_LANGUAGE = "zxx"  # numbers, markup, names of files
WIDER = {"arz": "ar", "ary": "ar", "nn": "no", "sdh": "ku", "uzs": "uz", "wuu": "zh", "yue": "zh"}
"""Languages whose texts are often labelled with a wider code: Egyptian Arabic (arz) as Arabic (ar)"""


class Odd(NamedTuple):
    """A pair with a side that looks like another language."""

    line: int
    """1-based line number in its split"""
    pair: Pair
    why: str


def label_of(code: str) -> str:
    """Return py3langid's label for a code such as pt_BR, deu or eng_Latn, whether it knows the language or not."""
    base = Language.of(code).base
    return "no" if base == "nb" else base


class LanguageJudge:
    """Language identification by py3langid."""

    def __init__(self, identifier: Any) -> None:
        self._identifier = identifier
        self._known = {*identifier.labels} - {NO_LANGUAGE}

    @classmethod
    def load(cls) -> LanguageJudge | None:
        """Return a judge; None if py3langid is not installed, or older than 0.4, which unpickled its model."""
        try:
            from py3langid.langid import MODEL_FILE, LanguageIdentifier

            return cls(LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True))
        except (ImportError, AttributeError):
            return None

    def can_judge(self, text: str, code: str) -> bool:
        """Return whether the language is known and the text is long enough."""
        letters = "".join(filter(str.isalpha, text))
        return label_of(code) in self._known and len(letters.encode()) >= SHORTEST

    def other_language(self, text: str, code: str) -> str | None:
        """Return the language that a text looks like, if that is not the one with this code."""
        declared = label_of(code)
        best, probability = self._identifier.classify(text)
        is_same = WIDER.get(best, best) == WIDER.get(declared, declared)
        if is_same or best == NO_LANGUAGE or probability < LIKELY:
            return None
        probabilities = dict(self._identifier.rank(text))
        return str(best) if probabilities[declared] <= UNLIKELY else None


class LanguageSample:
    """Pairs of a data set, up to `JUDGED`, each once, chosen by their hashes: the same ones in any order."""

    def __init__(self) -> None:
        self._chosen = dict[int, tuple[int, Pair]]()  # line and pair by hash
        self._limit = 2**64 - 1  # pairs with higher hashes cannot be among the lowest `JUDGED`

    def add(self, first: int, pairs: Sequence[Pair], hashes: Hashes) -> None:
        """Consider the pairs that begin at line `first` of their split."""
        for row in np.flatnonzero(hashes <= np.uint64(self._limit)).tolist():
            self._chosen.setdefault(int(hashes[row]), (first + row, pairs[row]))
        if len(self._chosen) > JUDGED:
            self._chosen = dict(sorted(self._chosen.items())[:JUDGED])
            self._limit = max(self._chosen)

    def judged(self, judge: LanguageJudge, languages: Sequence[str]) -> tuple[int, list[Odd]]:
        """Return how many pairs were judged on either side, and those that look like other languages, by line."""
        source, target = languages
        count = 0
        odd = list[Odd]()
        for line, pair in sorted(self._chosen.values()):
            sides = (("source", pair.source[:LONGEST], source), ("target", pair.target[:LONGEST], target))
            is_judged = False
            reasons = list[str]()
            for side, text, code in sides:
                if judge.can_judge(text, code):
                    is_judged = True
                    other = judge.other_language(text, code)
                    if other:
                        reasons.append(f"{side} looks like {other}, not {code}")
            count += is_judged
            if reasons:
                odd.append(Odd(line, pair, ", ".join(reasons)))
        return count, odd
