"""Files that translators work on: PO, MO, XLIFF 1.2, TMX and Qt's TS, read and written by the Translate Toolkit.

The toolkit, of the extra `files`, is imported when such a file is opened. Its parsers neither expand entities nor
read other files; a file that declares entities is refused.
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
from typing import Any

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
_NAMESPACE = re.compile(r" xmlns(?::[\w.-]+)?=\"[^\"]*\"")
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
            from translate.storage.factory import getclass

            self._store = getclass(f"a{self._suffix}")()
        except ImportError as error:
            hint = "pip install 'nmtkit[files]' installs it"
            raise UserError(f"{path}: needs the package translate-toolkit: {error}", hint) from None
        try:
            if b"<!ENTITY" in self._raw.replace(b"\0", b""):
                raise ValueError("it declares entities")
            self._store.parse(self._raw)
            self.units = [*(self._of_gettext() if self._is_gettext else self._of_xml())]
        except Exception as error:  # of many types
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            hint = "see that it is complete, in the encoding that it names, and of the format that its name says"
            raise UserError(f"{path}: cannot be read as {self._suffix}: {reason}", hint) from None
        declared = self._store.parseheader().get("X-Accelerator-Marker", "") if self._is_gettext else ""
        sources = (source for unit in self.units for source in unit.sources)
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
            if target is None:
                target = _variant(one, self._languages[-1]) if is_tmx else source.makeelement(unit.namespaced(name))
            elements = [target.find("seg") if is_tmx else target]
            if element.get("numerus") == "yes":
                elements = target[:] or [target.makeelement("numerusform") for _ in range(self._store.nplural())]
                target[:] = elements
            state = (key and target.get(key)) or ""
            texts = ["" if state in UNTRANSLATED else _content(each) for each in elements]
            needs_review = element.get("approved") == "no" or state.startswith(("needs-", "unfinished"))
            write = partial(_write, one, source, target, elements, key, mark)
            yield Unit([_content(source)] * len(elements), texts, unit.getcontext(), needs_review, write)

    def content(self) -> bytes:
        """Return the file with all that was written to its units."""
        if self._is_gettext:
            return bytes(self._store)
        from lxml import etree
        from translate.misc.xml_helpers import extract_xml_prolog

        encoding = next((name for mark, name in UTF16.items() if self._raw.startswith(mark)), self._store.encoding)
        before, root = self._raw.decode(encoding), self._store.document.getroot()
        names = {*re.findall(r"<([\w:.-]+)[^<>]*(?<!/)></\1>", before)} - {*re.findall(r"<([\w:.-]+)[^<>]*/>", before)}
        for each in root.iter("*"):
            if not len(each) and each.text is None and etree.QName(each).localname in names:
                each.text = ""  # <a></a> remains, which lxml would write as <a/>
        text = etree.tostring(root, encoding="unicode") + (before[len(before.rstrip()) :] or "\n")
        if "\r\n" in before:
            text = re.sub("\r?\n", "\r\n", text)
        text = text.encode(encoding, "xmlcharrefreplace").decode(encoding)
        self._store.encoding = encoding
        return bytes(extract_xml_prolog(self._raw) + self._store.serialize_hook(text))


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
    _fill(other[0], "", False)
    return other


def _content(element: Any) -> str:
    """Return an element's text or, if it has elements inside, its XML."""
    if element is None or not len(element):
        return "" if element is None else element.text or ""
    from lxml import etree

    inside = "".join(etree.tostring(each, encoding="unicode") for each in element)
    return html.escape(element.text or "", quote=False) + _NAMESPACE.sub("", inside)


def _write(
    one: Any, source: Any, target: Any, elements: Sequence[Any], key: str, mark: str, forms: Sequence[str], review: bool
) -> None:
    """Fill elements of `target`, which may be a new one behind `one`, with translations of `source`.

    They are text or XML, as the source is. Set or remove the attribute `key`, if there is one.
    """
    for element, text in zip(elements, forms, strict=True):
        _fill(element, text, len(source) > 0)
    if target.getparent() is None:
        _insert(target, one)
    if key and review:
        target.set(key, mark)
    elif key:
        target.attrib.pop(key, None)


def _fill(element: Any, text: str, is_xml: bool) -> None:
    if is_xml:
        from translate.misc.xml_helpers import parse_xml

        names = "".join(f' xmlns{prefix and ":"}{prefix or ""}="{name}"' for prefix, name in element.nsmap.items())
        parsed = parse_xml(f"<x{names}>{text}</x>")
    element[:] = parsed if is_xml else []
    element.text = parsed.text if is_xml else text


def _insert(element: Any, before: Any) -> None:
    """Insert an element right after the one `before`, indented alike."""
    parent, previous = before.getparent(), before.getprevious()
    element.tail = before.tail
    if before.getnext() is None:
        before.tail = parent.text if previous is None else previous.tail
    parent.insert(parent.index(before) + 1, element)
