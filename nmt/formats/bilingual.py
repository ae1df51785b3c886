"""Files that translators work on: PO, MO, XLIFF 1.2, TMX, Qt's TS and Android's strings.xml, by the Translate Toolkit.

The toolkit, of the extra `files`, is imported when such a file is opened. Its parsers neither expand entities nor
read other files; a file that declares entities is refused. What is written to XML replaces exactly the translations.
"""

from __future__ import annotations

import html
import re
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from gettext import c2py
from pathlib import Path
from typing import Any
from xml.parsers.expat import ParserCreate

from nmt.formats.catalogs import catalog_of, known_code, plural_forms
from nmt.formats.declared import check_kind, check_language, content_of, ending_of, kind_of
from nmt.formats.strings import Accelerators, ProgramString, plain_pairs
from nmt.system.errors import UserError
from nmt.text.language_codes import Language

MOST_FORMS = 6  # of plurals, as Arabic has
UNTRANSLATED = ("new", "needs-translation")  # states of XLIFF in which a target is not a translation yet
XLIFF_MARKS = "target", "state", "needs-review-translation"
TS_MARKS = "translation", "type", "unfinished"
XML_MARKS = {".tmx": ("", "", ""), ".ts": TS_MARKS, ".xlf": XLIFF_MARKS}
"""Names of the element for a translation and of its attribute that says what state this is in, and the state "for
review", by the format"""
INDENT = "    "  # of Android's files
_ATTRIBUTE = re.compile(r"\s+[\w:.-]+\s*=\s*(?:\"[^\"]*\"|'[^']*')")
_CHARSET = re.compile(r'("Content-Type:[^"]*charset=\s*)([\w.:-]+)')
_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"


@dataclass(eq=False)
class Unit:
    """A translation unit: the source of each form of its translation, and the forms, which may be empty or missing."""

    sources: Sequence[str]
    targets: Sequence[str]
    context: str
    needs_review: bool
    write: Callable[[Sequence[str], bool], None]
    """Set the forms, and mark them for review or not; raise ValueError or ExpatError if they cannot be written"""

    @property
    def is_open(self) -> bool:
        """Whether it is not translated yet."""
        return not any(self.targets)

    def context_of(self, form: int) -> str:
        """Return the context of a form of the translation."""
        return f"{self.context}\4{form}" if len(self.sources) > 1 else self.context


