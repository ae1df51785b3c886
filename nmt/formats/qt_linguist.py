"""TS, the files of Qt Linguist: messages, their plural forms, and variants of different lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from nmt.formats.catalogs import numbers_of_qt
from nmt.formats.units import Origin, Unit, UnitFile, origin_of
from nmt.formats.xml_text import Element, XmlText, escaped, with_attribute

GONE = ("obsolete", "vanished")  # types of translations whose sources are no longer there
FOR_REVIEW = "unfinished"
NOTE = "nmt: "
"""How the line of a translator's comment begins that says where a translation comes from"""
BEFORE_NOTES = ("source", "oldsource", "comment", "oldcomment", "extracomment")  # stand before translatorcomment
ESCAPES = {each: f"&#x{each:x};" for each in range(0x80, 0x3001) if chr(each).isspace()}
ESCAPES |= {ord('"'): "&quot;", ord("'"): "&apos;"}
"""What Qt Linguist writes for characters beside those that XML needs"""


@dataclass(eq=False)
class _Message:
    """Where a message stands."""

    message: Element
    source: Element
    target: Element | None
    forms: Sequence[Element]
    """Elements of the plural forms or, for one form, the translation itself; or the length variants of each"""

    @property
    def notes(self) -> str:
        """What translators say of it."""
        notes = self.message.child("translatorcomment")
        return notes.content() if notes else ""


class TsFile(UnitFile):
    """A TS file."""

    def __init__(self, raw: bytes, languages: Sequence[str]) -> None:
        """Read a file; raise ValueError, LookupError or ExpatError if it is none."""
        self._document = XmlText(raw, "TS")
        super().__init__(self._document.text, self._document.edits)
        self.accelerator = "&"
        root = self._document.root
        _, target = languages
        self._numbers = numbers_of_qt(root.get("language") or target)
        context = ""
        for element in root.below():
            if element.base == "message":
                self._read(element, context)
            elif element.base == "context":
                context = ""
            elif element.base == "name":
                context = element.content()

    def keep(self, unit: Unit, other: Unit, is_reviewed: bool) -> None:
        """Give a unit the translation, the marks and the comments of `other`, as they are written there."""
        own = unit.place
        given = other.place
        if given.target is None:
            return
        state = given.target.get("type") or None
        inside = self._document.in_newlines(given.target.inside)
        if own.target is None:
            self._put_translation(own.source, inside, state)
        elif own.target not in own.forms and len(own.forms) == len(given.forms) > 0:
            for place, filled in zip(own.forms, given.forms, strict=True):
                self._document.fill(place, self._document.in_newlines(filled.inside))
            self._document.fill(own.target, None, type=state)
        else:
            self._document.fill(own.target, inside, type=state)
        lines = given.notes.split("\n")
        if is_reviewed:
            lines = _without_origin(lines)
        unit.write = partial(self._write, own, lines)
        self._annotate(own, lines)

    def content(self) -> bytes:
        """Return the file with all that was written to its units."""
        return self._document.content()

    def _read(self, message: Element, context: str) -> None:
        """Read a message unless its source is gone."""
        source = message.child("source")
        target = message.child("translation")
        name = message.get("id")
        state = target.get("type") if target else ""
        if state in GONE:
            return
        if source is None or not source.content().strip():
            if name and target and not target.has_text:
                self.unfilled.append(name)
            return
        is_plural = message.get("numerus") == "yes"
        forms = _forms(target, is_plural)
        texts = [source.translation(form) for form in forms]
        if is_plural and not forms:
            texts = [""] * len(self._numbers)
        sources = [source.content()] * max(1, len(texts))
        place = _Message(message, source, target, forms)
        lines = place.notes.split("\n")
        write = partial(self._write, place, lines)
        unit = Unit(sources, texts, _context(message, context), state == FOR_REVIEW, write)
        unit.name = name
        unit.start = message.start
        unit.notes = place.notes
        unit.place = place
        unit.origin = _origin_in(lines)
        if is_plural and len(sources) == len(self._numbers):
            unit.numbers = self._numbers
        self.units.append(unit)

    def _write(
        self, place: _Message, notes: Sequence[str], texts: Sequence[str], review: bool, origin: Origin = ""
    ) -> None:
        """Write to the elements of the forms; without them, to new ones in the translation, behind the source."""
        target = place.target
        state = FOR_REVIEW if review else None
        is_xml = bool(place.source.children)
        forms = [self._document.as_xml(text, is_xml, ESCAPES) for text in texts]
        for element, text, xml in zip(place.forms, texts, forms, strict=bool(place.forms)):
            if text and text == element.content():
                xml = element.inside
            if element is target:
                self._document.fill(element, xml, type=state)
            else:
                self._document.fill(element, xml)
        lines = _without_origin(notes)
        if origin:
            lines.append(NOTE + origin)
        self._annotate(place, lines)
        inside = forms[0]
        if place.message.get("numerus") == "yes":
            inside = "".join(f"<numerusform>{form}</numerusform>" for form in forms)
        if target is None:
            self._put_translation(place.source, inside, state)
        elif not place.forms:
            self._document.fill(target, inside, type=state)
        elif target not in place.forms:
            self._document.fill(target, None, type=state)

    def _put_translation(self, source: Element, inside: str, state: str | None) -> None:
        tag = with_attribute("<translation>", "type", state)
        self._document.put_behind(source, f"{tag}{inside}</translation>")

    def _annotate(self, place: _Message, lines: Sequence[str]) -> None:
        """Set what translators say of a message."""
        text = "\n".join(filter(None, lines))
        present = place.message.child("translatorcomment")
        xml = ""
        if present and text == present.content():
            xml = present.raw
        elif text:
            xml = f"<translatorcomment>{escaped(text)}</translatorcomment>"
        if present:
            self._document.replace(present, xml)
        elif text:
            last = [each for each in place.message.children if each.base in BEFORE_NOTES][-1]
            self._document.put_behind(last, xml, -1)


def _forms(target: Element | None, is_plural: bool) -> list[Element]:
    """Return the elements that hold the forms of a translation, or the variants of each form."""
    if target is None:
        return []
    forms = target.named("numerusform") if is_plural else [target]
    found: list[Element] = []
    for form in forms:
        found += form.named("lengthvariant") or [form]
    return found


def _context(message: Element, name: str) -> str:
    comment = message.child("comment")
    parts = [name, comment.content() if comment else "", message.get("id")]
    return "\n".join(filter(None, parts))


def _origin_in(lines: Sequence[str]) -> Origin:
    for line in lines:
        if line.startswith(NOTE):
            return origin_of(line.removeprefix(NOTE))
    return ""


def _without_origin(lines: Sequence[str]) -> list[str]:
    return [line for line in lines if not line.startswith(NOTE)]
