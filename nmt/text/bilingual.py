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

CLASSES = {
    ".po": ("pypo", "pofile"),
    ".mo": ("mo", "mofile"),
    ".tmx": ("tmx", "tmxfile"),
    ".xliff": ("xliff", "Xliff1File"),
    ".xlf": ("xliff", "Xliff1File"),
    ".ts": ("ts2", "tsfile"),
}
"""Module and class of the toolkit by the ending of a file's name"""
LARGEST_FILE = 1 << 26  # bytes: their tree takes ten times as much memory
UNFINISHED = ("new", "needs-translation")  # states of XLIFF in which a target is not a translation yet
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
        self.path, self._suffix, self._target = path, path.suffix.lower(), languages[-1]
        name, kind = CLASSES[self._suffix]
        with open_input(path) as stream:
            self._raw = stream.read(LARGEST_FILE + 1)
        if len(self._raw) > LARGEST_FILE:
            raise UserError(f"{path}: has more than {LARGEST_FILE:,} bytes", "divide it into several files")
        try:
            from importlib import import_module

            self._store = getattr(import_module(f"translate.storage.{name}"), kind)()
        except ImportError as error:
            hint = "pip install 'nmtkit[files]' installs it"
            raise UserError(f"{path}: needs the package translate-toolkit: {error}", hint) from None
        try:
            if b"<!ENTITY" in self._raw.replace(b"\0", b""):
                raise ValueError("it declares entities")
            self._store.parse(self._raw)
            self.units = [*self._found(languages)]
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

    def _found(self, languages: Sequence[str]) -> Iterator[Unit]:
        if self._is_gettext:
            yield from self._of_gettext()
        elif self._suffix == ".ts":
            yield from self._of_ts()
        elif self._suffix == ".tmx":
            yield from self._of_tmx(*languages)
        else:
            yield from self._of_xliff()

    def string(self, source: str) -> ProgramString:
        """Take apart a source of this file."""
        from translate.lang.factory import getlanguage

        return ProgramString(source, self.accelerators, getlanguage(self._target).punctranslate)

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
                singular, plural = map(str, unit.source.strings)
                sources = [singular if count > 1 and form == rule(1) else plural for form in range(count)]
                targets = [*map(str, getattr(unit.target, "strings", targets))]
            write = partial(self._write_gettext, unit)
            yield Unit(sources, targets, unit.getcontext(), unit.isfuzzy(), write)

    def _plurals(self) -> tuple[int, Callable[[int], int]]:
        """Return the number of plural forms and their rule, by the header or, without one there, by the language."""
        from translate.lang.data import get_language

        count, rule = self._store.getheaderplural()
        if not (count and rule):
            _, count, rule = get_language(self._target) or ("", 2, "n != 1")
        return int(count), c2py(rule)

    @staticmethod
    def _write_gettext(unit: Any, forms: Sequence[str], review: bool) -> None:
        unit.target = list(forms) if unit.hasplural() else forms[0]
        unit.markfuzzy(review)

    # --- XML

    def _of_ts(self) -> Iterator[Unit]:
        for unit in self._store.units:
            message = unit.xmlelement
            source, target = message.find("source"), message.find("translation")
            if unit.isobsolete() or source is None or not _content(source).strip():
                continue
            if target is None:
                target = message.makeelement("translation")
                message.append(target)
            elements = [target]
            if message.get("numerus") == "yes":
                while len(target) < self._store.nplural():
                    target.append(target.makeelement("numerusform"))
                elements = [*target]
            marks = target, "type", "unfinished"
            write = partial(_write, source, elements, *marks)
            needs_review, sources = target.get("type") is not None, [_content(source)] * len(elements)
            yield Unit(sources, [*map(_content, elements)], unit.getcontext(), needs_review, write)

    def _of_xliff(self) -> Iterator[Unit]:
        for unit in self._store.units:
            element = unit.xmlelement
            source, target = (element.find(unit.namespaced(name)) for name in ("source", "target"))
            if source is None or not _content(source).strip() or not unit.istranslatable():
                continue
            state = target.get("state") if target is not None else "new"
            targets = ["" if state in UNFINISHED else _content(target)]
            needs_review = element.get("approved") == "no" or (state or "").startswith("needs-")
            write = partial(self._write_xliff, unit.namespaced("target"), source, target)
            yield Unit([_content(source)], targets, unit.getcontext(), needs_review, write)

    @staticmethod
    def _write_xliff(name: str, source: Any, target: Any, forms: Sequence[str], review: bool) -> None:
        if target is None:
            target = source.makeelement(name)
            _insert(target, source)
        if target.get("state") in UNFINISHED:
            del target.attrib["state"]
        _write(source, [target], target, "state", "needs-review-translation", forms, review)

    def _of_tmx(self, source: str, target: str) -> Iterator[Unit]:
        for unit in self._store.units:
            variants = unit.getlanguageNodes()
            one, other = (_of_language(variants, language) for language in (source, target))
            segment = None if one is None else one.find("seg")
            if segment is not None and _content(segment).strip():
                targets = [] if other is None else [_content(other.find("seg"))]
                write = partial(_write_tmx, one, other, target)
                yield Unit([_content(segment)], targets, unit.getcontext(), False, write)

    def content(self) -> bytes:
        """Return the file with all that was written to its units."""
        if self._is_gettext:
            return bytes(self._store)
        from lxml import etree
        from translate.misc.xml_helpers import extract_xml_prolog

        encoding = next((name for mark, name in UTF16.items() if self._raw.startswith(mark)), self._store.encoding)
        before, root = self._raw.decode(encoding), self._store.document.getroot()
        names = {*re.findall(r"<([\w:.-]+)[^<>]*(?<!/)></\1>", before)} - {*re.findall(r"<([\w:.-]+)[^<>]*/>", before)}
        for each in root.iter():
            if not len(each) and each.text is None and etree.QName(each).localname in names:
                each.text = ""  # <a></a> remains, which lxml would write as <a/>
        text = etree.tostring(root, encoding="unicode") + (before[len(before.rstrip()) :] or "\n")
        if "\r\n" in before:
            text = re.sub("\r?\n", "\r\n", text)
        self._store.encoding = encoding
        return bytes(extract_xml_prolog(self._raw) + self._store.serialize_hook(text))


