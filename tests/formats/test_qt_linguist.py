"""TS: messages of Qt with plural forms, variants of different lengths, and without a source."""

from __future__ import annotations

import pytest

from nmt.formats.qt_linguist import TsFile

pytest.importorskip("translate", reason="needs the package translate-toolkit")
VARIANTS = "<lengthvariant>{}</lengthvariant><lengthvariant>{}</lengthvariant>"


def opened(message: str) -> TsFile:
    head = '<!DOCTYPE TS>\n<TS language="ru"><context><name>Main</name>'
    return TsFile(f"{head}{message}</context></TS>".encode(), ["en", "de"])


@pytest.mark.parametrize(
    ("translation", "sources", "expected"),
    [
        (f"<translation variants='yes'>{VARIANTS.format('', '')}</translation>", 2, VARIANTS.format(0, 1)),
        ("<translation><numerusform></numerusform><numerusform/><numerusform/></translation>", 3, None),
        ("<translation><numerusform> </numerusform></translation>", 1, "<numerusform>0</numerusform>"),
        ("<translation>\n</translation>", 3, None),
        ("<translation/>", 3, None),
        ("", 3, None),
        (
            f"<translation><numerusform variants='yes'>{VARIANTS.format('', '')}</numerusform>"
            "<numerusform/><numerusform/></translation>",
            4,
            f"<numerusform variants='yes'>{VARIANTS.format(0, 1)}</numerusform>"
            "<numerusform>2</numerusform><numerusform>3</numerusform>",
        ),
    ],
)
def test_forms_and_variants_are_filled(translation: str, sources: int, expected: str | None) -> None:
    kind = "" if translation.startswith("<translation v") else ' numerus="yes"'
    message = f"<message{kind}><source>a</source>"
    file = opened(f"{message}{translation}</message>")
    (unit,) = file.units
    assert unit.is_open
    assert unit.sources == ["a"] * sources
    unit.write([str(form) for form in range(sources)], True)
    forms = expected or "".join(f"<numerusform>{form}</numerusform>" for form in range(3))
    mark = "" if kind else " variants='yes'"
    done = f'{message}<translation{mark} type="unfinished">{forms}</translation></message>'
    assert file.content().decode().endswith(f"</name>{done}</context></TS>")


def test_forms_beside_translated_ones_are_gaps() -> None:
    forms = "<numerusform>a</numerusform><numerusform/><numerusform> </numerusform>"
    (unit,) = opened(f"<message numerus='yes'><source>a</source><translation>{forms}</translation></message>").units
    assert (unit.is_open, unit.gaps) == (False, 2)


def test_messages_without_a_source_are_named() -> None:
    """As those of qsTrId are until the sources are filled in."""
    empty = "<message id='{}'><source{}<translation{}</message>"
    messages = [("a", "/>", " type='unfinished'/>"), ("b", ">b</source>", "/>"), ("c", "/>", ">c</translation>")]
    file = opened("".join(empty.format(*each) for each in messages) + empty.format("d", "/>", " type='vanished'/>"))
    assert [unit.sources for unit in file.units] == [["b"]]
    assert file.unfilled == ["a"]
