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
from nmt.formats.units import Numbers, Origin, Unit, UnitFile, Write
from nmt.formats.xml_text import Element, XmlText, escaped, parts_of, with_attribute
from nmt.text.language_codes import Language

QUANTITIES = ("zero", "one", "two", "few", "many", "other")
REFERENCE = re.compile(
    r"[ \t\r\n]*(?:@[+*]?(?:[\w.]+:)?\w+/\w[\w.]*|@null|@empty|\?(?:[\w.]+:)?(?:\w+/)?\w[\w.]*)[ \t\r\n]*"
)
"""A whole value that stands for another one, such as @android:string/ok or ?attr/name"""
ESCAPES = {"n": "\n", "t": "\t"}  # what stands for a letter behind a backslash
WRITTEN = {"\n": "\\n", "\t": "\\t"}
NEAR = 20  # parts beside white space in which a tag is looked for
_SECTION = re.compile(r"(\s*)<!\[CDATA\[((?:(?!\]\]>).)*)\]\]>(\s*)", re.DOTALL)
_CODE = r"\\u[dD][89abAB][\da-fA-F]{2}\\u[dD][c-fC-F][\da-fA-F]{2}|\\u[\da-fA-F]{4}"
_HTML = r"</?[A-Za-z][^<>]*>"  # a tag that is text to XML
_SIGN = re.compile(
    rf'({_HTML})|({_CODE})|\\(.)|(")|([ \t\r\n\f\v]+)|((?:[^<\\" \t\r\n\f\v]|<(?!{_HTML[1:]}))+|\\)', re.DOTALL
)
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
    written: str = ""
    """How a file has a tag that is text to XML"""


class AndroidFile(UnitFile):
    """A file of resources. It has one language, so all its strings are to be translated, in their places."""

    def __init__(self, raw: bytes, languages: Sequence[str]) -> None:
        """Read a file; raise ValueError, LookupError or ExpatError if it is none."""
        self._document = XmlText(raw, "resources")
        super().__init__(self._document.text, self._document.edits)
        _, target = languages
        self._quantities = _quantities_of(target)
        self._numbers = numbers_of_quantities(target)
        for element in self._document.root.children:
            if element.inherited("translatable") != "false":
                self._read(element)

    def keep(self, unit: Unit, other: Unit, is_reviewed: bool) -> None:
        """Give a unit the text of `other`, as it is written there."""
        self._document.fill(unit.place, self._document.in_newlines(other.place.inside))

    def content(self) -> bytes:
        """Return the file with all that was written to its units."""
        return self._document.content()

    def _read(self, element: Element) -> None:
        kind = element.base
        name = element.get("name")
        if kind == "string" or (kind == "item" and element.get("type") == "string"):
            self._add([element], name, element, partial(self._write_one, element))
        elif kind == "string-array":
            for number, item in enumerate(element.children):
                self._add([item], f"{name}[{number}]", item, partial(self._write_one, item))
        elif kind == "plurals":
            self._read_plurals(element, name)
        elif kind == "array":  # of anything, such as numbers: nothing says what is text
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
            unit.name = context
            unit.start = place.start
            unit.place = place
            self.units.append(unit)

    def _read_plurals(self, element: Element, name: str) -> None:
        """Read plurals in the target language's quantities; one that is not there, or not for all its numbers, has the
        source of `other`."""
        items = _by_quantity(element)
        if not items:
            return
        last = items.get("other") or next(reversed(items.values()))
        sources: dict[str, Element] = {}
        keys = []  # of those with a text
        for key in self._quantities:
            source = items.get(key, last)
            numbers = self._numbers.get(key, ())
            if numbers and _is_text(source) and not fits_all(numbers, _content(source), _content(last)):
                source = last
            sources[key] = source
            if _is_text(source):
                keys.append(key)
        texts = [sources[key] for key in keys]
        numbers_of_texts = [self._numbers.get(key, ()) for key in keys]
        write = partial(self._write_plurals, element, sources, keys)
        self._add(texts, name, element, write, numbers_of_texts)

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
        for key, text in zip(keys, texts, strict=True):
            insides[key] = self._inside(sources[key], text)
        present = _by_quantity(element)
        if present.keys() == insides.keys():
            for key in keys:
                self._document.fill(present[key], insides[key])
            return
        before: dict[str, str] = {}
        end = element.inner
        for key, item in present.items():
            before[key] = self._document.text[end : item.start]
            end = item.end
        first = next(iter(before.values()))
        space = first[: len(first) - len(first.lstrip())]
        xml = ""
        for key, source in sources.items():
            tag = with_attribute(source.tag, "quantity", key)
            xml += f"{before.get(key, space)}{tag}{insides[key]}</{source.name}>"
        self._document.fill(element, xml + self._document.text[end : element.stop])

    def _inside(self, source: Element, text: str) -> str:
        """Return the XML of a translation; that of the source if it is the same text."""
        if text == _content(source):
            return source.inside
        before, shown, behind = _shown(source.inside)
        if _QUOTED.fullmatch(source.inside.strip()):
            return self._document.as_xml(f'{before}"{_quoted(text)}"{behind}', is_xml=True)
        parts: Iterable[tuple[bool, str]] = [(False, text)]
        if _has_tags(shown):
            parts = _parts_of(text)
        encoded = _encoded(_laid_out(parts, shown), _spelled(source.inside))
        xml = self._document.as_xml(before + encoded + behind, is_xml=True)
        section = _SECTION.fullmatch(source.inside)
        if section and "]]&gt;" not in xml:
            return f"{section[1]}<![CDATA[{html.unescape(xml)}]]>{section[3]}"
        return xml


