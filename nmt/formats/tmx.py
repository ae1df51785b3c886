"""TMX: translation units with a variant for each language."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from nmt.formats.units import Unit, UnitFile
from nmt.formats.xml_text import Element, XmlText


class TmxFile(UnitFile):
    """A TMX: `lacking` units have no variant in one of the languages, `complete` ones have both, and `codes` are those
    of all variants."""

    def __init__(self, raw: bytes, languages: Sequence[str]) -> None:
        """Read a file; raise ValueError, LookupError or ExpatError if it is none."""
        super().__init__()
        self._document, self._languages = XmlText(raw), languages
        self.lacking, self.complete, self.codes = 0, 0, dict[str, None]()
        if self._document.root.base != "tmx":
            raise ValueError(f"it begins with {self._document.root.tag[:60]}")
        for element in self._document.root.below():
            if element.base == "tu":
                self._read(element)

    def content(self) -> bytes:
        """Return the file with all that was written to its units."""
        return self._document.content()

    def _read(self, element: Element) -> None:
        variants = dict[str | None, Element]()
        for each in element.children:
            if each.base == "tuv":
                variants.setdefault(_code(each.get("xml:lang") or each.get("lang")), each)
        codes = _codes_of(self._languages, [code for code in variants if code])
        pair = [variants[code] if code else None for code in codes]
        self.codes |= dict.fromkeys(code for code in variants if code)
        self.lacking += None in pair
        self.complete += None not in pair
        source, target = (each.child("seg") if each else None for each in pair)
        if source is None:
            texts = (seg.content() for seg in (each.child("seg") for each in variants.values()) if seg)
            self.unfilled.append(next(texts, "") or element.get("tuid"))
        elif source.content().strip():
            notes = (each for each in element.children if each.base == "prop" and each.get("type") == "x-context")
            context = next((each.content() for each in notes), "")
            text, translation = source.content(may_wrap=True), source.translation(target, may_wrap=True)
            self.units.append(Unit([text], [translation], context, False, partial(self._write, source, target)))

    def _write(self, source: Element, target: Element | None, texts: Sequence[str], _: bool) -> None:
        xml = self._document.as_xml(texts[0], bool(source.children))
        if target is not None:
            self._document.fill(target, xml)
            return
        variant = source.parent
        assert variant is not None
        before = self._document.text[variant.inner : source.start]
        after = self._document.text[source.end : variant.stop]
        lead, trail = before[len(before.rstrip()) :], after[: len(after) - len(after.lstrip())]
        seg = f"{lead}<seg>{xml}</seg>{trail}"
        self._document.put_behind(variant, f'<tuv xml:lang="{self._languages[-1]}">{seg}</tuv>')


def _code(language: str | None) -> str:
    return (language or "").replace("_", "-").lower()


def _codes_of(languages: Sequence[str], codes: Sequence[str]) -> list[str | None]:
    """Return the code of each language, source and target, among those of a unit; None of one that is not there.

    Where a language itself is missing, one of another region is taken, if there is only one: en-US for en or for
    en-GB. As a target only if one of both names no region, since pt-PT is no translation to pt-BR.
    """
    wanted = [_code(languages[side]) for side in (0, -1)]
    found = [code if code in codes else None for code in wanted]
    for side, code in enumerate(wanted):
        others = [each for each in codes if each not in found and _is_kind(each, code, strict=side > 0)]
        if found[side] is None and (len(others) == 1 or (others and "-" not in code)):
            found[side] = others[0]
    return found


def _is_kind(code: str, other: str, strict: bool) -> bool:
    """Return whether two codes differ in their region alone; with `strict`, only if one of them has none."""
    (language, *parts), (other_language, *other_parts) = code.split("-"), other.split("-")
    scripts, other_scripts = ([part for part in each if len(part) == 4] for each in (parts, other_parts))
    is_near = not (parts and other_parts) if strict else scripts == other_scripts or not (parts and other_parts)
    return language == other_language and is_near
