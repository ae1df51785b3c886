"""Android's resources: what is a text there, how it is shown, and that nothing else changes."""

from __future__ import annotations

import pytest

from nmt.formats.android import AndroidFile

pytest.importorskip("translate", reason="needs the package translate-toolkit")
XLIFF = ' xmlns:x="urn:oasis:names:tc:xliff:document:1.2"'


def opened(resources: str, language: str = "de") -> AndroidFile:
    return AndroidFile(f"<resources{XLIFF}>{resources}</resources>".encode(), ["en", language])


def written(file: AndroidFile) -> str:
    return file.content().decode().removeprefix(f"<resources{XLIFF}>").removesuffix("</resources>")


@pytest.mark.parametrize(
    ("xml", "shown", "again"),
    [
        ("\n    One\n    sentence\n  ", "One sentence", "\n    One sentence.\n  "),
        ("One\\n\n    line  <b>\n  and</b>", "One\n line <b> and</b>", "One\\n\n    line  <b>\n  and</b>."),
        ('" it\'s  \\"kept\\"\\n\n  "', ' it\'s  "kept"\n\n  ', None),
        ('a "b  c"  d', "a b  c d", "a b \\u0020c d."),
        ("\\u0020a\\u00e9\\n b\\tc", " aé\n b\tc", "\\u0020a\\u00e9\\n b\\tc."),
        ("\\uD83D\\uDE00 a\\u00A0\\u2026", "😀 a\xa0…", "\\uD83D\\uDE00 a\\u00A0\\u2026."),
        ('It\\\'s \\"new\\" \\\\ \\# \\x', 'It\'s "new" \\ # x', 'It\\\'s \\"new\\" \\\\ # x.'),
        ("\\@string/a", "@string/a", "\\@string/a."),
        ("\\?a @b ?c", "?a @b ?c", "\\?a @b ?c."),
        ("&#160;\\?x", "\xa0?x", "&#160;?x."),  # no reference
        ("\\?", "?", "\\?."),
        ("a\xa0…\u3000b\u202f", "a\xa0…\u3000b\u202f", "a\xa0…\u3000b\u202f."),
        ("&lt;b&gt; &amp;amp; &#8230;", "<b> &amp; …", "&lt;b&gt; &amp;amp; &#8230;."),
        (
            '<![CDATA[<a href="x y"  id=\'z\'>it\\\'s "a"</a>]]>',
            "<a href=\"x y\" id='z'>it's a</a>",
            "<![CDATA[<a href=\"x y\"  id='z'>it\\'s a</a>.]]>",
        ),
        (
            '&lt;a href=\\"x\\">a&lt;/a> &lt;br>',
            '<a href="x">a</a> <br>',
            '&lt;a href=\\"x\\"&gt;a&lt;/a&gt; &lt;br&gt;.',
        ),
        ("<![CDATA[<b>it\\'s</b>]]>", "<b>it's</b>", "<![CDATA[<b>it\\'s</b>.]]>"),
        (
            " <![CDATA[\n  <p>a</p>\n  <p>b</p> ]]>\n",
            "<p>a</p> <p>b</p>",
            " <![CDATA[\n  <p>a</p>\n  <p>b</p>. ]]>\n",
        ),
        (
            '<b>\n It\\\'s</b>\n &amp;  <i >"c  d"</i> ',
            "<b> It's</b> &amp; <i >c  d</i>",
            "<b>\\u0020It\\'s</b> &amp; <i >c \\u0020d</i>. ",
        ),
        ('Hi <x:g id="a" example="it\'s">%1$s</x:g>!', None, 'Hi <x:g id="a" example="it\'s">%1$s</x:g>!.'),
        (
            "a <code>\n  b\\'s  c</code> <!-- it's -->\n d",
            "a <code>\n  b\\'s  c</code> <!-- it's --> d",
            "a <code>\n  b\\'s  c</code> <!-- it's -->\n d.",
        ),
        ("a<u></u> <br/> b", "a<u></u> <br/> b", "a<u></u> <br/> b."),
        ("trailing\\", "trailing", "trailing."),
    ],
)
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_texts_are_as_android_shows_them(line_end: str, xml: str, shown: str | None, again: str | None) -> None:
    """White space that is shown as one space is as in the source beside the same tags and line breaks."""
    raw, shown = xml.replace("\n", line_end), shown or xml
    file = opened(f"<string name='a'>{raw}</string>")
    assert [unit.sources for unit in file.units] == [[shown]]
    file.units[0].write([shown], True)
    assert written(file) == f"<string name='a'>{raw}</string>", "a copy is as it was"
    file.units[0].write([f"{shown}."], True)
    other = opened(written(file))
    assert [unit.sources for unit in other.units] == [[f"{shown}."]]
    if again:
        assert written(file) == f"<string name='a'>{again}</string>".replace("\n", line_end)