def _is_text(element: Element) -> bool:
    """Return whether an element holds a text, and not nothing or a reference."""
    return element.content().strip() != "" and not REFERENCE.fullmatch(element.content())


def _by_quantity(plurals: Element) -> dict[str, Element]:
    return {item.get("quantity"): item for item in plurals.children}


def _content(element: Element) -> str:
    """Return a text as Android shows it, which is XML if there are tags in it."""
    _, shown, _ = _shown(element.inside)
    if not _has_tags(shown):
        return _text(shown)
    return "".join(part.text if part.is_tag else escaped(part.text) for part in shown)


def _has_tags(parts: Sequence[_Part]) -> bool:
    return any(part.is_tag for part in parts)


def _text(parts: Sequence[_Part]) -> str:
    return "".join(part.text for part in parts)


def _parts_of(xml: str) -> Iterator[tuple[bool, str]]:
    """Yield the tags of XML, comments and elements that are copied, each with True, and the texts with False."""
    xml = xml.replace("\r\n", "\n")
    section = _SECTION.fullmatch(xml)
    if section:
        yield False, section[2]
        return
    if "<" not in xml or "<![CDATA[" in xml:  # nothing is copied
        yield from parts_of(xml, as_written=True)
        return
    between = ""
    for token in tokens_of(xml):
        if token.kind == "copy":
            yield from parts_of(between, as_written=True)
            yield True, token.raw
            between = ""
        else:
            between += token.raw
    yield from parts_of(between, as_written=True)


def _shown(xml: str) -> tuple[str, list[_Part], str]:
    """Return parts without escapes and quotes, and the white space at both ends, which is not shown.

    Outside quotes, white space between two texts or tags is one space. Tags inside text keep the quotes of their
    attributes, which many a program needs, though Android drops them.
    """
    shown: list[_Part] = []
    is_quoted = False
    for is_tag, part in _parts_of(xml):
        if is_tag:
            shown.append(_Part(part, is_tag=True))
            continue
        for tag, code, sign, quote, space, text in _SIGN.findall(part):
            if tag:
                shown.append(_Part(_html_tag(tag), written=escaped(tag)))
            elif quote:
                is_quoted = not is_quoted
            elif space and not is_quoted:
                shown.append(_Part(" ", space=space))
            elif code:
                shown.append(_Part(_character(code)))
            else:
                shown.append(_Part(ESCAPES.get(sign, sign) + space + text.removesuffix("\\")))
    before = behind = ""
    if shown and shown[0].space:
        before = shown.pop(0).space
    if shown and shown[-1].space:
        behind = shown.pop().space
    return before, shown, behind


