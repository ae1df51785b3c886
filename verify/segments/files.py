"""Files of each format around segments, and what stands in the place of each segment in a translated one."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple
from xml.etree import ElementTree

from .pieces import KEY, Segment, spelled

_PO = "Content-Type: text/plain; charset=UTF-8\\n"
_STRING = r'"(?:[^"\\\n]|\\.)*"'


class Kind(NamedTuple):
    """A format of files."""

    name: str
    """Of a file"""
    options: Sequence[str]
    """Of nmt translate"""
    write: Callable[[Sequence[Segment]], str]
    read: Callable[[str], Mapping[int, str]]
    """Return the translations by the numbers of segments"""


def _escaped(text: str) -> str:
    return html.escape(text, quote=False)


# --- lines and Markdown


def _html(segments: Sequence[Segment]) -> str:
    return "".join(f"{segment.raw}\n" for segment in segments)


def _read_html(text: str) -> dict[int, str]:
    return dict(enumerate(text.removesuffix("\n").split("\n")))


def _markdown(segments: Sequence[Segment]) -> str:
    return "".join(f"<!-- unit {segment.number} -->\n\n{segment.raw}\n\n" for segment in segments)


def _read_markdown(text: str) -> dict[int, str]:
    _, *parts = re.split(r"<!-- unit (\d+) -->\n\n", text)
    return {int(number): part.removesuffix("\n").removesuffix("\n") for number, part in _pairs(parts)}


def _pairs(parts: Sequence[str]) -> Iterable[tuple[str, str]]:
    return zip(parts[::2], parts[1::2], strict=True)


# --- gettext


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\t", "\\t")
    lines = re.split(r"(?<=\n)", escaped)
    lines = [line.replace("\n", "\\n") for line in lines if line]
    return f'"{lines[0]}"' if len(lines) == 1 else "\n".join(f'"{line}"' for line in ["", *lines])


def _po_with(mark: str) -> Callable[[Sequence[Segment]], str]:
    def write(segments: Sequence[Segment]) -> str:
        header = f'msgid ""\nmsgstr ""\n"Language: de\\n"\n"{_PO}"\n'
        header += f'"X-Accelerator-Marker: {mark}\\n"\n' if mark else ""
        units = (f'\nmsgctxt "{each.number}"\nmsgid {_quoted(each.raw)}\nmsgstr ""\n' for each in segments)
        return header + "".join(units)

    return write


def _read_po(text: str) -> dict[int, str]:
    unit = rf'^msgctxt "(\d+)"\nmsgid (?:{_STRING}\n)+msgstr ((?:{_STRING}\n?)+)'
    found = {}
    for number, quoted in re.findall(unit, text, re.MULTILINE):
        value = "".join(each[1:-1] for each in re.findall(_STRING, quoted))
        found[int(number)] = re.sub(r"\\(.)", lambda part: {"n": "\n", "t": "\t"}.get(part[1], part[1]), value)
    return found


# --- XML


def _xliff_unit(segment: Segment) -> str:
    space = ' xml:space="preserve"' if "preserve" in segment.traits else ""
    inside = f"        <source>{segment.raw}</source>\n"
    return f'      <trans-unit id="u{segment.number}"{space}>\n{inside}      </trans-unit>\n'


def _xliff(segments: Sequence[Segment]) -> str:
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">\n'
        '  <file original="a" source-language="en" target-language="de" datatype="plaintext">\n    <body>\n'
        + "".join(map(_xliff_unit, segments))
        + "    </body>\n  </file>\n</xliff>\n"
    )


def _read_xliff(text: str) -> dict[int, str]:
    found = {}
    for number, unit in re.findall(r'<trans-unit id="u(\d+)"[^>]*>(.*?)</trans-unit>', text, re.DOTALL):
        if target := re.search(r"<target\b[^>]*(?<!/)>(.*)</target>", unit, re.DOTALL):
            found[int(number)] = target[1]
    return found


def _tmx(segments: Sequence[Segment]) -> str:
    units = (
        f'    <tu tuid="u{each.number}">\n      <tuv xml:lang="en">\n'
        f"        <seg>{each.raw}</seg>\n      </tuv>\n    </tu>\n"
        for each in segments
    )
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n<tmx version="1.4">\n  <header creationtool="x" segtype="block" '
        'creationtoolversion="1" o-tmf="x" adminlang="en" srclang="en" datatype="plaintext"/>\n  <body>\n'
        + "".join(units)
        + "  </body>\n</tmx>\n"
    )


def _read_tmx(text: str) -> dict[int, str]:
    found = {}
    for number, unit in re.findall(r'<tu tuid="u(\d+)">(.*?)</tu>', text, re.DOTALL):
        if target := re.search(r'<tuv xml:lang="de">.*?<seg>(.*)</seg>', unit, re.DOTALL):
            found[int(number)] = target[1]
    return found


def _ts(segments: Sequence[Segment]) -> str:
    units = (
        f"    <message>\n        <comment>u{each.number}</comment>\n        <source>{_escaped(each.raw)}</source>\n"
        '        <translation type="unfinished"></translation>\n    </message>\n'
        for each in segments
    )
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n<!DOCTYPE TS>\n<TS version="2.1" language="de" sourcelanguage="en">\n'
        "<context>\n    <name>Main</name>\n" + "".join(units) + "</context>\n</TS>\n"
    )


def _read_ts(text: str) -> dict[int, str]:
    messages = ElementTree.fromstring(text).iter("message")
    each = ((message.findtext("comment", "u0"), message.findtext("translation")) for message in messages)
    return {int(comment[1:]): translation or "" for comment, translation in each}


def _android(segments: Sequence[Segment]) -> str:
    strings = (f'    <string name="u{each.number}">{each.raw}</string>\n' for each in segments)
    namespace = 'xmlns:xliff="urn:oasis:names:tc:xliff:document:1.2"'
    return f'<?xml version="1.0" encoding="utf-8"?>\n<resources {namespace}>\n' + "".join(strings) + "</resources>\n"


def _read_android(text: str) -> dict[int, str]:
    strings = re.findall(r'<string name="u(\d+)"[^>]*>(.*?)</string>', text, re.DOTALL)
    return {int(number): inner for number, inner in strings}


KINDS = {
    "html": [Kind("lines.txt", ["--markup"], _html, _read_html)],
    "xliff": [Kind("a.xlf", [], _xliff, _read_xliff)],
    "tmx": [Kind("a.tmx", [], _tmx, _read_tmx)],
    "po": [
        Kind("plain.po", [], _po_with(""), _read_po),
        Kind("gtk.po", [], _po_with("_"), _read_po),
        Kind("win.po", [], _po_with("&"), _read_po),
    ],
    "ts": [Kind("a.ts", [], _ts, _read_ts)],
    "android": [Kind("strings.xml", [], _android, _read_android)],
    "markdown": [Kind("page.md", ["--document"], _markdown, _read_markdown)],
}


def groups(form: str, segments: Sequence[Segment]) -> list[tuple[Kind, list[Segment]]]:
    """Return the files of a format, each with its segments: labels stand with the mark that they have."""
    kinds = KINDS[form]
    if len(kinds) == 1:
        return [(kinds[0], list(segments))]
    marks = [_key_of(each) for each in segments]
    by_mark = {"": kinds[0], "_": kinds[1], "&": kinds[2]}
    return [
        (kind, [each for each, own in zip(segments, marks, strict=True) if own == mark])
        for mark, kind in by_mark.items()
    ]


def _key_of(segment: Segment) -> str:
    """Return the accelerator's mark in a label of PO; "" for other segments."""
    return next((piece.raw for piece in segment.pieces if piece.kind == KEY), "")


