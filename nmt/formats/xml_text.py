"""XML as it is written: where elements stand in the text, what they hold, and changes that leave all else as it is.

It knows nothing of formats but the codes of XLIFF and TMX, whose content is no text.
"""

from __future__ import annotations

import html
import re
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any
from xml.parsers.expat import ParserCreate

from nmt.formats.units import Edits

MARKS = {BOM_UTF8: "utf-8", BOM_UTF16_LE: "utf-16-le", BOM_UTF16_BE: "utf-16-be"}
"""Byte order marks, and the encodings that they stand for"""
MOST_DEEP = 256  # elements inside each other
_DECLARATION = re.compile(rb"<\?xml\b[^>]*?\sencoding\s*=\s*[\"']([\w.:-]+)")
_ATTRIBUTE = re.compile(r"(?<!\s)\s++([\w:.-]++)\s*+=\s*+(\"[^\"]*\"|'[^']*')")
_INSIDE_TAG = r"(?:[^\"'>]|\"[^\"]*\"|'[^']*')*+"
_PART = re.compile(
    r"<!\[CDATA\[(?P<characters>.*?)\]\]>|<!--.*?-->|<\?.*?\?>|(?P<text>[^<]+)"
    rf"|(?P<bare><(?P<name>[^\s/>]++){_INSIDE_TAG})(?<!/)></(?P=name)\s*>|(?P<tag><{_INSIDE_TAG}>)",
    re.DOTALL,
)
_SECTION = re.compile(r"(\s*)<!\[CDATA\[(?:(?!\]\]>).)*\]\]>(\s*)", re.DOTALL)
_CODE = re.compile(r"</?(?:\w+:)?(?:bpt|ept|ph|it|ut)\b")
"""Elements of XLIFF and TMX that hold codes of another format"""
_KEPT = re.compile(rf"{_CODE.pattern}|<(?:\w+:)?mrk\b[^>]*\bmtype\s*=\s*[\"'](?:x-)?protected")
_REFERENCE = re.compile(r"&(?:#x([0-9a-fA-F]+)|#([0-9]+)|\w+);")
_WRAPPED = re.compile(r"(?<![ \t\r\n])[ \t\r\n]*\n[ \t]+")


@dataclass(eq=False, slots=True)
class Element:
    """An element, by offsets in its document.

    Its start tag is from `start` to `inner`, and its end tag from `stop` to `end`; that is empty for <a/>.
    """

    document: str = field(repr=False)
    name: str
    """With its prefix; letters beyond ASCII are underscores"""
    parent: Element | None = field(repr=False)
    start: int
    inner: int = -1
    stop: int = -1
    end: int = -1
    children: list[Element] = field(default_factory=list, repr=False)

    @property
    def tag(self) -> str:
        """The start tag, as it is written."""
        return self.document[self.start : self.inner]

    @property
    def raw(self) -> str:
        """All of it, as it is written."""
        return self.document[self.start : self.end]

    @property
    def inside(self) -> str:
        """The XML inside, as it is written."""
        return self.document[self.inner : self.stop]

    @property
    def is_empty(self) -> bool:
        """Whether it is one tag, such as <a/>."""
        return self.inner == self.end

    @property
    def base(self) -> str:
        """The name without its prefix."""
        return self.name.rpartition(":")[2]

    @property
    def prefix(self) -> str:
        """The prefix of the name, with its colon; an empty one if there is none."""
        return self.name[: -len(self.base)]

    @property
    def attributes(self) -> dict[str, str]:
        """The values of its attributes."""
        return {name: _unescaped(quoted[1:-1]) for name, quoted in _ATTRIBUTE.findall(self.tag)}

    def get(self, key: str) -> str:
        """Return the value of an attribute; an empty one if it is not there."""
        if key not in self.tag:  # as in most
            return ""
        return self.attributes.get(key, "")

    def inherited(self, key: str) -> str:
        """Return the value of an attribute that holds for all that is inside: of the nearest element that has it."""
        element: Element | None = self
        while element is not None:
            value = element.get(key)
            if value:
                return value
            element = element.parent
        return ""

    def child(self, base: str) -> Element | None:
        """Return the first child of this name in the namespace of this element, by its prefix; None without one."""
        name = self.prefix + base
        for each in self.children:
            if each.name == name:
                return each
        return None

    def named(self, base: str) -> list[Element]:
        """Return the children of this name, whatever its prefix."""
        return [each for each in self.children if each.base == base]

    def below(self) -> Iterator[Element]:
        """Yield the elements inside, in the order of the document."""
        waiting = [*reversed(self.children)]
        while waiting:
            element = waiting.pop()
            yield element
            waiting += reversed(element.children)

    @property
    def has_text(self) -> bool:
        """Whether there is more inside than elements, the codes that these hold, and white space."""
        depth = 0
        for is_tag, text in parts_of(self.inside):
            if not is_tag:
                if not depth and text.strip():
                    return True
            elif _CODE.match(text):
                if text.startswith("</"):
                    depth -= 1
                elif not text.endswith("/>"):
                    depth += 1
        return False

    def content(self, may_wrap: bool = False) -> str:
        """Return the text inside, which is XML if there are elements in it.

        If it may be wrapped, a line break with an indentation behind it is a space, unless `xml:space` preserves it.
        """
        is_wrapped = may_wrap and self.inherited("xml:space") != "preserve"
        texts = []
        kept: list[bool] = []  # of the elements that are open
        for is_tag, text in parts_of(self.inside):
            if is_tag and text.startswith("</"):
                kept.pop()
            elif is_tag and not text.endswith("/>"):
                kept.append(_KEPT.match(text) is not None)
            elif not is_tag:
                if is_wrapped and not any(kept):
                    text = _WRAPPED.sub(" ", text)
                if self.children:
                    text = escaped(text)
            texts.append(text)
        return "".join(texts)

    def translation(self, target: Element | None, may_wrap: bool = False) -> str:
        """Return the content of a target of this source; nothing if it has only elements or spaces for words."""
        if target is None or (self.has_text and not target.has_text):
            return ""
        return target.content(may_wrap)


