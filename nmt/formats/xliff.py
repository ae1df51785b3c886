"""XLIFF 1.2: the translation units, or the segments of those that are divided, with their states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from nmt.formats.units import Unit, UnitFile
from nmt.formats.xml_text import Element, XmlText, parts_of

UNTRANSLATED = ("new", "needs-translation")  # states in which a target is not a translation yet
FOR_REVIEW = "needs-review-translation"


class XliffFile(UnitFile):
    """A file of XLIFF 1.2."""

    def __init__(self, raw: bytes, _: Sequence[str]) -> None:
        """Read a file; raise ValueError, LookupError or ExpatError if it is none."""
        super().__init__()
        self._document = XmlText(raw)
        root = self._document.root
        if root.base != "xliff" or root.get("version").startswith("2"):
            raise ValueError(f"it begins with {root.tag[:60]}")
        self.language = next((each.get("target-language") for each in root.children if each.base == "file"), "")
        for element in root.below():
            if element.base == "trans-unit":
                self.units += self._units(element)

    def content(self) -> bytes:
        """Return the file with all that was written to its units."""
        return self._document.content()

    def _units(self, element: Element) -> Iterator[Unit]:
        source, target = element.child("source"), element.child("target")
        if source is None or not source.content().strip() or element.inherited("translate") == "no":
            return
        state = target.get("state") if target else ""
        needs_review = element.get("approved") == "no" or state.startswith("needs-")
        is_new = state in UNTRANSLATED
        places, written = _marked(target), dict[str, str]()
        segments = _segments(element, is_new)
        for key, each in segments.items():
            write = partial(self._write_segment, element, places, written, key)
            translation = _translation(each, places.get(key), is_new)
            yield Unit([each.content(may_wrap=True)], [translation], "", needs_review, write)
        if not segments:
            write = partial(self._write, element, source)
            yield Unit([source.content(may_wrap=True)], [_translation(source, target, is_new)], "", needs_review, write)

    def _write(self, element: Element, source: Element, texts: Sequence[str], review: bool) -> None:
        xml = self._document.as_xml(texts[0], bool(source.children))
        self._set_target(element, xml, review)

    def _write_segment(
        self,
        element: Element,
        places: Mapping[str, Element],
        written: dict[str, str],
        key: str,
        texts: Sequence[str],
        review: bool,
    ) -> None:
        """Write a segment to its place in the target; divide this as the source is if places are missing there."""
        divided = element.child("seg-source")
        assert divided is not None
        segments = _marked(divided)
        written[key] = self._document.as_xml(texts[0], bool(segments[key].children))
        if places.keys() >= segments.keys():
            self._document.fill(places[key], written[key])
            self._set_target(element, None, review)
            return
        parts, at = list[str](), divided.inner
        for each, segment in segments.items():
            own = places[each].inside if each in places else ""
            if not segment.is_empty:
                parts += [self._document.text[at : segment.inner], written.get(each, own)]
                at = segment.stop
        self._set_target(element, "".join([*parts, self._document.text[at : divided.stop]]), review)

    def _set_target(self, element: Element, xml: str | None, review: bool) -> None:
        """Set the inside of a target, unless it is None, and that nobody has approved of it."""
        state, target = FOR_REVIEW if review else None, element.child("target")
        if target is not None:
            self._document.fill(target, xml, state=state, state_qualifier=None)
        else:
            last = element.child("seg-source") or element.child("source")
            assert last is not None
            name, mark = f"{last.prefix}target", f' state="{state}"' if state else ""
            self._document.put_behind(last, f"<{name}{mark}>{xml}</{name}>")
        if element.get("approved"):
            self._document.fill(element, None, approved="no" if review else None)


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
