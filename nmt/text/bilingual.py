"""Files that translators work on: PO, MO, XLIFF 1.2, TMX, Qt's TS and Android's strings.xml, by the Translate Toolkit.

The toolkit, of the extra `files`, is imported when such a file is opened. Its parsers neither expand entities nor
read other files; a file that declares entities is refused. What is written to XML replaces exactly the translations.
"""

from __future__ import annotations

import html
import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from gettext import c2py
from pathlib import Path
from typing import Any, NamedTuple
from xml.parsers.expat import ParserCreate

from nmt.system.compression import open_input
from nmt.system.errors import UserError
from nmt.text.strings import Accelerators, ProgramString, plain_pairs

LARGEST_FILE = 1 << 26  # bytes: their tree takes ten times as much memory
MOST_FORMS = 6  # of plurals, as Arabic has
UNTRANSLATED = ("new", "needs-translation")  # states of XLIFF in which a target is not a translation yet
XLIFF_MARKS = "target", "state", "needs-review-translation"
XML_MARKS = {".ts": ("translation", "type", "unfinished"), ".xlf": XLIFF_MARKS, ".xliff": XLIFF_MARKS}
"""Names of the element for a translation and of its attribute that says what state this is in, and the state "for
review", by the ending of a file's name"""
UTF16 = {BOM_UTF16_LE: "utf-16-le", BOM_UTF16_BE: "utf-16-be"}
INDENT = "    "  # of Android's files
MOST_SPACE = 1000  # bytes before an element
_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"


@dataclass(eq=False)
class Unit:
    """A translation unit: the source of each form of its translation, and the forms, which may be empty or missing."""

    sources: Sequence[str]
    targets: Sequence[str]
    context: str
    needs_review: bool
    write: Callable[[Sequence[str], bool], None]
    """Set the forms, and mark them for review or not; raise ValueError or SyntaxError if they cannot be written"""

    @property
    def is_open(self) -> bool:
        """Whether it is not translated yet."""
        return not any(self.targets)

    def context_of(self, form: int) -> str:
        """Return the context of a form of the translation."""
        return f"{self.context}\4{form}" if len(self.sources) > 1 else self.context


class _Change(NamedTuple):
    """What replaces an element, or follows it; its tag may stay as it is written."""

    element: Any
    follows: bool = False
    has_tag: bool = True


