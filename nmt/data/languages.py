"""Which pairs have a side that looks like another language than the one declared, in a sample of each data set.

The languages are told by py3langid, if it is installed. Texts that are too short for it are not judged, and neither are
languages that it does not know.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from nmt.data.duplicates import Hashes
from nmt.data.pairs import Pair

JUDGED = 1000  # pairs of each data set
LONGEST = 1000  # characters of a text that are looked at
SHORTEST = 15  # bytes of letters in UTF-8: 15 letters of English, 8 of Russian, 5 of Chinese
LIKELY, UNLIKELY = 0.5, 0.02  # minimum probability of the other language, and maximum of the one declared
NO_LANGUAGE = "zxx"  # numbers, markup, names of files
ISO_639_3 = """
afr:af amh:am arg:an ara:ar arb:ar asm:as aze:az azj:az bel:be bul:bg ben:bn bre:br bos:bs cat:ca ces:cs cze:cs cym:cy
wel:cy dan:da deu:de ger:de dzo:dz ell:el gre:el eng:en epo:eo spa:es est:et eus:eu baq:eu fas:fa per:fa pes:fa prs:fa
fin:fi fao:fo fra:fr fre:fr fry:fy gle:ga gla:gd glg:gl guj:gu hau:ha heb:he iw:he hin:hi hrv:hr hat:ht hun:hu hye:hy
arm:hy ind:id in:id ibo:ig isl:is ice:is ita:it jpn:ja jav:jv kat:ka geo:ka kaz:kk khm:km kan:kn kor:ko kur:ku kmr:ku
kir:ky lat:la ltz:lb lug:lg lin:ln lao:lo lit:lt lav:lv lvs:lv mlg:mg plt:mg mkd:mk mac:mk mal:ml mon:mn khk:mn mar:mr
msa:ms may:ms zsm:ms mlt:mt mya:my bur:my nep:ne npi:ne nld:nl dut:nl nno:nn nb:no nob:no nor:no oci:oc orm:om gaz:om
ori:or ory:or pan:pa pol:pl pus:ps pbt:ps por:pt que:qu quy:qu ron:ro rum:ro mo:ro rus:ru kin:rw san:sa sme:se sin:si
slk:sk slo:sk slv:sl sna:sn som:so sqi:sq alb:sq als:sq srp:sr sot:st swe:sv swa:sw swh:sw tam:ta tel:te tgk:tg tha:th
tuk:tk tgl:tl fil:tl tur:tr tat:tt uig:ug ukr:uk urd:ur uzb:uz uzn:uz vie:vi vol:vo wln:wa xho:xh yor:yo zho:zh chi:zh
cmn:zh zul:zu
"""
"""Codes of three letters as ISO 639 or NLLB-200 has them, and older ones, each with py3langid's label"""
LABELS = dict(each.split(":") for each in ISO_639_3.split())
WIDER = {"arz": "ar", "ary": "ar", "nn": "no", "sdh": "ku", "uzs": "uz", "wuu": "zh", "yue": "zh"}
"""Languages that are also written under the code of another"""


class Odd(NamedTuple):
    """A pair with a side that looks like another language."""

    line: int
    """1-based line number in its split"""
    pair: Pair
    why: str


def label_of(code: str) -> str:
    """Return py3langid's label for a code such as pt_BR, deu or eng_Latn, whether it knows the language or not."""
    first = re.split("[-_]", code.lower())[0]
    return LABELS.get(first, first)


class LanguageJudge:
    """What tells the language of a text."""

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
        return label_of(code) in self._known and len("".join(filter(str.isalpha, text)).encode()) >= SHORTEST

    def other_language(self, text: str, code: str) -> str | None:
        """Return the language that a text looks like, if that is not the one with this code."""
        declared = label_of(code)
        best, probability = self._identifier.classify(text)
        if WIDER.get(best, best) == WIDER.get(declared, declared) or best == NO_LANGUAGE or probability < LIKELY:
            return None
        return str(best) if dict(self._identifier.rank(text))[declared] <= UNLIKELY else None


class LanguageSample:
    """Pairs of a data set, up to `JUDGED`, each once, chosen by their hashes: the same ones in any order."""

    def __init__(self) -> None:
        self._chosen = dict[int, tuple[int, Pair]]()  # line and pair by hash
        self._limit = 2**64 - 1

    def add(self, first: int, pairs: Sequence[Pair], hashes: Hashes) -> None:
        """Consider the pairs that begin at line `first` of their split."""
        for row in np.flatnonzero(hashes <= np.uint64(self._limit)).tolist():
            self._chosen.setdefault(int(hashes[row]), (first + row, pairs[row]))
        if len(self._chosen) > JUDGED:
            self._chosen = dict(sorted(self._chosen.items())[:JUDGED])
            self._limit = max(self._chosen)

    def judged(self, judge: LanguageJudge, languages: Sequence[str]) -> tuple[int, list[Odd]]:
        """Return how many pairs were judged on either side, and those that look like other languages, by line."""
        count, odd = 0, list[Odd]()
        for line, pair in sorted(self._chosen.values()):
            texts = [text[:LONGEST] for text in pair]
            sides = [*zip(("source", "target"), texts, languages, strict=True)]
            known = [each for each in sides if judge.can_judge(*each[1:])]
            found = [(side, judge.other_language(text, code), code) for side, text, code in known]
            why = ", ".join(f"{side} looks like {other}, not {code}" for side, other, code in found if other)
            count += bool(known)
            if why:
                odd.append(Odd(line, pair, why))
        return count, odd