@pytest.mark.parametrize(
    "value",
    [
        "@string/a",
        "\n @android:string/ok ",
        "?attr/x",
        "?android:attr/x",
        "?x",
        "@null",
        "@+id/a",
        "@*android:bool/b",
        "",
    ],
)
def test_references_are_no_texts(value: str) -> None:
    items = f"<item>{value}</item><item>a</item>"
    file = opened(f"<string name='a'>{value}</string><string-array name='b'>{items}</string-array>")
    assert [unit.sources for unit in file.units] == [["a"]]


def test_texts_stand_in_arrays_and_typed_items_too() -> None:
    resources = (
        "<string name='a' translatable='false'>API</string><item type='string' name='b' >b</item>"
        "<item type='dimen' name='c'>2dp</item><!-- d -->\n"
        "<string-array name='d'>\n  <item>d</item><!-- e -->\n  <item><b>e</b></item></string-array>"
        "<string-array translatable='false' name='f'><item>f</item></string-array>"
        "<array name='g'><item>@color/red</item><item>some text</item></array><color name='h'>#fff</color>"
    )
    file = opened(resources)
    assert [(unit.context, unit.sources) for unit in file.units] == [
        ("b", ["b"]),
        ("d[0]", ["d"]),
        ("d[1]", ["<b>e</b>"]),
    ]
    assert file.unfilled == ["some text"], "for nothing says that it is one"
    for unit in file.units:
        unit.write([each.upper().replace("B>", "b>") for each in unit.sources], True)
    expected = resources.replace(">b<", ">B<").replace("<item>d<", "<item>D<").replace(">e<", ">E<")
    assert written(file) == expected


PLURALS = """<plurals name="a">
        <!-- notes --><item quantity="other" >%d "files"</item>
    </plurals>"""


@pytest.mark.parametrize(
    ("language", "items"),
    [
        ("ja", ['<!-- notes --><item quantity="other" >0</item>']),
        ("de", ['<item quantity="one" >0</item>', '<!-- notes --><item quantity="other" >1</item>']),
    ],
)
def test_plurals_with_one_form_are_filled(language: str, items: list[str]) -> None:
    file = opened(PLURALS, language)
    (unit,) = file.units
    assert unit.sources == ["%d files"] * len(items)
    unit.write(["0", "1"][: len(items)], True)
    lines = "".join(f"\n        {item}" for item in items)
    assert written(file) == f'<plurals name="a">{lines}\n    </plurals>'


@pytest.mark.parametrize(("language", "sources"), [("uk", ["%d files"] * 4), ("pl", ["One file", *["%d files"] * 3])])
def test_quantities_of_several_numbers_have_a_source_with_the_number(language: str, sources: list[str]) -> None:
    """And know their numbers, but for the quantity of decimals."""
    items = "<item quantity='one'>One file</item><item quantity='other'>%d files</item>"
    (unit,) = opened(f"<plurals name='a'>{items}</plurals>", language).units
    assert unit.sources == sources
    assert [len(numbers) > 0 for numbers in unit.numbers] == [True, True, True, False]


def test_references_in_plurals_stay() -> None:
    file = opened(
        '<plurals name="a"><item quantity="one">@string/a</item><item quantity="other">b</item></plurals>', "pl"
    )
    (unit,) = file.units
    assert unit.sources == ["b"] * 3
    unit.write(["1", "2", "3"], True)
    quantities = {"one": "@string/a", "few": "1", "many": "2", "other": "3"}
    items = "".join(f'<item quantity="{key}">{value}</item>' for key, value in quantities.items())
    assert written(file) == f'<plurals name="a">{items}</plurals>'
