"""XLIFF: which units are open, their segments, and what is said of a translation that nobody has seen."""

from __future__ import annotations

import re
from xml.parsers.expat import ExpatError

import pytest

from nmt.formats.xliff import XliffFile

REVIEW = ' state="needs-review-translation"'
MARKED = '<mrk mtype="seg" mid="{}">{}</mrk>'


def opened(units: str, around: str = "") -> XliffFile:
    """A file of units, in which the prefix `x:` is that of XLIFF."""
    head = f"<?xml version='1.0'?>\r\n<xliff version='1.2'><file target-language='de'{around}><body>"
    return XliffFile(f"{head}{units}</body></file></xliff>".encode(), ["en", "de"])


def filled(units: str, texts: list[str], review: bool = True) -> str:
    """The units after the open ones have been written."""
    file = opened(units)
    waiting = [unit for unit in file.units if unit.is_open]
    assert len(waiting) == len(texts)
    for unit, text in zip(waiting, texts, strict=True):
        unit.write([text], review)
    return file.content().decode().split("<body>")[1].split("</body>")[0]


@pytest.mark.parametrize(
    "target",
    [
        "<target/>",
        "<target>\r\n  </target>",
        '<target><g id="1"></g></target>',
        "<target><bpt id='1'>{\\b </bpt><ept id='1'>}</ept></target>",
        "<target><!-- none --></target>",
        "<target><mrk mtype='x-term'/> </target>",
        '<target state="final"> </target>',
        '<target state="new">copied</target>',
        "<target state-qualifier='exact-match'></target>",
    ],
)
def test_a_target_without_words_is_open(target: str) -> None:
    before = "<trans-unit id='1'><source>The <g id='1'>end</g></source>"
    done = filled(f"{before}{target}</trans-unit>", ["Das <g id='1'>Ende</g>"])
    assert done == f"{before}<target{REVIEW}>Das <g id='1'>Ende</g></target></trans-unit>"


def test_a_source_without_words_has_such_a_target() -> None:
    unit = "<trans-unit><source><x id='1'/></source><target>{}</target></trans-unit>"
    assert not opened(unit.format("<x id='1'/>")).units[0].is_open
    assert opened(unit.format("")).units[0].is_open


def test_a_section_of_characters_stays_one() -> None:
    unit = "<trans-unit><source><![CDATA[<b>a</b> & b]]></source><target state='new'>{}</target></trans-unit>"
    file = opened(unit.format(""))
    (open_unit,) = file.units
    open_unit.write(["<b>c</b> & d"], review=False)
    assert "<![CDATA[<b>c</b> & d]]></target>" in file.content().decode()
    open_unit.write(["]]>"], review=False)
    assert "]]&gt;</target>" in file.content().decode()


@pytest.mark.parametrize("lock", ['m:locked="true"', 'mq:locked="locked"'])
def test_a_locked_unit_is_none(lock: str) -> None:
    around = " xmlns:m='m' xmlns:mq='mq'"
    unit = "<trans-unit id='1' {}><source>One</source><target/></trans-unit>"
    assert opened(unit.format(lock), around).units == []
    assert len(opened(unit.format(re.sub('"(true|locked)"', '"false"', lock)), around).units) == 1


def test_a_locked_segment_stays_as_it_is() -> None:
    source = MARKED.format(1, "One.") + MARKED.format(2, "Two.")
    locks = "<s:seg-defs><s:seg id='1' locked='true'/><s:seg id='2'/></s:seg-defs>"
    unit = f"<trans-unit id='a'><source>One.Two.</source><seg-source>{source}</seg-source>{{}}{locks}</trans-unit>"
    file = opened(unit.format(""), " xmlns:s='s'")
    (open_unit,) = file.units
    open_unit.write(["Zwei."], review=False)
    target = f"<target>{MARKED.format(1, '')}{MARKED.format(2, 'Zwei.')}</target>"
    assert unit.format(target) in file.content().decode()


SOURCES = [MARKED.format(1, "One."), '<g id="7">' + MARKED.format(2, "Two &amp; <x id='3'></x>") + "</g>\r\n "]
DIVIDED = f"""<trans-unit id="1" approved="yes">
  <source>One. <g id="7">Two &amp; <x id='3'/></g>
  </source>
  <seg-source>{" ".join(SOURCES)}</seg-source>{{}}
</trans-unit>"""
SOLVED = (
    '<mrk mtype="seg" mid="1">Eins.</mrk> <g id="7"><mrk mtype="seg" mid="2">Zwei &amp; <x id=\'3\'/></mrk></g>\r\n '
)


@pytest.mark.parametrize(
    ("target", "texts", "expected"),
    [
        ("", ["Eins.", "Zwei &amp; <x id='3'/>"], f"\n  <target{REVIEW}>{SOLVED}</target>"),
        ("<target/>", ["Eins.", "Zwei &amp; <x id='3'/>"], f"<target{REVIEW}>{SOLVED}</target>"),
        (
            "<target><mrk mid='2' mtype='seg'/> - <mrk mid='1' mtype='seg' comment='a > b'/></target>",
            ["Eins.", "Zwei"],
            f"<target{REVIEW}><mrk mid='2' mtype='seg'>Zwei</mrk> - "
            "<mrk mid='1' mtype='seg' comment='a > b'>Eins.</mrk></target>",
        ),
        (
            "<target><mrk mid='1' mtype='seg'>Ein.</mrk><mrk mid='2' mtype='seg'></mrk></target>",
            ["Zwei"],
            f"<target{REVIEW}><mrk mid='1' mtype='seg'>Ein.</mrk><mrk mid='2' mtype='seg'>Zwei</mrk></target>",
        ),
        (
            "<target><mrk mid='1' mtype='seg'>Ein.</mrk></target>",
            ["Zwei &amp; <x id='3'/>"],
            f"<target{REVIEW}>{SOLVED.replace('Eins', 'Ein')}</target>",
        ),
        ("<target state='needs-translation'>One. Two</target>", ["Eins.", "Zwei &amp; <x id='3'/>"], None),
    ],
)
def test_a_target_has_the_segments_of_its_source(target: str, texts: list[str], expected: str | None) -> None:
    done = filled(DIVIDED.format(target), texts)
    wanted = expected or f"<target state='needs-review-translation'>{SOLVED}</target>"
    assert done == DIVIDED.replace('"yes"', '"no"').format(wanted)