def outside(form: str, text: str) -> str:
    """Return a file without translations, marks of review and notes of origin: what a translation leaves as it is."""
    if form == "po":
        text = re.sub(rf"^msgstr ((?:{_STRING}\n?)+)", "msgstr\n", text, flags=re.MULTILINE)
        return re.sub(r"^#(?:, fuzzy| nmt: .*)\n", "", text, flags=re.MULTILINE)
    if form == "xliff":
        return re.sub(r"\s*<target\b.*?</target>", "", text, flags=re.DOTALL)
    if form == "tmx":
        return re.sub(r'\s*<tuv xml:lang="de">.*?</tuv>', "", text, flags=re.DOTALL)
    if form == "ts":
        text = re.sub(r"\s*<translatorcomment>.*?</translatorcomment>", "", text, flags=re.DOTALL)
        return re.sub(r"<translation\b.*?</translation>|<translation[^>]*/>", "", text, flags=re.DOTALL)
    if form == "android":
        return re.sub(r'(<string name="u\d+"[^>]*>).*?</string>', r"\1", text, flags=re.DOTALL)
    return ""


def same_spelling(segment: Segment, text: str) -> str:
    """Return a result with the entities of its XML in one spelling, as `Segment.spelled` has them."""
    return spelled(text, segment.form) if segment.spelled() is not segment else text
