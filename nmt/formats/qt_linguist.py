"""TS, the files of Qt Linguist: messages, their plural forms, and variants of different lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from nmt.formats.catalogs import numbers_of_qt
from nmt.formats.units import Origin, Unit, UnitFile, origin_of
from nmt.formats.xml_text import Element, XmlText, escaped

GONE = ("obsolete", "vanished")  # types of translations whose sources are no longer there
FOR_REVIEW = "unfinished"
NOTE = "nmt: "
"""How the line of a translator's comment begins that says where a translation comes from"""
BEFORE_NOTES = ("source", "oldsource", "comment", "oldcomment", "extracomment")
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
    """What holds the forms, or the variants of each"""

    @property
    def notes(self) -> str:
        """What translators say of it."""
        notes = self.message.child("translatorcomment")
        return notes.content() if notes else ""


class TsFile(UnitFile):
    """A TS file."""

    def __init__(self, raw: bytes, languages: Sequence[str]) -> None:
        """Read a file; raise ValueError, LookupError or ExpatError if it is none."""
        super().__init__()
        self._document = XmlText(raw)
        self.text, self.edits = self._document.text, self._document.edits
        root = self._document.root
        if root.base != "TS":
            raise ValueError(f"it begins with {root.tag[:60]}")
        self.language = root.get("language")
        self._numbers = numbers_of_qt(self.language or languages[-1])
        name = ""
        for element in root.below():
            if element.base == "message":
                self._read(element, name)
            elif element.base in ("context", "name"):
                name = element.content() if element.base == "name" else ""

    def keep(self, unit: Unit, other: Unit, is_reviewed: bool) -> None:
        """Give a unit the translation, the marks and the comments of `other`, as they are written there."""
        own, given, fill = unit.place, other.place, self._document.fill
        if given.target is None:
            return
        state = given.target.get("type") or None
        inside = self._document.in_newlines(given.target.inside)
        if own.target is None:
            mark = f' type="{state}"' if state else ""
            self._document.put_behind(own.source, f"<translation{mark}>{inside}</translation>")
        elif own.target not in own.forms and len(own.forms) == len(given.forms) > 0:
            for place, filled in zip(own.forms, given.forms, strict=True):
                fill(place, self._document.in_newlines(filled.inside))
            fill(own.target, None, type=state)
        else:
            fill(own.target, inside, type=state)
        lines = [line for line in given.notes.split("\n") if not (is_reviewed and line.startswith(NOTE))]
        unit.write = partial(self._write, own, lines)
        self._annotate(own, lines)

    def content(self) -> bytes:
        """Return the file with all that was written to its units."""
        return self._document.content()

    def _read(self, message: Element, context: str) -> None:
        source, target = message.child("source"), message.child("translation")
        state = target.get("type") if target else ""
        if source is None or not source.content().strip():
            if target and not target.has_text and state not in GONE and message.get("id"):
                self.unfilled.append(message.get("id"))
            return
        if state in GONE:
            return
        is_plural = message.get("numerus") == "yes"
        places = _places(target, is_plural)
        texts = [source.translation(place) for place in places]
        if is_plural and not places:
            texts = [""] * len(self._numbers)
        place = _Message(message, source, target, places)
        lines = place.notes.split("\n")
        sources = [source.content()] * len(texts or [""])
        write = partial(self._write, place, lines)
        unit = Unit(sources, texts, _context(message, context), state == FOR_REVIEW, write)
        unit.name, unit.start, unit.notes, unit.place = message.get("id"), message.start, place.notes, place
        unit.origin = next((origin_of(line.removeprefix(NOTE)) for line in lines if line.startswith(NOTE)), "")
        if is_plural and len(sources) == len(self._numbers):
            unit.numbers = self._numbers
        self.units.append(unit)

    def _write(
        self, place: _Message, notes: Sequence[str], texts: Sequence[str], review: bool, origin: Origin = ""
    ) -> None:
        """Write to the elements of the forms; without them, to new ones in the translation, behind the source."""
        source, target, places, state = place.source, place.target, place.forms, FOR_REVIEW if review else None
        forms = [self._document.as_xml(text, bool(source.children), ESCAPES) for text in texts]
        for each, text, xml in zip(places, texts, forms, strict=bool(places)):
            self._document.fill(each, each.inside if text and text == each.content() else xml)
        others = [line for line in notes if not line.startswith(NOTE)]
        self._annotate(place, [*others, *([NOTE + origin] if origin else [])])
        xml = forms[0]
        if place.message.get("numerus") == "yes":
            xml = "".join(f"<numerusform>{each}</numerusform>" for each in forms)
        if target is None:
            mark = f' type="{state}"' if state else ""
            self._document.put_behind(source, f"<translation{mark}>{xml}</translation>")
        elif not places:
            self._document.fill(target, xml, type=state)
        elif target in places:
            own = target.inside if texts[0] and texts[0] == target.content() else xml
            self._document.fill(target, own, type=state)
        else:
            self._document.fill(target, None, type=state)

    def _annotate(self, place: _Message, lines: Sequence[str]) -> None:
        """Set what translators say of a message."""
        text, own = "\n".join(filter(None, lines)), place.message.child("translatorcomment")
        xml = f"<translatorcomment>{escaped(text)}</translatorcomment>" if text else ""
        if own:
            self._document.replace(own, own.raw if text == own.content() else xml)
        elif text:
            last = [each for each in place.message.children if each.base in BEFORE_NOTES][-1]
            self._document.put_behind(last, xml, -1)


def _places(target: Element | None, is_plural: bool) -> list[Element]:
    """Return the elements that hold the forms of a translation, or the variants of each form."""
    if target is None:
        return []
    forms = [each for each in target.children if each.base == "numerusform"] if is_plural else [target]
    places = list[Element]()
    for form in forms:
        places += [each for each in form.children if each.base == "lengthvariant"] or [form]
    return places


def _context(message: Element, name: str) -> str:
    comment = message.child("comment")
    return "\n".join(filter(None, [name, comment.content() if comment else "", message.get("id")]))
