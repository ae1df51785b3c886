"""XLIFF 1.2: the translation units, or the segments of those that are divided, with their states."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from nmt.formats.units import Origin, Unit, UnitFile, Write
from nmt.formats.xml_text import Element, XmlText, parts_of

UNTRANSLATED = ("new", "needs-translation")  # states in which a target is not a translation yet
FOR_REVIEW = "needs-review-translation"
QUALIFIERS: Mapping[Origin, str] = {"memory": "exact-match", "near memory": "fuzzy-match", "model": "mt-suggestion"}
"""What `state-qualifier` says of the origins"""
Put = Callable[[str | None, str, str], None]
"""Sets the XML inside a target or a segment, unless it is None, and the state of the target and its qualifier"""


@dataclass(eq=False)
class _Place:
    """Where a unit or a segment stands."""

    element: Element
    """The unit, or that of the segment"""
    holder: Element | None
    """What holds its translation"""
    put: Put


class XliffFile(UnitFile):
    """A file of XLIFF 1.2."""

    def __init__(self, raw: bytes, _: Sequence[str]) -> None:
        """Read a file; raise ValueError, LookupError or ExpatError if it is none."""
        super().__init__()
        self._document = XmlText(raw)
        self.text, self.edits = self._document.text, self._document.edits
        root = self._document.root
        if root.base != "xliff" or root.get("version").startswith("2"):
            raise ValueError(f"it begins with {root.tag[:60]}")
        self.language = next((each.get("target-language") for each in root.children if each.base == "file"), "")
        self._read(())

    def _read(self, whole: Collection[str]) -> None:
        """Read the units, without dividing those with names in `whole`."""
        elements = (each for each in self._document.root.below() if each.base == "trans-unit")
        self.units = [unit for each in elements for unit in self._units(each, each.get("id") in whole)]

    def divide_as(self, other: XliffFile) -> None:
        """Do not divide units that have an undivided translation in another version of the file.

        Some programs write one to a unit that had segments.
        """
        places = [unit.place for unit in other.units if unit.targets[0]]
        self._read({each.element.get("id") for each in places if each.holder is each.element.child("target")} - {""})

    def keep(self, unit: Unit, other: Unit, is_reviewed: bool) -> None:
        """Give a unit the translation, the marks and the comments of `other`, as they are written there."""
        own, given = unit.place, other.place
        target = given.element.child("target")
        if target is None or given.holder is None:
            return
        qualifier = "" if is_reviewed else target.get("state-qualifier")
        own.put(self._document.in_newlines(given.holder.inside), target.get("state"), qualifier)
        self._document.fill(own.element, None, approved=given.element.get("approved") or None)
        notes = [note for note in _notes(given.element) if note not in _notes(own.element)]
        if notes:
            self._document.put_behind(own.element.children[-1], self._document.in_newlines("".join(notes)), 1)

    def content(self) -> bytes:
        """Return the file with all that was written to its units."""
        return self._document.content()

    def _units(self, element: Element, is_whole: bool) -> Iterator[Unit]:
        source, target = element.child("source"), element.child("target")
        if source is None or not source.content().strip() or element.inherited("translate") == "no":
            return
        state = target.get("state") if target else ""
        qualifier = target.get("state-qualifier") if target else ""
        is_new = state in UNTRANSLATED
        needs_review = element.get("approved") == "no" or state.startswith("needs-")
        places, written = _marked(target), dict[str, str]()
        segments = {} if is_whole else _segments(element, is_new)
        found: list[tuple[str, Element, _Place, Write]] = []
        for key, each in segments.items():
            put = partial(self._put_segment, element, places, written, key)
            found.append((key, each, _Place(element, places.get(key), put), partial(self._write, element, each, put)))
        if not segments:
            put = partial(self._set_target, element)
            found.append(("", source, _Place(element, target, put), partial(self._write, element, source, put)))
        for key, each, place, write in found:
            unit = Unit(
                [each.content(may_wrap=True)], [_translation(each, place.holder, is_new)], "", needs_review, write
            )
            unit.name, unit.place = " ".join(filter(None, [element.get("id"), key])), place
            unit.start = each.start
            unit.notes = "\n".join([state, qualifier, element.get("approved"), *_notes(element)])
            unit.origin = next((origin for origin, said in QUALIFIERS.items() if said == qualifier), "")
            yield unit

    def _write(
        self, element: Element, source: Element, put: Put, texts: Sequence[str], review: bool, origin: Origin = ""
    ) -> None:
        """Write a translation, which nobody has approved of."""
        put(self._document.translated(source, texts[0]), FOR_REVIEW if review else "", QUALIFIERS.get(origin, ""))
        if element.get("approved"):
            self._document.fill(element, None, approved="no" if review else None)

    def _put_segment(
        self,
        element: Element,
        places: Mapping[str, Element],
        written: dict[str, str],
        key: str,
        xml: str | None,
        state: str,
        qualifier: str,
    ) -> None:
        """Put a segment in its place in the target; divide this as the source is if places are missing there."""
        divided = element.child("seg-source")
        assert divided is not None
        segments = _marked(divided)
        written[key] = xml or ""
        if places.keys() >= segments.keys():
            self._document.fill(places[key], written[key])
            self._set_target(element, None, state, qualifier)
            return
        parts, at = list[str](), divided.inner
        for each, segment in segments.items():
            own = places[each].inside if each in places else ""
            if not segment.is_empty:
                parts += [self._document.text[at : segment.inner], written.get(each, own)]
                at = segment.stop
        self._set_target(element, "".join([*parts, self._document.text[at : divided.stop]]), state, qualifier)

    def _set_target(self, element: Element, xml: str | None, state: str, qualifier: str) -> None:
        """Set the state of a target and, unless it is None, the inside."""
        target = element.child("target")
        if target is not None:
            self._document.fill(target, xml, state=state or None, state_qualifier=qualifier or None)
        else:
            last = element.child("seg-source") or element.child("source")
            assert last is not None
            marks = {"state": state, "state-qualifier": qualifier}
            mark = "".join(f' {key}="{value}"' for key, value in marks.items() if value)
            name = f"{last.prefix}target"
            self._document.put_behind(last, f"<{name}{mark}>{xml or ''}</{name}>")


def _notes(element: Element) -> list[str]:
    """Return the notes of a unit, as they are written."""
    return [each.raw for each in element.children if each.base == "note"]


def _segments(element: Element, is_new: bool) -> dict[str, Element]:
    """Return the segments of a unit that is divided into such; none if its target has an undivided translation."""
    divided, source, target = (element.child(name) for name in ("seg-source", "source", "target"))
    segments = {key: each for key, each in _marked(divided).items() if each.content().strip()}
    is_whole = target is not None and target.has_text and not is_new and not _marked(target)
    if source is None or is_whole or _bare("".join(map(_text, segments.values()))) != _bare(_text(source)):
        return {}
    return segments


def _marked(element: Element | None) -> dict[str, Element]:
    """Return the segments inside an element by their names or, unless these tell them apart, by their numbers.

    Of segments inside each other, those are the outer ones.
    """
    found = list[Element]()
    for each in element.below() if element else ():
        if each.base == "mrk" and each.get("mtype") == "seg" and not (found and each.start < found[-1].end):
            found.append(each)
    names = [each.get("mid") for each in found]
    if len({*names}) < len(names):
        names = [str(number) for number in range(len(names))]
    return dict(zip(names, found, strict=True))


def _text(element: Element) -> str:
    return "".join(text for is_tag, text in parts_of(element.inside) if not is_tag)


def _bare(text: str) -> str:
    return "".join(text.split())


def _translation(source: Element, target: Element | None, is_new: bool) -> str:
    return "" if is_new else source.translation(target, may_wrap=True)