def test_segments_without_names_go_by_their_order() -> None:
    unit = re.sub(' mid="."', "", DIVIDED)
    done = filled(unit.format("<target><mrk mtype='seg'/>, <mrk mtype='seg'/></target>"), ["1", "2"])
    assert f"<target{REVIEW}><mrk mtype='seg'>1</mrk>, <mrk mtype='seg'>2</mrk></target>" in done
    assert re.sub(' mid="."', "", SOLVED) in filled(unit.format(""), ["Eins.", "Zwei &amp; <x id='3'/>"])


def test_segments_that_are_not_written_stay_empty() -> None:
    file = opened(DIVIDED.format(""))
    assert [unit.sources for unit in file.units] == [["One."], ["Two &amp; <x id='3'/>"]]
    with pytest.raises(ExpatError):
        file.units[1].write(["2 <g>"], True)
    file.units[1].write(["2"], False)
    assert SOLVED.replace("Eins.", "").replace("Zwei &amp; <x id='3'/>", "2") in file.content().decode()


@pytest.mark.parametrize(
    "segments",
    ["", "One.", MARKED.format(1, "One"), f"{MARKED.format(1, 'One.')} Two &amp; <x id='3'/>"],
)
def test_sources_that_their_segments_do_not_cover_are_translated_whole(segments: str) -> None:
    file = opened(DIVIDED.replace(" ".join(SOURCES), segments).format("<target>Eins.</target>"))
    assert [unit.targets for unit in file.units] == [["Eins."]]
    whole = opened(DIVIDED.format("<target>Eins. Zwei</target>"))
    assert [(unit.is_open, unit.targets) for unit in whole.units] == [(False, ["Eins. Zwei"])]


def test_nobody_has_approved_of_what_is_written() -> None:
    unit = "<trans-unit approved='yes' id='1'><source>a</source><target state='final'/></trans-unit>"
    review = filled(unit, ["b"])
    assert review == unit.replace("yes", "no").replace("'final'/>", "'needs-review-translation'>b</target>")
    finished = filled(unit, ["b"], review=False)
    assert finished == unit.replace(" approved='yes'", "").replace(" state='final'/>", ">b</target>")


def test_units_that_are_not_to_be_translated_are_none() -> None:
    unit = "<trans-unit><source>a</source></trans-unit>"
    inside = unit.replace("<trans-unit>", "<trans-unit translate='yes'>")
    assert not opened(unit, " translate='no'").units
    assert len(opened(f"<group translate='no'>{unit}{inside}</group>").units) == 1


@pytest.mark.parametrize("space", ["", " xml:space='preserve'"])
def test_text_that_is_wrapped_with_indentation_is_a_paragraph(space: str) -> None:
    text = "\r\n    One\r\n\t<g id='1'>two\r\n  \r\n  three</g>\r\nfour  \xa0\u3000"
    file = opened(f"<trans-unit><source>{text}</source><target>{text}</target></trans-unit>", space)
    plain = " One <g id='1'>two three</g>\nfour  \xa0\u3000"
    assert file.units[0].sources == file.units[0].targets == [text.replace("\r\n", "\n") if space else plain]
    file.units[0].write(file.units[0].sources, False)
    assert f"<target>{text}</target>" in file.content().decode(), "a copy is as it was"
    codes = "a <ph id='1'>if\n  b</ph> <mrk mtype='x-protected'>c\n  <x/> d</mrk>"
    assert opened(f"<trans-unit><source>{codes}\n  e</source></trans-unit>").units[0].sources == [f"{codes} e"]


def test_what_stands_between_units_stays() -> None:
    """Comments, processing instructions, CDATA, character references, attributes and prefixes."""
    units = (
        "<!-- <trans-unit> - -->\n<x:note xmlns:x='urn:x'>&#xe4;&lt;<![CDATA[<source>]]>\r</x:note ><?a <target>?>"
        '<trans-unit\tid = "a>b"\n><source\n><![CDATA[a <b> & c]]>&#100;&#x9c;</source\n><alt-trans><target>no</target>'
        "</alt-trans></trans-unit\n>"
    )
    file = opened(units)
    assert [unit.sources for unit in file.units] == [["a <b> & cd\x9c"]]
    done = filled(units, ["d & <e>\n"])
    assert done == units.replace("</source\n>", f"</source\n><target{REVIEW}>d &amp; &lt;e&gt;\r\n</target>")


def test_a_prefix_of_the_format_is_used_for_what_is_new() -> None:
    unit = "<x:trans-unit><x:source>a</x:source><y:target>no</y:target></x:trans-unit>"
    done = filled(unit, ["b"])
    assert done == unit.replace("</x:source>", f"</x:source><x:target{REVIEW}>b</x:target>")
