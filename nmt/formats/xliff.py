"""XLIFF 1.2: the translation units, or the segments of those that are divided, with their states."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from nmt.formats.units import Origin, Unit, UnitFile
from nmt.formats.xml_text import Element, XmlText, parts_of, with_attribute

UNTRANSLATED = ("new", "needs-translation")  # states in which a target is not a translation yet
FOR_REVIEW = "needs-review-translation"
QUALIFIERS: Mapping[Origin, str] = {"memory": "exact-match", "near memory": "fuzzy-match", "model": "mt-suggestion"}
"""What `state-qualifier` says of the origins"""
_ORIGIN_OF = {qualifier: origin for origin, qualifier in QUALIFIERS.items()}
LOCKS = ("m:locked", "mq:locked", "locked")
"""Attributes of units in files of Phrase and memoQ, and of segments in those of Trados, that people must not change"""
MARKS = ("approved", "translate", "m:confirmed", "mq:status", *LOCKS)
"""Attributes by which people and their programs say of a unit that it is done, or not to be translated"""
PROGRAMS = ("m:", "mq:")
"""Prefixes of attributes that Phrase and memoQ write to a unit with its translation"""
Put = Callable[[str | None, str, str], None]
"""Function that sets the XML inside a target or a segment, unless it is None, and the target's state and qualifier"""


@dataclass(eq=False)
class _Place:
    """Where a unit or a segment stands."""

    element: Element
    """The unit, or that of the segment"""
    holder: Element | None
    """What holds its translation: the target or, for a segment, its mrk in the target; None if it is not there yet"""
    put: Put
    definition: Element | None
    """What Trados says of a segment: whether it is confirmed, and by whom"""


class XliffFile(UnitFile):
    """A file of XLIFF 1.2."""

    def __init__(self, raw: bytes, _: Sequence[str]) -> None:
        """Read a file; raise ValueError, LookupError or ExpatError if it is none."""
        self._document = XmlText(raw, "xliff")
        super().__init__(self._document.text, self._document.edits)
        root = self._document.root
        if root.get("version").startswith("2"):
            raise ValueError(f"it begins with {root.tag[:60]}")
        self._read(())

    def _read(self, whole: Collection[str]) -> None:
        """Read the units, without dividing those with names in `whole`."""
        self.units = []
        self.locked = []
        for element in self._document.root.below():
            if element.base == "trans-unit":
                for unit in self._units(element, element.get("id") in whole):
                    (self.locked if unit.is_locked else self.units).append(unit)

    def divide_as(self, other: XliffFile) -> None:
        """Do not divide units that have an undivided translation in another version of the file.

        Some programs write one to a unit that had segments.
        """
        whole = set()
        for unit in (*other.units, *other.locked):
            element = unit.place.element
            if unit.targets[0] and unit.place.holder is element.child("target"):
                whole.add(element.get("id"))
        self._read(whole - {""})

    def keep(self, unit: Unit, other: Unit, is_reviewed: bool) -> None:
        """Give a unit the translation, the marks and the comments of `other`, as they are written there."""
        own = unit.place
        given = other.place
        target = given.element.child("target")
        if target is None or given.holder is None:
            return
        qualifier = "" if is_reviewed else target.get("state-qualifier")
        own.put(self._document.in_newlines(given.holder.inside), target.get("state"), qualifier)
        names = [*MARKS, *_names_of_programs(own.element), *_names_of_programs(given.element)]
        self._document.fill(own.element, None, **{name: given.element.get(name) or None for name in names})
        if own.definition and given.definition:
            self._document.replace(own.definition, self._document.in_newlines(given.definition.raw))
        present = _notes(own.element)
        notes = "".join(note for note in _notes(given.element) if note not in present)
        if notes:
            self._document.put_behind(own.element.children[-1], self._document.in_newlines(notes), 1)

    def content(self) -> bytes:
        """Return the file with all that was written to its units."""
        return self._document.content()

    def _units(self, element: Element, is_whole: bool) -> Iterator[Unit]:
        """Yield the unit of a translation unit, or one for each of its segments unless it `is_whole`."""
        source = element.child("source")
        target = element.child("target")
        if source is None or not source.content().strip():
            return
        definitions = _definitions(element)
        is_locked = element.inherited("translate") == "no" or _has_lock(element)
        segments: Mapping[str, Element] = {}
        if not is_whole:
            segments = _segments(element, source, target)
        places = _marked(target)
        written: dict[str, str] = {}
        for name, segment in segments.items():
            put = partial(self._put_segment, element, places, written, name)
            unit = self._unit(segment, _Place(element, places.get(name), put, definitions.get(name)), is_locked)
            unit.name = " ".join(filter(None, [unit.name, name]))
            yield unit
        if not segments:
            yield self._unit(source, _Place(element, target, partial(self._set_target, element), None), is_locked)

    def _unit(self, source: Element, place: _Place, is_locked: bool) -> Unit:
        """Return the unit of the source, or of a segment of it, at a place; it may be locked itself, too."""
        target = place.element.child("target")
        state = qualifier = ""
        if target:
            state = target.get("state")
            qualifier = target.get("state-qualifier")
        approved = place.element.get("approved")
        translation = ""
        if not _is_new(target):
            translation = source.translation(place.holder, may_wrap=True)
        needs_review = approved == "no" or state.startswith("needs-")
        write = partial(self._write, place, source)
        unit = Unit([source.content(may_wrap=True)], [translation], "", needs_review, write)
        unit.name = place.element.get("id")
        unit.start = source.start
        unit.place = place
        marks = [place.element.get(name) for name in MARKS]
        unit.is_locked = is_locked
        if place.definition:
            marks.append(place.definition.get("conf"))
            unit.is_locked |= _has_lock(place.definition)
        unit.notes = "\n".join([state, qualifier, *marks, str(unit.is_locked), *_notes(place.element)])
        unit.origin = _ORIGIN_OF.get(qualifier, "")
        return unit

    def _write(self, place: _Place, source: Element, texts: Sequence[str], review: bool, origin: Origin = "") -> None:
        """Write a translation, which nobody has approved of."""
        state = FOR_REVIEW if review else ""
        place.put(self._document.translated(source, texts[0]), state, QUALIFIERS.get(origin, ""))
        if place.element.get("approved"):
            self._document.fill(place.element, None, approved="no" if review else None)

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
        inside = ""
        at = divided.inner
        for name, segment in segments.items():
            if segment.is_empty:
                continue
            inside += self._document.text[at : segment.inner]
            if name in written:
                inside += written[name]
            elif name in places:
                inside += places[name].inside
            at = segment.stop
        inside += self._document.text[at : divided.stop]
        self._set_target(element, inside, state, qualifier)

    def _set_target(self, element: Element, xml: str | None, state: str, qualifier: str) -> None:
        """Set the state of a target and, unless it is None, the inside."""
        target = element.child("target")
        if target is not None:
            self._document.fill(target, xml, state=state or None, state_qualifier=qualifier or None)
            return
        last = element.child("seg-source") or element.child("source")
        assert last is not None
        name = f"{last.prefix}target"
        tag = with_attribute(f"<{name}>", "state", state or None)
        tag = with_attribute(tag, "state-qualifier", qualifier or None)
        self._document.put_behind(last, f"{tag}{xml or ''}</{name}>")


