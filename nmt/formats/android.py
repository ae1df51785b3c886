"""Android's resources: strings, arrays of strings and plurals, whose text is escaped and quoted in its own way."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from nmt.formats.units import Origin, Unit, UnitFile, Write
from nmt.formats.xml_text import Element, XmlText, escaped, parts_of, with_attribute
from nmt.text.language_codes import Language

QUANTITIES = ("zero", "one", "two", "few", "many", "other")
REFERENCE = re.compile(r"\s*(?:@[+*]?(?:[\w.]+:)?\w+/[\w.]+|@null|@empty|\?(?:[\w.]+:)?(?:\w+/)?[\w.]+)\s*")
"""A whole value that stands for another one, such as @android:string/ok or ?attr/name"""
ESCAPES = {"n": "\n", "t": "\t"}
WRITTEN = {"\n": "\\n", "\t": "\\t"}
_SECTION = re.compile(r"(\s*)<!\[CDATA\[(?:(?!\]\]>).)*\]\]>(\s*)", re.DOTALL)
_SIGN = re.compile(r'\\u([0-9a-fA-F]{4})|\\(.)|(")|([ \t\r\n\f\v]+)|([^\\" \t\r\n\f\v]+|\\)', re.DOTALL)


class AndroidFile(UnitFile):
    """A file of resources. It has one language, so all its strings are to be translated, in their places."""

    def __init__(self, raw: bytes, languages: Sequence[str]) -> None:
        """Read a file; raise ValueError, LookupError or ExpatError if it is none."""
        super().__init__()
        self._document = XmlText(raw)
        self.text, self.edits = self._document.text, self._document.edits
        root = self._document.root
        if root.base != "resources":
            raise ValueError(f"it begins with {root.tag[:60]}")
        self._quantities = _quantities_of(languages[-1])
        for element in root.children:
            if element.inherited("translatable") != "false":
                self._read(element)

    def keep(self, unit: Unit, other: Unit, is_reviewed: bool) -> None:
        """Give a unit the text of `other`, as it is written there."""
        self._document.fill(unit.place, self._document.in_newlines(other.place.inside))

    def content(self) -> bytes:
        """Return the file with all that was written to its units."""
        return self._document.content()

    def _read(self, element: Element) -> None:
        kind, name = element.base, element.get("name")
        if kind == "string" or (kind == "item" and element.get("type") == "string"):
            self._add([element], name, element, partial(self._write_one, element))
        elif kind == "string-array":
            for number, item in enumerate(element.children):
                self._add([item], f"{name}[{number}]", item, partial(self._write_one, item))
        elif kind == "plurals":
            self._read_plurals(element, name)
        elif kind == "array":  # of anything: nothing says what is text
            self.unfilled += [_content(item) for item in element.children if _is_text(item)]

    def _add(self, sources: Sequence[Element], context: str, place: Element, write: Write) -> None:
        if sources and all(map(_is_text, sources)):
            texts = [*map(_content, sources)]
            unit = Unit(texts, [""] * len(texts), context, False, write)
            unit.name, unit.start, unit.place = context, place.start, place
            self.units.append(unit)

    def _read_plurals(self, element: Element, name: str) -> None:
        """Read plurals in the target language's quantities; one that is not there has the source of `other`."""
        items = {item.get("quantity"): item for item in element.children}
        if not items:
            return
        last = items.get("other") or next(reversed(items.values()))
        sources = {key: items.get(key, last) for key in self._quantities}
        texts = {key: item for key, item in sources.items() if _is_text(item)}
        self._add([*texts.values()], name, element, partial(self._write_plurals, element, sources, [*texts]))

    def _write_one(self, element: Element, texts: Sequence[str], review: bool, origin: Origin = "") -> None:
        self._document.fill(element, self._inside(element, texts[0]))

    def _write_plurals(
        self,
        element: Element,
        sources: Mapping[str, Element],
        keys: Sequence[str],
        texts: Sequence[str],
        review: bool,
        origin: Origin = "",
    ) -> None:
        """Write the forms to their elements; if there are others than of the source, write the elements, too."""
        insides = {key: source.inside for key, source in sources.items()}
        insides |= {key: self._inside(sources[key], text) for key, text in zip(keys, texts, strict=True)}
        present = {item.get("quantity"): item for item in element.children}
        if {*present} == {*insides}:
            for key in keys:
                self._document.fill(present[key], insides[key])
            return
        text, end, before = self._document.text, element.inner, dict[str, str]()
        for key, item in present.items():
            before[key] = text[end : item.start]
            end = item.end
        first = next(iter(before.values()))
        space = first[: len(first) - len(first.lstrip())]
        parts = list[str]()
        for key, source in sources.items():
            tag = with_attribute(source.tag, "quantity", key)
            parts += [before.get(key, space), f"{tag}{insides[key]}</{source.name}>"]
        self._document.fill(element, "".join([*parts, text[end : element.stop]]))

    def _inside(self, source: Element, text: str) -> str:
        """Return the XML of a translation; that of the source if it is the same text."""
        if text == _content(source):
            return source.inside
        parts = [*parts_of(text)] if source.children else [(False, text)]
        xml = self._document.as_xml(_encoded(parts), is_xml=True)
        section = _SECTION.fullmatch(source.inside)
        if section and "]]&gt;" not in xml:
            return f"{section[1]}<![CDATA[{html.unescape(xml)}]]>{section[2]}"
        return xml