class XmlText:
    """An XML document and the changes to it."""

    def __init__(self, raw: bytes, root: str) -> None:
        """Read a document whose root element has the name `root`.

        Raise ValueError, LookupError or ExpatError if it is none, or declares entities.
        """
        self._raw = raw
        self._mark = b""
        self._encoding = "utf-8"
        declared = _DECLARATION.match(raw)
        if declared:
            self._encoding = declared[1].decode()
        for mark, encoding in MARKS.items():
            if raw.startswith(mark):
                self._mark = mark
                self._encoding = encoding
        self.text = raw[len(self._mark) :].decode(self._encoding)
        self.edits = Edits()
        if "<!ENTITY" in self.text:
            raise ValueError("it declares entities; write what they stand for")
        self.root = _parsed(self.text)
        if self.root.base != root:
            raise ValueError(f"it begins with {self.root.tag[:60]}")
        self.newline = "\r\n" if "\r\n" in self.text else "\n"

    def fill(self, element: Element, xml: str | None, **attributes: str | None) -> None:
        """Replace what is inside an element, unless it is None, and set attributes; those that are None go.

        `_` in their names stands for `-`.
        """
        tag = element.tag
        for key, value in attributes.items():
            tag = with_attribute(tag, key.replace("_", "-"), value)
        if xml is not None and element.is_empty:
            filled = f"{tag.removesuffix('/>').rstrip()}>{xml}</{_name(tag)}>"
            self.edits.replace(element.start, element.end, filled)
            return
        self.edits.replace(element.start, element.inner, tag)
        if xml is not None:
            self.edits.replace(element.inner, element.stop, xml)

    def put_behind(self, element: Element, xml: str, order: int = 0) -> None:
        """Put XML behind an element, with the white space that is before this; `order` as in `Edits.replace`."""
        self.edits.replace(element.end, element.end, self._space_before(element) + xml, order)

    def replace(self, element: Element, xml: str) -> None:
        """Put XML in place of an element; if there is none, the white space before it goes, too."""
        space = self._space_before(element)
        if xml:
            xml = space + xml
        self.edits.replace(element.start - len(space), element.end, xml, 1)

    def put_before(self, element: Element, xml: str) -> None:
        """Put XML before an element, with the white space that is before this."""
        if xml:
            xml += self._space_before(element)
        self.edits.replace(element.start, element.start, xml, -1)

    def _space_before(self, element: Element) -> str:
        start = element.start
        while start and self.text[start - 1].isspace():
            start -= 1
        return self.text[start : element.start]

    def in_newlines(self, xml: str) -> str:
        """Return XML of another document with the line ends of this one."""
        return xml.replace("\r\n", "\n").replace("\n", self.newline)

    def translated(self, source: Element, text: str) -> str:
        """Return the XML of a translation of a source that may be wrapped; that of the source if it is the same."""
        if text == source.content(may_wrap=True):
            return source.inside
        xml = self.as_xml(text, bool(source.children))
        section = _SECTION.fullmatch(source.inside)
        if section and not ("]]>" in text or "\r" in text):
            return f"{section[1]}<![CDATA[{text.replace(chr(10), self.newline)}]]>{section[2]}"
        return xml

    def as_xml(self, text: str, is_xml: bool, escapes: Mapping[int, str] = MappingProxyType({})) -> str:
        """Return the XML of a text, with the line ends of the document; raise ExpatError if it is not well-formed."""
        xml = text if is_xml else escaped(text).translate(escapes)
        xml = xml.replace("\n", self.newline)
        _parsed(f"<x>{xml}</x>")
        return xml

    def content(self) -> bytes:
        """Return the document with the changes."""
        text = self.edits.applied(self.text)
        if text == self.text:
            return self._raw
        return self._mark + text.encode(self._encoding, "xmlcharrefreplace")