def _of_language(variants: Sequence[Any], language: str) -> Any:
    """Return the variant in a language, such as en or, if there is none, its first kind, such as en-US."""
    names = [(each.get(_LANGUAGE) or each.get("lang") or "").replace("_", "-").lower() for each in variants]
    wanted = language.replace("_", "-").lower()
    found = [each for each, name in zip(variants, names, strict=True) if name == wanted]
    found += [each for each, name in zip(variants, names, strict=True) if name.partition("-")[0] == wanted]
    return found[0] if found else None


def _content(element: Any) -> str:
    """Return an element's text or, if it has elements inside, its XML."""
    if element is None or not len(element):
        return "" if element is None else element.text or ""
    from lxml import etree

    inside = "".join(etree.tostring(each, encoding="unicode") for each in element)
    return html.escape(element.text or "", quote=False) + _NAMESPACE.sub("", inside)


def _write(
    source: Any, elements: Sequence[Any], marked: Any, key: str, mark: str, forms: Sequence[str], review: bool
) -> None:
    """Fill elements with translations of `source`, as text or as XML, and set or remove the attribute `key`."""
    for element, text in zip(elements, forms, strict=True):
        _fill(element, text, len(source) > 0)
    if review:
        marked.set(key, mark)
    else:
        marked.attrib.pop(key, None)


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


def _write_tmx(one: Any, other: Any, language: str, forms: Sequence[str], review: bool) -> None:
    if other is None:
        other = deepcopy(one)
        other.attrib.clear()
        other.set(_LANGUAGE, language)
        other[:] = other.findall("seg")
        _insert(other, one)
    _fill(other.find("seg"), forms[0], len(one.find("seg")) > 0)