def _notes(element: Element) -> list[str]:
    """Return the notes of a unit, as they are written."""
    return [note.raw for note in element.named("note")]


def _definitions(element: Element) -> dict[str, Element]:
    """Return what Trados says of the segments of a unit, by their names."""
    found = {}
    for definitions in element.named("seg-defs"):
        found.update({segment.get("id"): segment for segment in definitions.named("seg")})
    return found


def _names_of_programs(element: Element) -> list[str]:
    return [name for name in element.attributes if name.startswith(PROGRAMS)]


def _has_lock(element: Element) -> bool:
    return any(element.get(name) in ("true", "locked") for name in LOCKS)


def _is_new(target: Element | None) -> bool:
    """Return whether a target says that it is not a translation yet."""
    return target is not None and target.get("state") in UNTRANSLATED


def _segments(element: Element, source: Element, target: Element | None) -> dict[str, Element]:
    """Return the segments of a unit that is divided into such; none if its target has an undivided translation."""
    if target is not None and target.has_text and not _is_new(target) and not _marked(target):
        return {}
    marked = _marked(element.child("seg-source"))
    segments = {name: each for name, each in marked.items() if each.content().strip()}
    if _letters(segments.values()) != _letters([source]):
        return {}
    return segments


def _marked(element: Element | None) -> dict[str, Element]:
    """Return the segments inside an element by their names or, unless these tell them apart, by their numbers.

    Of segments inside each other, those are the outer ones.
    """
    if element is None:
        return {}
    segments = []
    end = 0
    for each in element.below():
        if each.start >= end and each.base == "mrk" and each.get("mtype") == "seg":
            segments.append(each)
            end = each.end
    by_name = {each.get("mid"): each for each in segments}
    if len(by_name) < len(segments):
        return {str(number): each for number, each in enumerate(segments)}
    return by_name


def _letters(elements: Iterable[Element]) -> str:
    """Return the text of elements without tags and white space."""
    texts: list[str] = []
    for element in elements:
        texts += (text for is_tag, text in parts_of(element.inside) if not is_tag)
    return "".join("".join(texts).split())
