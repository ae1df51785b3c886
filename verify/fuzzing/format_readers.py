"""Readers of units and of translators' files: what is taken apart comes back as it was, and what is written is read."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from xml.parsers.expat import ExpatError

import format_grammar
import numpy as np
from copying import as_it_was
from target import Target, accepted, file

from nmt.formats.alignment import GLUE, Aligned, AlignedLine, words_of
from nmt.formats.bilingual import BilingualFile
from nmt.formats.document import Document
from nmt.formats.markdown import read_markdown
from nmt.formats.segments import Segment
from nmt.formats.strings import Accelerators, ProgramString, plain_pairs, read_string
from nmt.formats.tags import read_tagged_lines, read_tags

# --- units -------------------------------------------------------------------------------------------------------


def _check_segment(segment: Segment) -> None:
    """Its own text gives the unit; words in another order, or none, lose no code and no letter."""
    assert as_it_was(segment) == segment.raw, f"{as_it_was(segment)!r} of {segment.raw!r}"
    for span in segment.kept:
        assert segment.text[slice(*span)] in segment.raw
    assert all(0 < end < len(segment.text) for end in segment.ends)
    source = segment.text
    words = source.split(" ")
    random.Random(source).shuffle(words)
    for output in (" ".join(words), "x & y", ""):
        kept = words_of(source, GLUE, segment.kept), words_of(output, GLUE)
        weights = np.random.default_rng(len(output)).random((len(kept[1]), len(kept[0])))
        aligned = Aligned(source, output, *kept, weights, (), weights)
        found = segment.put(AlignedLine(output, [(0, 0, aligned)]))
        codes = _letters(segment.raw) - _letters(source)
        assert not codes - _letters(found), f"{found!r} lacks codes of {segment.raw!r}"


def _letters(text: str) -> Counter[str]:
    """The letters of names of codes."""
    return Counter(each for each in text if each in "<>")


def tags(lines: list[str]) -> bool:
    """Lines with tags of HTML and XML, whose elements go on over lines."""
    segments = [*read_tagged_lines(lines)]
    assert [segment.raw for segment in segments] == lines
    for segment in (*segments, *map(read_tags, lines)):
        _check_segment(segment)
    return any(segment.walls for segment in segments)


def markdown(lines: list[str]) -> bool:
    """Pages of Markdown come back as they were."""
    texts = list(Document(lines))
    found = list[str]()
    for segment, piece in texts:
        if segment.raw:
            _check_segment(segment)
        if piece:
            found.append(piece.lay_out(segment.raw))
    assert len(texts) == len(lines)
    assert "\n".join(found) == "\n".join(lines)
    for line in lines:
        _check_segment(read_markdown(line))
    return any(found)


def strings(texts: list[str]) -> bool:
    """Strings of a program come back as they were, and so do all the texts in them."""
    accelerators = Accelerators(texts)
    for text in texts:
        for may_wrap in (True, False):
            string = ProgramString(text, accelerators, may_wrap=may_wrap)
            segments = {part: read_string(part, in_columns=may_wrap) for part in string.texts}
            for segment in segments.values():
                _check_segment(segment)
            again = string.put({part: as_it_was(segment) for part, segment in segments.items()})
            assert again == text or not again.strip() or _is_marked_anew(string, text, again), f"{again!r} of {text!r}"
        for pair in plain_pairs(text, text[::-1], accelerators):
            assert len(pair) == 2
    return any(text.strip() for text in texts)


def _is_marked_anew(string: ProgramString, text: str, again: str) -> bool:
    """Whether a string differs in nothing but the place of its accelerator."""
    return string.body != text and Counter(again) == Counter(text)


# --- files -------------------------------------------------------------------------------------------------------


def _file(name: str, content: bytes) -> bool:
    """A file stays as it is until something is written; what is written is read again, and nothing else changes."""
    path = file(name, content)
    opened = accepted(lambda: BilingualFile(path, ("en", "de")))
    if opened is None:
        return False
    assert opened.content() == content
    count = len(opened.units)
    list(opened.pairs())
    expected = list[list[str]]()
    for unit in opened.units:
        forms = [_changed(source) for source in unit.sources]
        for form, source in enumerate(unit.sources):
            opened.string(unit, form)
            _check_segment(opened.segment(source))
        try:
            unit.write(forms, True)
        except (ValueError, ExpatError):
            forms = []
        expected.append(forms)
    again = accepted(lambda: BilingualFile(file("again-" + name, opened.content()), ("en", "de")))
    assert again is not None, "what is written cannot be read"
    assert len(again.units) == count
    for unit, forms in zip(again.units, expected, strict=True):
        found = unit.sources if name.endswith(".xml") else unit.targets
        assert not forms or [*found] == forms, f"{found} is read, not {forms}"
    return count > 0


def _changed(source: str) -> str:
    return f"{source}." if source.strip() else source


def _target(name: str, kind: str) -> Callable[[bytes], bool]:
    def run(content: bytes) -> bool:
        return _file(f"x.{kind}", content)

    run.__name__ = name
    return run


_CODES = ("nmt.formats.segments", "nmt.formats.tokens", "nmt.formats.codes")
_UNITS = ("nmt.formats.bilingual", "nmt.formats.units", "nmt.formats.xml_text")
TARGETS = (
    Target(tags, format_grammar.TAGGED, ("nmt.formats.tags", *_CODES)),
    Target(markdown, format_grammar.MARKDOWN, ("nmt.formats.markdown", "nmt.formats.document", *_CODES)),
    Target(strings, format_grammar.STRINGS, ("nmt.formats.strings", *_CODES)),
    Target(_target("android", "xml"), format_grammar.ANDROID, ("nmt.formats.android", *_UNITS), in_bytes=True),
    Target(_target("xliff", "xlf"), format_grammar.XLIFF, ("nmt.formats.xliff", *_UNITS), in_bytes=True),
    Target(_target("tmx", "tmx"), format_grammar.TMX, ("nmt.formats.tmx", *_UNITS), in_bytes=True),
    Target(_target("qt_linguist", "ts"), format_grammar.TS, ("nmt.formats.qt_linguist", *_UNITS), in_bytes=True),
    Target(_target("gettext", "po"), format_grammar.PO, ("nmt.formats.gettext", *_UNITS), in_bytes=True),
)