class BilingualFile:
    """A file of translation units."""

    def __init__(self, path: Path, languages: Sequence[str]) -> None:
        """Read a file in the languages source and target; raise UserError if it is unreadable, or not what its name
        says."""
        self.path, self._suffix, self._languages = path, path.suffix.lower(), languages
        with open_input(path) as stream:
            self._raw = stream.read(LARGEST_FILE + 1)
        if len(self._raw) > LARGEST_FILE:
            raise UserError(f"{path}: has more than {LARGEST_FILE:,} bytes", "divide it into several files")
        try:
            from translate.storage.aresource import AndroidResourceFile
            from translate.storage.factory import getclass

            self._store = AndroidResourceFile() if self._suffix == ".xml" else getclass(f"a{self._suffix}")()
        except ImportError as error:
            hint = "pip install 'nmtkit[files]' installs it"
            raise UserError(f"{path}: needs the package translate-toolkit: {error}", hint) from None
        try:
            if b"<!ENTITY" in self._raw.replace(b"\0", b""):
                raise ValueError("it declares entities")
            self._store.parse(self._raw)
            self.units = [*(self._of_gettext() if self._is_gettext else self._of_xml())]
        except Exception as error:  # of many types
            reason = " ".join(str(error).split())[:200] or "it is of another kind"
            hint = "see that it is complete, in the encoding that it names, and of the format that its name says"
            raise UserError(f"{path}: cannot be read as {self._suffix}: {reason}", hint) from None
        declared = self._store.parseheader().get("X-Accelerator-Marker", "") if self._is_gettext else ""
        marked = () if self._suffix == ".xml" else self.units
        sources = (source for unit in marked for source in unit.sources)
        self.accelerators = Accelerators(sources, declared.strip() or "&" * (self._suffix == ".ts"))

    @property
    def _is_gettext(self) -> bool:
        return self._suffix in (".po", ".mo")

    def string(self, source: str) -> ProgramString:
        """Take apart a source of this file."""
        from translate.lang.factory import getlanguage

        return ProgramString(source, self.accelerators, getlanguage(self._languages[-1]).punctranslate)

    def pairs(self) -> Iterator[tuple[str, ...]]:
        """Yield sources and translations as a model sees them, without those that need review."""
        for unit in self.units:
            if not unit.needs_review:
                for source, target in zip(unit.sources, unit.targets, strict=False):
                    if target:
                        yield from plain_pairs(source, target, self.accelerators)

    # --- gettext

    def _of_gettext(self) -> Iterator[Unit]:
        if not self._store.parseheader():
            raise ValueError("it has no header, which names its encoding")
        count, rule = self._plurals()
        for unit in self._store.units:
            if unit.isheader() or unit.isobsolete() or not unit.source:
                continue
            sources, targets = [str(unit.source)], [str(unit.target)]
            if unit.hasplural():
                one, many = map(str, unit.source.strings)
                sources = [_source_of(form, one, many, count, rule) for form in range(count)]
                targets = [*map(str, getattr(unit.target, "strings", targets))]
            write = partial(self._write_gettext, unit)
            yield Unit(sources, targets, unit.getcontext(), unit.isfuzzy(), write)

    def _plurals(self) -> tuple[int, Callable[[int], int]]:
        """Return the number of plural forms and their rule, by the header or, without one there, by the language."""
        from translate.lang.data import get_language

        count, rule = self._store.getheaderplural()
        if not (count and rule):
            _, count, rule = get_language(self._languages[-1]) or ("", 2, "n != 1")
        if not 0 < int(count) <= MOST_FORMS:
            raise ValueError(f"it has {count} plural forms")
        return int(count), c2py(rule)

    @staticmethod
    def _write_gettext(unit: Any, forms: Sequence[str], review: bool) -> None:
        unit.target = list(forms) if unit.hasplural() else forms[0]
        unit.markfuzzy(review)

    # --- XML

    def _of_xml(self) -> Iterator[Unit]:
        self._elements = [*self._store.document.getroot().iter("*")]
        self._changes = dict[Any, _Change]()  # by elements of the file
        if self._suffix == ".xml":
            yield from self._of_android()
            return
        is_tmx = self._suffix == ".tmx"
        for unit in self._store.units:
            element = unit.xmlelement
            if is_tmx:
                one, target = (_of_language(unit.getlanguageNodes(), self._languages[side]) for side in (0, -1))
                source, key, mark = None if one is None else one.find("seg"), "", ""
            else:
                name, key, mark = XML_MARKS[self._suffix]
                one = source = element.find(unit.namespaced("source"))
                target = element.find(unit.namespaced(name))
            if source is None or not _content(source).strip() or not (is_tmx or unit.istranslatable()):
                continue
            old = one if target is None else target
            if target is None and is_tmx:
                target = _variant(one, self._languages[-1])
            elif target is None:
                target = source.makeelement(unit.namespaced(name), nsmap=source.nsmap)
            elements = [target.find("seg") if is_tmx else target]
            if element.get("numerus") == "yes":
                elements = target[:] or [target.makeelement("numerusform") for _ in range(self._store.nplural())]
                target[:] = elements
            state = (key and target.get(key)) or ""
            texts = ["" if state in UNTRANSLATED else _content(each) for each in elements]
            needs_review = element.get("approved") == "no" or state.startswith(("needs-", "unfinished"))
            if is_tmx and old is target:
                old = target = elements[0]
            write = partial(self._write_xml, old, source, target, elements, (key, mark))
            yield Unit([_content(source)] * len(elements), texts, unit.getcontext(), needs_review, write)

    def _write_xml(
        self,
        old: Any,
        source: Any,
        target: Any,
        elements: Sequence[Any],
        state: tuple[str, str],
        forms: Sequence[str],
        review: bool,
    ) -> None:
        """Fill elements of `target`, which is `old` or follows it, with translations: text or XML, as `source` is.

        Set or remove the attribute `state`, if it has a name.
        """
        for element, text in zip(elements, forms, strict=True):
            _fill(element, text, source)
        before = dict(target.attrib)
        if review and state[0]:
            target.set(*state)
        else:
            target.attrib.pop(state[0] or "state", None)
        self._changes[old] = _Change(target, old is not target, before == target.attrib)

    def _of_android(self) -> Iterator[Unit]:
        """Yield the strings to translate: they have no translation yet, which is to replace them."""
        texts = [[*map(str, getattr(unit.target, "strings", [unit.target]))] for unit in self._store.units]
        self._store.settargetlanguage(self._languages[-1])
        tags = self._store.get_plural_tags()
        for unit, forms in zip(self._store.units, texts, strict=True):
            if unit.istranslatable() and all(map(str.strip, forms)):
                if unit.xmlelement.tag == unit.PLURAL_TAG:
                    forms = [forms[0 if tag == "one" else -1] for tag in tags]
                write = partial(self._write_android, unit, unit.xmlelement)
                yield Unit(forms, [""] * len(forms), unit.getcontext(), False, write)

    def _write_android(self, unit: Any, old: Any, forms: Sequence[str], _: bool) -> None:
        from lxml import etree

        unit.target = [*forms] if old.tag == unit.PLURAL_TAG else forms[0]
        if old.tag == unit.PLURAL_TAG:
            etree.indent(old, INDENT, level=1)
        self._changes[old] = _Change(unit.xmlelement)

    def content(self) -> bytes:
        """Return the file with all that was written to its units."""
        if self._is_gettext:
            return bytes(self._store)
        encoding = next((name for mark, name in UTF16.items() if self._raw.startswith(mark)), self._store.encoding)
        before = self._raw.decode(encoding)
        data, newline, self._store.encoding = before.encode(), "\r\n" if "\r\n" in before else "\n", "utf-8"
        parts, at = list[bytes](), 0
        for old, (start, inner, stop, end) in zip(self._elements, _places(data), strict=True):
            if change := self._changes.get(old):
                text = self._xml(change.element, old).replace("\n", newline).encode()
                if change.follows:
                    space = re.search(rb"\s*\Z", data[max(0, start - MOST_SPACE) : start])
                    start, text = end, (space[0] if space else b"") + text
                elif change.has_tag and inner < end:
                    _, first, last, _ = _places(text)[0]
                    start, end, text = inner, stop, text[first:last]
                parts += [data[at:start], text]
                at = end
        return b"".join([*parts, data[at:]]).decode().encode(encoding, "xmlcharrefreplace")

    def _xml(self, element: Any, old: Any) -> str:
        """Return an element as it is written in the place of `old`, or behind it."""
        from lxml import etree

        text = etree.tostring(element, encoding="unicode", with_tail=False)
        around = (old if element.getparent() is None else element).getparent()
        for each in _namespaces(around):
            text = text.replace(each, "")
        return str(self._store.serialize_hook(f"{text}\n"), "utf-8")[:-1]


