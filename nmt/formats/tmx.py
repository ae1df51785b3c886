"""TMX: translation units with a variant for each language."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from nmt.formats.units import Origin, Unit, UnitFile, origin_of
from nmt.formats.xml_text import Element, XmlText
from nmt.text.language_codes import Language

NOTE = "x-nmt"
"""Type of the property of a variant that says where a translation comes from"""
CONTEXTS = ("x-context", "context")
"""Types of the property of a unit that has its context; `x-Context` is another thing, of Trados"""


class TmxFile(UnitFile):
    """A TMX: `lacking` units have no variant in one of the languages, `complete` ones have both, and `codes` are those
    of all variants, in lower case, each with how it is written."""

    def __init__(self, raw: bytes, languages: Sequence[str]) -> None:
        """Read a file; raise ValueError, LookupError or ExpatError if it is none."""
        super().__init__()
        self._document, self._languages = XmlText(raw), languages
        self.text, self.edits = self._document.text, self._document.edits
        self.lacking, self.complete, self.codes = 0, 0, dict[str, str]()
        if self._document.root.base != "tmx":
            raise ValueError(f"it begins with {self._document.root.tag[:60]}")
        for element in self._document.root.below():
            if element.base == "tu":
                self._read(element)

    def keep(self, unit: Unit, other: Unit, is_reviewed: bool) -> None:
        """Give a unit the variant of `other`, as it is written there."""
        (source, target), (_, given) = unit.place, other.place
        if given is None:
            return
        variant, xml = given.parent, self._document.in_newlines(given.parent.raw)
        note = _note_of(variant)
        if note and is_reviewed:
            at, end = note.start - variant.start, note.end - variant.start
            xml = self._document.in_newlines(variant.raw[:at].rstrip() + variant.raw[end:])
        if target:
            self._document.replace(target.parent, xml)
        else:
            self._document.put_behind(source.parent, xml)

    def content(self) -> bytes:
        """Return the file with all that was written to its units."""
        return self._document.content()

    def _read(self, element: Element) -> None:
        variants = dict[str, Element]()
        for each in element.children:
            if each.base == "tuv":
                variants.setdefault(_code(_language_of(each)), each)
        codes = _codes_of(self._languages, [code for code in variants if code])
        pair = [variants[code] if code else None for code in codes]
        self.codes |= {code: _language_of(each) for code, each in variants.items() if code}
        self.lacking += None in pair
        self.complete += None not in pair
        source, target = (each.child("seg") if each else None for each in pair)
        if source is None:
            texts = (seg.content() for seg in (each.child("seg") for each in variants.values()) if seg)
            self.unfilled.append(next(texts, "") or element.get("tuid"))
        elif source.content().strip():
            notes = (each for each in element.children if each.base == "prop" and each.get("type") in CONTEXTS)
            context = next((each.content() for each in notes), "")
            text, translation = source.content(may_wrap=True), source.translation(target, may_wrap=True)
            unit = Unit([text], [translation], context, False, partial(self._write, source, target))
            unit.name, unit.start, unit.place = element.get("tuid"), element.start, (source, target)
            if target and target.parent:
                note = _note_of(target.parent)
                others = (each.raw for each in target.parent.children if each is not target)
                unit.notes = "\n".join([target.parent.tag, *others])
                unit.origin = origin_of(note.content()) if note else ""
            self.units.append(unit)

    def _write(
        self, source: Element, target: Element | None, texts: Sequence[str], _: bool, origin: Origin = ""
    ) -> None:
        xml = self._document.translated(source, texts[0])
        prop = f'<prop type="{NOTE}">{origin}</prop>' if origin else ""
        if target is not None:
            assert target.parent is not None
            self._document.fill(target, xml)
            note = _note_of(target.parent)
            if note:
                self._document.replace(note, prop)
            else:
                self._document.put_before(target, prop)
            return
        variant = source.parent
        assert variant is not None
        before = self._document.text[variant.inner : source.start]
        after = self._document.text[source.end : variant.stop]
        lead, trail = before[len(before.rstrip()) :], after[: len(after) - len(after.lstrip())]
        seg = f"{lead}{prop + lead if prop else ''}<seg>{xml}</seg>{trail}"
        language = Language.of(self._languages[-1])
        own = (code for code in self.codes.values() if Language.of(code).is_same(language))
        code = next(own, language.tag)  # as other units have it
        self._document.put_behind(variant, f'<tuv xml:lang="{code}">{seg}</tuv>')


def _note_of(variant: Element) -> Element | None:
    return next((each for each in variant.children if each.base == "prop" and each.get("type") == NOTE), None)


def _language_of(variant: Element) -> str:
    return variant.get("xml:lang") or variant.get("lang")


def _code(language: str) -> str:
    return language.replace("_", "-").lower()


def _codes_of(languages: Sequence[str], codes: Sequence[str]) -> list[str | None]:
    """Return the code of each language, source and target, among those of a unit; None of one that is not there.

    Where a language itself is missing, one of another region is taken, if there is only one: en-US for en or for
    en-GB. As a target only if one of both names no region, since pt-PT is no translation to pt-BR.
    """
    known = {code: Language.of(code) for code in codes}
    wanted = [Language.of(languages[side]) for side in (0, -1)]
    found = [_equal(each, known) for each in wanted]
    for side, language in enumerate(wanted):
        fits = language.is_same if side else language.is_like
        others = [code for code, each in known.items() if code not in found and fits(each)]
        if found[side] is None and (len(others) == 1 or (others and not language.region)):
            found[side] = others[0]
    return found


def _equal(language: Language, known: Mapping[str, Language]) -> str | None:
    """Return the code that names exactly this language, in its script and region."""
    same = (code for code, each in known.items() if each.region == language.region and each.is_like(language))
    return next(same, None)