class BilingualFile:
    """A file of translation units; of a TMX, `lacking` units have no variant in one of the languages, `complete`
    ones have both, and `codes` are those of all variants, in lower case, each with how it is written."""

    def __init__(self, path: Path, languages: Sequence[str]) -> None:
        """Read a file in the languages source and target; raise UserError if it is unreadable, or not what its name
        says."""
        self.path, self._suffix, self._languages = path, kind_of(path), languages
        self.lacking, self.complete, self.codes = 0, 0, dict[str, str]()
        self._target, self._raw = Language.of(languages[-1]), content_of(path)
        check_kind(path, self._raw, self._suffix)
        try:
            from translate.storage.aresource import AndroidResourceFile
            from translate.storage.factory import getclass

            self._store = AndroidResourceFile() if self._suffix == ".xml" else getclass(f"a{self._suffix}")()
        except ImportError as error:
            hint = "pip install 'nmtkit[files]' installs it"
            raise UserError(f"{path}: needs the package translate-toolkit: {error}", hint) from None
        try:
            if ending_of(path) == ".pot":
                self._raw = catalog_of(self._raw, languages[-1])
            if b"<!ENTITY" in self._raw.replace(b"\0", b""):
                raise ValueError("it declares entities; write what they stand for")
            self._store.parse(self._in_utf_8() if self._suffix == ".po" else self._raw)
            self.units = [*(self._of_gettext() if self._is_gettext else self._of_xml())]
        except Exception as error:  # of many types
            reason = " ".join(str(error).split())[:200] or "it is of another kind"
            hint = "see that it is complete, in the encoding that it names, and of the format of its name"
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

        return ProgramString(source, self.accelerators, getlanguage(self._target.tag).punctranslate)

    def pairs(self) -> Iterator[tuple[str, ...]]:
        """Yield sources and translations as a model sees them, without those that need review."""
        for unit in self.units:
            if not unit.needs_review:
                for source, target in zip(unit.sources, unit.targets, strict=False):
                    if target:
                        yield from plain_pairs(source, target, self.accelerators)

    def check_language(self) -> None:
        """Raise UserError if the file declares another language than it was opened for."""
        check_language(self.path, self._raw, self._suffix, self._languages)

    # --- gettext

    def _in_utf_8(self) -> bytes:
        """Return the file in UTF-8, as its header then says: the toolkit reads some other encodings as Latin-1."""
        found = _CHARSET.search(self._raw.decode("latin-1"))
        self._charset = found[2] if found else "UTF-8"
        self._encoding = "UTF-8" if self._charset == "CHARSET" else self._charset
        return _CHARSET.sub(r"\1UTF-8", self._raw.decode(self._encoding), count=1).encode()

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
        count, rule = self._store.getheaderplural()
        if not (count and rule):
            count, rule = plural_forms(self._languages[-1])
        if not 0 < int(count) <= MOST_FORMS:
            raise ValueError(f"it has {count} plural forms")
        return int(count), c2py(rule)

    @staticmethod
    def _write_gettext(unit: Any, forms: Sequence[str], review: bool) -> None:
        unit.target = list(forms) if unit.hasplural() else forms[0]
        unit.markfuzzy(review)

    # --- XML

    def _of_xml(self) -> Iterator[Unit]:
        from translate.storage.ts2 import OUTPUT_TRANS

        elements = self._store.document.getroot().iter("*")
        self._elements = [each for each in elements if each.sourceline]  # not a body that the toolkit adds
        self._inside, self._behind, self._marks = dict[Any, str](), dict[Any, str](), dict[Any, str]()
        self._escapes = {ord("\r"): "&#13;"} | (OUTPUT_TRANS if self._suffix == ".ts" else {})
        self._newline = "\r\n" if b"\r\n" in self._raw.replace(b"\0", b"") else "\n"
        if self._suffix == ".xml":
            yield from self._of_android()
            return
        name, key, _ = XML_MARKS[self._suffix]
        if self._suffix == ".ts" and not self._store.header.get("language"):
            self._store.settargetlanguage(
                known_code(self._languages[-1])
            )  # for the number of plural forms; it is not written
        for unit in self._store.units:
            element = unit.xmlelement
            if self._suffix == ".tmx":
                variants = dict[str, Any]()
                for each in unit.getlanguageNodes():
                    variants.setdefault(_code(_language_of(each)), each)
                codes = _codes_of(self._languages, [code for code in variants if code])
                pair = [variants[code] if code else None for code in codes]
                self.codes |= {code: _language_of(each) for code, each in variants.items() if code}
                self.lacking += None in pair
                self.complete += None not in pair
                source, target = (None if each is None else each.find("seg") for each in pair)
            else:
                source, target = (element.find(unit.namespaced(each)) for each in ("source", name))
            if source is None or not _content(source).strip() or not (unit.istranslatable() or not key):
                continue
            forms, state = [target], (target is not None and key and target.get(key)) or ""
            if element.get("numerus") == "yes":
                forms = ([] if target is None else target[:]) or [None] * self._store.nplural()
            texts = ["" if state in UNTRANSLATED else _content(each) for each in forms]
            needs_review = element.get("approved") == "no" or state.startswith(("needs-", "unfinished"))
            write = partial(self._write_xml, source, target, forms)
            yield Unit([_content(source)] * len(forms), texts, unit.getcontext(), needs_review, write)

    def _write_xml(self, source: Any, target: Any, forms: Sequence[Any], texts: Sequence[str], review: bool) -> None:
        """Note what to write into the elements of the forms or, if there are none, into `target` or behind the source.

        Texts are XML if the source has elements inside.
        """
        if not len(source):
            texts = [html.escape(text, quote=False).translate(self._escapes) for text in texts]
        texts = [text.replace("\n", self._newline) for text in texts]
        _places(f"<x>{''.join(texts)}</x>")
        _, key, mark = XML_MARKS[self._suffix]
        if forms[0] is None and source.getparent().get("numerus"):
            texts = ["".join(f"<numerusform>{text}</numerusform>" for text in texts)]
        place = target
        if target is None:
            segmented = source.getnext() if key else None  # the source again, which stands between the two
            is_next = segmented is not None and str(segmented.tag).endswith("seg-source")
            place = segmented if is_next else source if key else source.getparent()
            self._behind[place] = texts[0]
        else:
            self._inside |= zip([target] if forms[0] is None else forms, texts, strict=True)
        if key and (target is None or (target.get(key) or "") != (mark if review else "")):
            self._marks[place] = f' {key}="{mark}"' if review else ""

    def _of_android(self) -> Iterator[Unit]:
        """Yield the strings to translate: they have no translation yet, which is to replace them."""
        texts = [[*map(str, getattr(unit.target, "strings", [unit.target]))] for unit in self._store.units]
        self._store.settargetlanguage(self._target.base)
        tags = self._store.get_plural_tags()
        for unit, forms in zip(self._store.units, texts, strict=True):
            if unit.istranslatable() and all(map(str.strip, forms)):
                if is_plural := unit.xmlelement.tag == unit.PLURAL_TAG:
                    forms = [forms[0 if tag == "one" else -1] for tag in tags]
                write = partial(self._write_android, unit, unit.xmlelement, is_plural)
                yield Unit(forms, [""] * len(forms), unit.getcontext(), False, write)

    def _write_android(self, unit: Any, element: Any, is_plural: bool, forms: Sequence[str], _: bool) -> None:
        from lxml import etree

        unit.target = [*forms] if is_plural else forms[0]
        if is_plural:
            etree.indent(element, INDENT, level=1)
        self._inside[element] = _inside(unit.xmlelement).replace("\n", self._newline)

    def content(self) -> bytes:
        """Return the file with all that was written to its units."""
        if self._is_gettext:
            written = "\ufeff" * self._raw.startswith(BOM_UTF8) + bytes(self._store).decode()
            try:
                return _CHARSET.sub(rf"\g<1>{self._charset}", written, count=1).encode(self._encoding)
            except UnicodeEncodeError:  # the translations have characters that the file's encoding lacks
                return written.encode()
        encodings = {BOM_UTF16_LE: "utf-16-le", BOM_UTF16_BE: "utf-16-be"}
        encoding = encodings.get(self._raw[:2], self._store.encoding)
        before = self._raw.decode(encoding)
        text = before.removeprefix("\ufeff")
        parts, at = [before[: -len(text)]], 0
        for element, (start, inner, stop, end) in zip(self._elements, _places(text), strict=True):
            if element in self._behind:
                space = text[at:start][len(text[at:start].rstrip()) :]
                parts += [text[at:end], space, self._follower(element, text[start:end])]
                at = end
            elif element in self._inside or element in self._marks:
                tag = text[start:inner]
                if element in self._marks or inner == end:
                    tag = self._start(tag, self._marks.get(element))
                parts += [text[at:start], tag]
                at = inner
            if element in self._inside:
                parts += [self._inside[element], f"</{_name(tag)}>" * (inner == end)]
                at = stop
        return "".join([*parts, text[at:]]).encode(encoding, "xmlcharrefreplace")

    def _start(self, tag: str, mark: str | None) -> str:
        """Return a start tag, with `mark` as the state of its translation unless it is None."""
        kept = _ATTRIBUTE.findall(tag)
        if mark is not None:
            kept = [each for each in kept if each.partition("=")[0].strip() != XML_MARKS[self._suffix][1]] + [mark]
        return f"<{_name(tag)}{''.join(kept)}>"

    def _follower(self, element: Any, raw: str) -> str:
        """Return the translation that follows an element, whose XML is `raw`: a target or, in TMX, a variant."""
        translation = self._behind[element]
        if self._suffix == ".tmx":
            around = re.findall(r"(\s*)<seg\b.*</seg\s*>(\s*)", raw, re.DOTALL)[0]
            own = (code for code in self.codes.values() if Language.of(code).is_same(self._target))
            code = next(own, self._target.tag)  # as other units have it
            return f'<tuv xml:lang="{code}">{f"<seg>{translation}</seg>".join(around)}</tuv>'
        name = "".join(_name(raw).rpartition(":")[:2]) + XML_MARKS[self._suffix][0]
        return f"<{name}{self._marks[element]}>{translation}</{name}>"