def _html_tag(written: str) -> str:
    """Return a tag inside text as it is without escapes."""
    return re.sub(r"\\(.)", r"\1", " ".join(written.split()))


def _laid_out(parts: Iterable[tuple[bool, str]], source: Sequence[_Part]) -> list[_Part]:
    """Return the parts of a translation; white space beside the same tag or line break is as in its source.

    If no space of the source has a meaning of its own, none of the translation has.
    """
    own: list[_Part] = []
    written: defaultdict[str, deque[str]] = defaultdict(deque)
    for part in source:
        if part.written:
            written[part.text].append(part.written)
    for is_tag, text in parts:
        if is_tag:
            own.append(_Part(text, is_tag=True))
        else:
            own += _pieces_of(text, written)
    spaces: defaultdict[tuple[str, str], deque[str]] = defaultdict(deque)
    for at, part in enumerate(source):
        if part.space:
            spaces[_beside(source, at)].append(part.space)
        elif " " in part.text and not (part.is_tag or part.written):
            return own
    spaces.pop(("", ""), None)
    for at, part in enumerate(own):
        if part == _Part(" "):
            beside = _beside(own, at)
            same = spaces.get(beside) or _with_one_side_of(spaces, beside)
            space = same.popleft() if same else " "
            own[at] = _Part(" ", space=space)
    return own


def _pieces_of(text: str, written: Mapping[str, deque[str]]) -> Iterator[_Part]:
    """Yield spaces, the texts between them, and tags that are text to XML, as `written` has them."""
    for piece in re.split(f"({_HTML})", text):
        if written.get(piece):
            yield _Part(piece, written=written[piece].popleft())
        else:
            yield from map(_Part, _SPACE.findall(piece))


def _with_one_side_of(spaces: Mapping[tuple[str, str], deque[str]], beside: tuple[str, str]) -> deque[str] | None:
    """Return what is left of the white space behind the same tag or line break, or else before it."""
    for side in (0, 1):
        for own, left in spaces.items():
            if left and own[side] == beside[side] != "":
                return left
    return None


def _beside(parts: Sequence[_Part], at: int) -> tuple[str, str]:
    """Return the tags or line breaks beside a part; an empty text for others."""
    before = _CODE_BEFORE.search(_text(parts[max(0, at - NEAR) : at]))
    behind = _CODE_BEHIND.match(_text(parts[at + 1 : at + 1 + NEAR]))
    return before[0] if before else "", behind[0] if behind else ""


def _spelled(xml: str) -> dict[str, str]:
    """Return the characters beyond ASCII that a text has as numbers alone, and how it writes them."""
    spelled = {}
    for code in _NUMBER.findall(xml):
        sign = _character(code)
        if not sign.isascii() and sign not in xml:
            spelled[sign] = code
    return spelled


def _character(code: str) -> str:
    """Return the character of a number, such as \\u2026 or &#8230;."""
    if code.startswith("&"):
        return html.unescape(code)
    return bytes.fromhex(code.replace("\\u", "")).decode("utf-16-be", "replace")


def _quoted(text: str) -> str:
    """Return a text as XML between quotes, where white space and apostrophes are as they are."""
    quoted = ""
    for each in text:
        if each in '\\"':
            quoted += "\\" + each
        else:
            quoted += WRITTEN.get(each) or escaped(each)
    return quoted


def _encoded(parts: Sequence[_Part], spelled: Mapping[str, str]) -> str:
    """Return parts as XML, in which texts are escaped so that Android shows them as they are."""
    encoded = []
    before = ""  # the last character
    left = len("".join(part.text for part in parts if not part.is_tag))
    for part in parts:
        if part.is_tag or part.written:
            encoded.append(part.written or part.text)
            if part.written:
                left -= len(part.text)
                before = ">"
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