def _places(data: bytes) -> list[list[int]]:
    """Return where the elements of an XML document in UTF-8 are, in order.

    That is the start of each one, of what it has inside, the end of this, and its own.
    """
    places, opened, parser = list[list[int]](), list[list[int]](), ParserCreate("utf-8")

    def come(*_: Any) -> None:
        if places and len(places[-1]) == 1:
            places[-1].append(parser.CurrentByteIndex)

    def begin(*_: Any) -> None:
        come()
        places.append([parser.CurrentByteIndex])
        opened.append(places[-1])

    def end(*_: Any) -> None:
        come()
        at, place = parser.CurrentByteIndex, opened.pop()
        is_empty = place[1] == at and data.startswith(b"/>", at - 2)
        place += [at, at if is_empty else data.index(b">", at) + 1]

    parser.StartElementHandler, parser.EndElementHandler, parser.DefaultHandler = begin, end, come
    parser.Parse(data, True)
    return places


def _source_of(form: int, singular: str, plural: str, count: int, rule: Callable[[int], int]) -> str:
    """Return the source of a plural form: the singular for that of one thing, if it fits all numbers of the form."""
    is_alone = [number for number in range(200) if rule(number) == form] == [1]
    return singular if count > 1 and form == rule(1) and (is_alone or re.search("[%{]", singular)) else plural


def _of_language(variants: Sequence[Any], language: str) -> Any:
    """Return the variant in a language, such as en or, if there is none, its first kind, such as en-US."""
    names = [(each.get(_LANGUAGE) or each.get("lang") or "").replace("_", "-").lower() for each in variants]
    wanted = language.replace("_", "-").lower()
    found = [names, [name.partition("-")[0] for name in names]]
    return next((variants[every.index(wanted)] for every in found if wanted in every), None)


def _variant(one: Any, language: str) -> Any:
    """Return a copy of a variant for another language, with its text alone."""
    other = deepcopy(one)
    other.attrib.clear()
    other.set(_LANGUAGE, language)
    other[:] = other.findall("seg")
    other[0].clear(keep_tail=True)
    return other


def _content(element: Any) -> str:
    """Return an element's text or, if it has elements inside, its XML."""
    if element is None or not len(element):
        return "" if element is None else element.text or ""
    from lxml import etree

    inside = "".join(etree.tostring(each, encoding="unicode") for each in element)
    for each in _namespaces(element):
        inside = inside.replace(each, "")
    return html.escape(element.text or "", quote=False) + inside


def _fill(element: Any, text: str, source: Any) -> None:
    """Give an element a content, which is XML if its source has elements inside."""
    if is_xml := len(source) > 0:
        from translate.misc.xml_helpers import parse_xml

        parsed = parse_xml(f"<x{''.join(_namespaces(source))}>{text}</x>")
    element[:] = parsed if is_xml else []
    element.text = parsed.text if is_xml else text


def _namespaces(element: Any) -> list[str]:
    """Return the declarations of the namespaces that an element knows, as XML has them."""
    names = ((f":{prefix}" if prefix else "", html.escape(name)) for prefix, name in element.nsmap.items())
    return [f' xmlns{prefix}="{name}"' for prefix, name in names]