def parts_of(xml: str, as_written: bool = False) -> Iterator[tuple[bool, str]]:
    """Yield the tags of XML as they are written, each with True, and the texts with False.

    Without `as_written`, comments and instructions go, and <x></x> is one tag, <x/>.
    """
    xml = xml.replace("\r\n", "\n")
    if "<" not in xml and "&" not in xml:  # as in most
        if xml:
            yield False, xml
        return
    for part in _PART.finditer(xml):
        if part["tag"]:
            yield True, part["tag"]
        elif part["bare"]:
            yield True, part[0] if as_written else part["bare"] + "/>"
        elif part["text"]:
            yield False, _unescaped(part["text"])
        elif part["characters"]:
            yield False, part["characters"]
        elif as_written and part["characters"] is None:
            yield True, part[0]


def _unescaped(text: str) -> str:
    """Return a text with what references stand for; unlike in HTML, numbers from 128 to 159 mean themselves."""
    return _REFERENCE.sub(_character, text) if "&" in text else text


def _character(reference: re.Match[str]) -> str:
    hexadecimal, decimal = reference.groups()
    if hexadecimal:
        return chr(int(hexadecimal, 16))
    if decimal:
        return chr(int(decimal))
    return html.unescape(reference[0])


def escaped(text: str) -> str:
    """Return a text as XML."""
    return html.escape(text, quote=False).replace("\r", "&#13;")


def _name(tag: str) -> str:
    return re.split(r"[\s/>]", tag[1:], maxsplit=1)[0]


def with_attribute(tag: str, key: str, value: str | None) -> str:
    """Return a start tag with an attribute in its place or, if it has none, at the end; without it if it is None."""
    if value is not None:
        value = html.escape(value)
    for found in _ATTRIBUTE.finditer(tag):
        if found[1] == key and value is None:
            return tag[: found.start()] + tag[found.end() :]
        if found[1] == key:
            return f"{tag[: found.start(2) + 1]}{value}{tag[found.end(2) - 1 :]}"
    if value is None:
        return tag
    opening = tag.removesuffix(">").removesuffix("/").rstrip()
    return f'{opening} {key}="{value}"{tag[len(opening) :]}'


def _parsed(text: str) -> Element:
    """Return the root element of a document; raise ExpatError if this is not well-formed."""
    parser = ParserCreate("utf-8")
    top = Element(text, "", None, 0, inner=0)
    opened = [top]
    last = top

    def come(*_: Any) -> None:  # at what follows the last start tag, whatever it is
        if last.inner < 0:
            last.inner = parser.CurrentByteIndex

    def begin(name: str, _: Any) -> None:
        nonlocal last
        come()
        parent = opened[-1]
        if len(opened) > MOST_DEEP:
            raise ValueError(f"its elements are inside each other more than {MOST_DEEP} deep")
        element = Element(text, name, None if parent is top else parent, parser.CurrentByteIndex)
        parent.children.append(element)
        opened.append(element)
        last = element

    def end(*_: Any) -> None:
        come()
        element = opened.pop()
        at = parser.CurrentByteIndex
        is_empty = element.inner == at and text.startswith("/>", at - 2)
        element.stop = at
        element.end = at if is_empty else text.index(">", at) + 1

    parser.StartElementHandler = begin
    parser.EndElementHandler = end
    parser.DefaultHandler = come
    parser.Parse(re.sub(r"[^\0-\x7f]", "_", text), True)  # a byte for a character
    (root,) = top.children
    root.parent = None
    return root
