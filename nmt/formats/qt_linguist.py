"""TS, the files of Qt Linguist: messages, their plural forms, and variants of different lengths."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from nmt.formats.catalogs import numbers_of_qt
from nmt.formats.units import Unit, UnitFile
from nmt.formats.xml_text import Element, XmlText

GONE = ("obsolete", "vanished")  # types of translations whose sources are no longer there
FOR_REVIEW = "unfinished"
ESCAPES = {each: f"&#x{each:x};" for each in range(0x80, 0x3001) if chr(each).isspace()}
ESCAPES |= {ord('"'): "&quot;", ord("'"): "&apos;"}
"""What Qt Linguist writes for characters beside those that XML needs"""


class TsFile(UnitFile):
    """A TS file."""

    def __init__(self, raw: bytes, languages: Sequence[str]) -> None:
        """Read a file; raise ValueError, LookupError or ExpatError if it is none."""
        super().__init__()
        self._document = XmlText(raw)
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
        write = partial(self._write, source, target, places)
        sources = [source.content()] * len(texts or [""])
        unit = Unit(sources, texts, _context(message, context), state == FOR_REVIEW, write)
        if is_plural and len(sources) == len(self._numbers):
            unit.numbers = self._numbers
        self.units.append(unit)

    def _write(
        self, source: Element, target: Element | None, places: Sequence[Element], texts: Sequence[str], review: bool
    ) -> None:
        """Write to the elements of the forms; without them, to new ones in the translation, behind the source."""
        message, state = source.parent, FOR_REVIEW if review else None
        forms = [self._document.as_xml(text, bool(source.children), ESCAPES) for text in texts]
        for place, xml in zip(places, forms, strict=bool(places)):
            self._document.fill(place, xml)
        xml = forms[0]
        if message and message.get("numerus") == "yes":
            xml = "".join(f"<numerusform>{each}</numerusform>" for each in forms)
        if target is None:
            mark = f' type="{state}"' if state else ""
            self._document.put_behind(source, f"<translation{mark}>{xml}</translation>")
        elif target in places or not places:
            self._document.fill(target, xml, type=state)
        else:
            self._document.fill(target, None, type=state)


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