def _places(text: str) -> list[list[int]]:
    """Return where the elements of an XML document are, in order; raise ExpatError if it is not well-formed.

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
        is_empty = place[1] == at and text.startswith("/>", at - 2)
        place += [at, at if is_empty else text.index(">", at) + 1]

    parser.StartElementHandler, parser.EndElementHandler, parser.DefaultHandler = begin, end, come
    parser.Parse(re.sub(r"[^\0-\x7f]", "_", text), True)  # a byte for a character
    return places


def _name(tag: str) -> str:
    """Return the name of the element that begins with `tag`."""
    return re.split(r"[\s/>]", tag[1:], maxsplit=1)[0]


def _source_of(form: int, singular: str, plural: str, count: int, rule: Callable[[int], int]) -> str:
    """Return the source of a plural form: the singular for that of one thing, if it fits all numbers of the form."""
    is_alone = [number for number in range(200) if rule(number) == form] == [1]
    return singular if count > 1 and form == rule(1) and (is_alone or re.search("[%{]", singular)) else plural


def _language_of(variant: Any) -> str:
    return variant.get(_LANGUAGE) or variant.get("lang") or ""


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


def _content(element: Any) -> str:
    """Return an element's text or, if it has elements inside, its XML."""
    if element is None or not len(element):
        return "" if element is None else element.text or ""
    return _inside(element)


def _inside(element: Any) -> str:
    from lxml import etree

    text = str(etree.tostring(element, encoding="unicode", with_tail=False))
    return text[text.index(">") + 1 : text.rindex("<")]