def _is_text(element: Element) -> bool:
    """Return whether an element holds a text, and not nothing or a reference."""
    return element.content().strip() != "" and not REFERENCE.fullmatch(element.content())


def _content(element: Element) -> str:
    """Return a text as Android shows it, which is XML if there are elements in it."""
    shown = _shown(parts_of(element.inside))
    return "".join(text if is_tag or not element.children else escaped(text) for is_tag, text in shown)


def _shown(parts: Iterable[tuple[bool, str]]) -> list[tuple[bool, str]]:
    """Return parts without escapes and quotes: white space outside quotes is one space, and none at the edges."""
    shown = list[tuple[bool, str]]()
    is_quoted, has_begun, gap = False, False, -1
    for is_tag, part in parts:
        if is_tag:
            shown.append((True, part))
            continue
        for code, sign, quote, space, text in _SIGN.findall(part):
            if quote:
                is_quoted = not is_quoted
            elif space and not is_quoted:
                if has_begun and gap < 0:
                    gap = len(shown)
                    shown.append((False, " "))
            else:
                own = chr(int(code, 16)) if code else ESCAPES.get(sign, sign)
                shown.append((False, own + space + text.removesuffix("\\")))
                has_begun, gap = True, -1
    return [*shown[:gap], *shown[gap + 1 :]] if gap >= 0 else shown


def _encoded(parts: Sequence[tuple[bool, str]]) -> str:
    """Return parts as XML, in which texts are escaped so that Android shows them as they are."""
    texts = [text for is_tag, text in parts if not is_tag and text]
    before, left, encoded = "", sum(map(len, texts)), list[str]()
    for is_tag, part in parts:
        for each in () if is_tag else part:
            left -= 1
            if each == " " and (before in ("", " ") or not left):
                encoded.append("\\u0020")
            elif each in "\\'\"" or (each in "@?" and not before):
                encoded.append("\\" + each)
            else:
                encoded.append(WRITTEN.get(each) or escaped(each))
            before = each
        encoded += [part] * is_tag
    return "".join(encoded)


def _quantities_of(code: str) -> list[str]:
    """Return the quantities that Android knows for a language, in their usual order."""
    from translate.lang.data import DECIMAL_EXTRA_TAGS, get_cldr_plural_tags

    base = Language.of(code).base
    known = {*get_cldr_plural_tags(base), *DECIMAL_EXTRA_TAGS.get(base, ()), "other"}
    return [each for each in QUANTITIES if each in known]
