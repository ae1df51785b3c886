"""Android's resources: strings, arrays of strings and plurals, whose text is escaped and quoted in its own way."""

from __future__ import annotations

import html
import re
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from nmt.formats.catalogs import numbers_of_quantities
from nmt.formats.plurals import fits_all
from nmt.formats.tags import tokens_of
from nmt.formats.tokens import Token
from nmt.formats.units import Numbers, Origin, Unit, UnitFile, Write
from nmt.formats.xml_text import Element, XmlText, escaped, parts_of, with_attribute
from nmt.text.language_codes import Language

QUANTITIES = ("zero", "one", "two", "few", "many", "other")
REFERENCE = re.compile(
    r"[ \t\r\n]*(?:@[+*]?(?:[\w.]+:)?\w+/\w[\w.]*|@null|@empty|\?(?:[\w.]+:)?(?:\w+/)?\w[\w.]*)[ \t\r\n]*"
)
"""A whole value that stands for another one, such as @android:string/ok or ?attr/name"""
ESCAPES = {"n": "\n", "t": "\t"}
WRITTEN = {"\n": "\\n", "\t": "\\t"}
NEAR = 20  # parts beside white space in which a tag is looked for
_SECTION = re.compile(r"(\s*)<!\[CDATA\[((?:(?!\]\]>).)*)\]\]>(\s*)", re.DOTALL)
_CODE = r"\\u[dD][89abAB][\da-fA-F]{2}\\u[dD][c-fC-F][\da-fA-F]{2}|\\u[\da-fA-F]{4}"
_SIGN = re.compile(rf'({_CODE})|\\(.)|(")|([ \t\r\n\f\v]+)|([^\\" \t\r\n\f\v]+|\\)', re.DOTALL)
_QUOTED = re.compile(r'"(?:[^"\\<]|\\.)*"', re.DOTALL)
_NUMBER = re.compile(rf"{_CODE}|&#\w+;")
_SPACE = re.compile(r"[ \n]|[^ \n]+")
_CODE_BEFORE = re.compile(r"(?:<[^<>]*>|\n)\Z")
_CODE_BEHIND = re.compile(r"<[^<>]*>|\n")


class _Part(NamedTuple):
    """A tag, or a piece of text."""

    text: str
    """As it is shown"""
    is_tag: bool = False
    space: str = ""
    """How a file has white space that is shown as one space"""


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
        self._quantities, self._numbers = _quantities_of(languages[-1]), numbers_of_quantities(languages[-1])
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

    def _add(
        self,
        sources: Sequence[Element],
        context: str,
        place: Element,
        write: Write,
        numbers: Sequence[Numbers] = (),
    ) -> None:
        if sources and all(map(_is_text, sources)):
            texts = [*map(_content, sources)]
            unit = Unit(texts, [""] * len(texts), context, False, write, numbers=numbers)
            unit.name, unit.start, unit.place = context, place.start, place
            self.units.append(unit)

    def _read_plurals(self, element: Element, name: str) -> None:
        """Read plurals in the target language's quantities; one that is not there, or not for all its numbers, has the
        source of `other`."""
        items = {item.get("quantity"): item for item in element.children}
        if not items:
            return
        last = items.get("other") or next(reversed(items.values()))
        sources = {key: items.get(key, last) for key in self._quantities}
        for key, numbers in self._numbers.items():
            is_text = numbers and _is_text(sources[key])
            if is_text and not fits_all(numbers, _content(sources[key]), _content(last)):
                sources[key] = last
        texts = {key: item for key, item in sources.items() if _is_text(item)}
        own = [self._numbers.get(key, ()) for key in texts]
        write = partial(self._write_plurals, element, sources, [*texts])
        self._add([*texts.values()], name, element, write, own)

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
        before, shown, behind = _shown(source.inside)
        if _QUOTED.fullmatch(source.inside.strip()):
            return self._document.as_xml(f'{before}"{_quoted(text)}"{behind}', is_xml=True)
        parts = [*_parts_of(text)] if any(part.is_tag for part in shown) else [(False, text)]
        encoded = _encoded(_laid_out(parts, shown), _spelled(source.inside))
        xml = self._document.as_xml(before + encoded + behind, is_xml=True)
        section = _SECTION.fullmatch(source.inside)
        if section and "]]&gt;" not in xml:
            return f"{section[1]}<![CDATA[{html.unescape(xml)}]]>{section[3]}"
        return xml


def _is_text(element: Element) -> bool:
    """Return whether an element holds a text, and not nothing or a reference."""
    return element.content().strip() != "" and not REFERENCE.fullmatch(element.content())


def _content(element: Element) -> str:
    """Return a text as Android shows it, which is XML if there are tags in it."""
    _, shown, _ = _shown(element.inside)
    is_xml = any(part.is_tag for part in shown)
    return "".join(escaped(part.text) if is_xml and not part.is_tag else part.text for part in shown)


