"""TMX: translation units (tu) with a variant (tuv) for each language, whose text is in a segment (seg)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from nmt.formats.units import Origin, Unit, UnitFile, origin_of
from nmt.formats.xml_text import Element, XmlText
from nmt.text.language_codes import Language

NOTE = "x-nmt"
"""Type of the property of a variant that says where a translation comes from"""
CONTEXTS = ("x-context", "context")
"""Types of the property of a unit that has its context; `x-Context` is another thing, of Trados"""


class TmxFile(UnitFile):
    """A TMX, read in two of its languages."""

    def __init__(self, raw: bytes, languages: Sequence[str]) -> None:
        """Read a file; raise ValueError, LookupError or ExpatError if it is none."""
        self._document = XmlText(raw, "tmx")
        super().__init__(self._document.text, self._document.edits)
        self._languages = languages
        self.lacking = 0
        """Units without a variant in one of the languages"""
        self.complete = 0
        """Those that have both"""
        self.codes: dict[str, str] = {}
        """Codes of the languages of all variants, in lower case, each with how it is written"""
        for element in self._document.root.below():
            if element.base == "tu":
                self._read(element)

    def keep(self, unit: Unit, other: Unit, is_reviewed: bool) -> None:
        """Give a unit the variant of `other`, as it is written there."""
        source, target = unit.place
        _, given = other.place
        if given is None:
            return
        variant = given.parent
        xml = variant.raw
        note = _property(variant, NOTE)
        if note and is_reviewed:
            before = xml[: note.start - variant.start]
            xml = before.rstrip() + xml[note.end - variant.start :]
        xml = self._document.in_newlines(xml)
        if target:
            self._document.replace(target.parent, xml)
        else:
            self._document.put_behind(source.parent, xml)

    def content(self) -> bytes:
        """Return the file with all that was written to its units."""
        return self._document.content()

    def _read(self, element: Element) -> None:
        variants: dict[str, Element] = {}
        for variant in element.named("tuv"):
            code = _language_of(variant).replace("_", "-").lower()
            variants.setdefault(code, variant)
        known = [code for code in variants if code]
        for code in known:
            self.codes[code] = _language_of(variants[code])
        codes = _codes_of(self._languages, known)
        if None in codes:
            self.lacking += 1
        else:
            self.complete += 1
        source, target = (variants[code].child("seg") if code else None for code in codes)
        if source is None:
            self.unfilled.append(_first_text(variants.values()) or element.get("tuid"))
        elif source.content().strip():
            self.units.append(self._unit(element, source, target))

    def _unit(self, element: Element, source: Element, target: Element | None) -> Unit:
        context = _property(element, *CONTEXTS)
        text = source.content(may_wrap=True)
        translation = source.translation(target, may_wrap=True)
        write = partial(self._write, source, target)
        unit = Unit([text], [translation], context.content() if context else "", False, write)
        unit.name = element.get("tuid")
        unit.start = element.start
        unit.place = (source, target)
        if target and target.parent:
            others = [each.raw for each in target.parent.children if each is not target]
            unit.notes = "\n".join([target.parent.tag, *others])
            note = _property(target.parent, NOTE)
            if note:
                unit.origin = origin_of(note.content())
        return unit

    def _write(
        self, source: Element, target: Element | None, texts: Sequence[str], _: bool, origin: Origin = ""
    ) -> None:
        xml = self._document.translated(source, texts[0])
        note = f'<prop type="{NOTE}">{origin}</prop>' if origin else ""
        if target is not None:
            assert target.parent is not None
            self._document.fill(target, xml)
            present = _property(target.parent, NOTE)
            if present:
                self._document.replace(present, note)
            else:
                self._document.put_before(target, note)
            return
        variant = source.parent
        assert variant is not None
        before = self._document.text[variant.inner : source.start]
        after = self._document.text[source.end : variant.stop]
        lead = before[len(before.rstrip()) :]
        trail = after[: len(after) - len(after.lstrip())]
        if note:
            note += lead
        inside = f"{lead}{note}<seg>{xml}</seg>{trail}"
        self._document.put_behind(variant, f'<tuv xml:lang="{self._target_code()}">{inside}</tuv>')

    def _target_code(self) -> str:
        """Return the code of the target language as other units have it."""
        _, target = self._languages
        language = Language.of(target)
        for code in self.codes.values():
            if Language.of(code).is_same(language):
                return code
        return language.tag


def _property(element: Element, *types: str) -> Element | None:
    """Return the first property of one of these types; None if there is none."""
    for each in element.named("prop"):
        if each.get("type") in types:
            return each
    return None


def _first_text(variants: Iterable[Element]) -> str:
    for variant in variants:
        segment = variant.child("seg")
        if segment:
            return segment.content()
    return ""


def _language_of(variant: Element) -> str:
    return variant.get("xml:lang") or variant.get("lang")


def _codes_of(languages: Sequence[str], codes: Sequence[str]) -> tuple[str | None, str | None]:
    """Return the code of each language, source and target, among those of a unit; None of one that is not there.

    Where a language itself is missing, one of another region is taken, if there is only one: en-US for en or for en-GB.
    For the target, one of both must be without a region, since pt-PT is no translation to pt-BR.
    """
    source, target = map(Language.of, languages)
    of_source = _equal(source, codes)
    of_target = _equal(target, codes)
    if of_source is None:
        alike = [code for code in codes if code != of_target and source.is_like(Language.of(code))]
        of_source = _only(source, alike)
    if of_target is None:
        alike = [code for code in codes if code != of_source and target.is_same(Language.of(code))]
        of_target = _only(target, alike)
    return of_source, of_target


def _equal(language: Language, codes: Sequence[str]) -> str | None:
    """Return the code that names exactly this language, in its script and region."""
    for code in codes:
        other = Language.of(code)
        if other.region == language.region and other.is_like(language):
            return code
    return None


def _only(language: Language, codes: Sequence[str]) -> str | None:
    """Return the only one of the codes that stand for a language; the first one if this has no region."""
    if len(codes) == 1 or (codes and not language.region):
        return codes[0]
    return None