def _parts_of(xml: str) -> Iterator[tuple[bool, str]]:
    """Yield the tags of XML, comments and elements that are copied, each with True, and the texts with False."""
    xml = xml.replace("\r\n", "\n")
    section = _SECTION.fullmatch(xml)
    if section:
        yield False, section[2]
        return
    has_copies = "<" in xml and "<![CDATA[" not in xml
    between = ""
    for token in tokens_of(xml) if has_copies else [Token("text", xml)]:
        if token.kind == "copy":
            yield from parts_of(between, as_written=True)
            yield True, token.raw
            between = ""
        else:
            between += token.raw
    yield from parts_of(between, as_written=True)


def _shown(xml: str) -> tuple[str, list[_Part], str]:
    """Return parts without escapes and quotes, and the white space at both ends, which is not shown.

    Outside quotes, white space between two texts or tags is one space.
    """
    shown, is_quoted = list[_Part](), False
    for is_tag, part in _parts_of(xml):
        if is_tag:
            shown.append(_Part(part, is_tag=True))
            continue
        for code, sign, quote, space, text in _SIGN.findall(part):
            if quote:
                is_quoted = not is_quoted
            elif space and not is_quoted:
                shown.append(_Part(" ", space=space))
            else:
                own = _character(code) if code else ESCAPES.get(sign, sign)
                shown.append(_Part(own + space + text.removesuffix("\\")))
    before = shown.pop(0).space if shown and shown[0].space else ""
    behind = shown.pop().space if shown and shown[-1].space else ""
    return before, shown, behind


def _laid_out(parts: Iterable[tuple[bool, str]], source: Sequence[_Part]) -> list[_Part]:
    """Return the parts of a translation; white space beside the same tag or line break is as in its source.

    If no space of the source has a meaning of its own, none of the translation has.
    """
    own = [_Part(each, is_tag) for is_tag, part in parts for each in ([part] if is_tag else _SPACE.findall(part))]
    if any(" " in part.text and not part.is_tag and not part.space for part in source):
        return own
    spaces = defaultdict[tuple[str, str], deque[str]](deque)
    for at, part in enumerate(source):
        if part.space:
            spaces[_beside(source, at)].append(part.space)
    spaces.pop(("", ""), None)
    for at, part in enumerate(own):
        if part == _Part(" "):
            beside = _beside(own, at)
            same = spaces.get(beside) or _with_one_side_of(spaces, beside)
            own[at] = _Part(" ", space=same.popleft() if same else " ")
    return own


def _with_one_side_of(spaces: Mapping[tuple[str, str], deque[str]], beside: tuple[str, str]) -> deque[str] | None:
    """Return what is left of the white space behind the same tag or line break, or else before it."""
    for side in (0, 1):
        for own, left in spaces.items():
            if left and own[side] == beside[side] != "":
                return left
    return None


def _beside(parts: Sequence[_Part], at: int) -> tuple[str, str]:
    """Return the tags or line breaks beside a part; an empty text for others."""
    before = _CODE_BEFORE.search("".join(part.text for part in parts[max(0, at - NEAR) : at]))
    behind = _CODE_BEHIND.match("".join(part.text for part in parts[at + 1 : at + 1 + NEAR]))
    return before[0] if before else "", behind[0] if behind else ""


def _spelled(xml: str) -> dict[str, str]:
    """Return the characters beyond ASCII that a text has as numbers alone, and how it writes them."""
    spelled = {_character(code): code for code in _NUMBER.findall(xml)}
    return {sign: raw for sign, raw in spelled.items() if not sign.isascii() and sign not in xml}


def _character(code: str) -> str:
    """Return the character of a number, such as \\u2026 or &#8230;."""
    if code.startswith("&"):
        return html.unescape(code)
    return bytes.fromhex(code.replace("\\u", "")).decode("utf-16-be", "replace")


def _quoted(text: str) -> str:
    """Return a text as XML between quotes, where white space and apostrophes are as they are."""
    return "".join("\\" + each if each in '\\"' else WRITTEN.get(each) or escaped(each) for each in text)


def _encoded(parts: Sequence[_Part], spelled: Mapping[str, str]) -> str:
    """Return parts as XML, in which texts are escaped so that Android shows them as they are."""
    before, left, encoded = "", sum(len(part.text) for part in parts if not part.is_tag), list[str]()
    for part in parts:
        if part.is_tag:
            encoded.append(part.text)
            continue
        for each in part.text:
            left -= 1
            if part.space:
                encoded.append(part.space)
            elif each == " " and (before in ("", " ") or not left):
                encoded.append("\\u0020")
            elif each in "\\'\"" or (each in "@?" and not before):
                encoded.append("\\" + each)
            else:
                encoded.append(WRITTEN.get(each) or spelled.get(each) or escaped(each))
            before = each
    return "".join(encoded)


def _quantities_of(code: str) -> list[str]:
    """Return the quantities that Android knows for a language, in their usual order."""
    from translate.lang.data import DECIMAL_EXTRA_TAGS, get_cldr_plural_tags

    base = Language.of(code).base
    known = {*get_cldr_plural_tags(base), *DECIMAL_EXTRA_TAGS.get(base, ()), "other"}
    return [each for each in QUANTITIES if each in known]
