"""Files of translators: what is read of them, and that nothing but translations changes in them."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from xml.parsers.expat import ExpatError

import pytest

from nmt.formats import declared
from nmt.formats.bilingual import BilingualFile
from nmt.formats.written import rest_of
from nmt.system.errors import UserError

pytest.importorskip("translate", reason="needs the package translate-toolkit")

HEADER = """# Some notes.
msgid ""
msgstr ""
"Language: pl\\n"
"Content-Type: text/plain; charset=UTF-8\\n"
"Plural-Forms: nplurals=3; plural=(n==1 ? 0 : n%10>=2 && n%10<=4 && (n%100<12 || n%100>14) ? 1 : 2);\\n"
"""
PO = f"""{HEADER}
#. For the menu.
#: src/a.c:1   src/b.c:2
msgctxt "menu"
msgid "_Open"
msgstr "_Otwórz"

#, fuzzy, c-format
#| msgid "%d old"
msgid "%d new"
msgstr "%d stary"

#, c-format
msgid "%d file"
msgid_plural ""
"%d "
"files"
msgstr[0] ""
msgstr[1] ""
msgstr[2] ""

#~ msgid "gone"
#~ msgstr "nie ma"
"""
TS = """<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE TS>
<TS version="2.1" language="de">
<context>
    <name>Main</name>
    <message numerus="yes">
        <location filename="a.cpp" line="1"/>
        <source>%n &quot;file(s)&quot;</source>
        <translation type="unfinished">
            <numerusform></numerusform>
            <numerusform></numerusform>
        </translation>
    </message>
    <message>
        <source>&amp;Save</source>
        <translation>&amp;Speichern</translation>
    </message>
    <message>
        <source>Old</source>
        <translation type="vanished">Alt</translation>
    </message>
</context>
</TS>
"""
XLIFF = """<?xml version='1.0' encoding='utf-8'?>
<xliff xmlns="urn:oasis:names:tc:xliff:document:1.2" version="1.2">
  <file source-language="en" target-language="de" datatype="plaintext" original="a">
    <body>
      <trans-unit id="1"><!-- a note -->
        <source>Press <g id="1">here</g> &amp; wait<x id="2"></x></source>
        <seg-source><mrk mtype="seg" mid="1">Press <g id="1">here</g> &amp; wait<x id="2"></x></mrk></seg-source>
      </trans-unit>
      <trans-unit id="2" approved="yes">
        <source>Yes</source>
        <target state="final">Ja</target>
      </trans-unit>
      <trans-unit id="3"
          translate='no'><source>&quot;API&quot; > &#8230;</source></trans-unit>
      <trans-unit id="4">
        <source>No</source>
        <target state="needs-translation">No</target>
      </trans-unit>
    </body>
  </file>
</xliff>
"""
TMX = """<?xml version="1.0"?>
<tmx version="1.4"><header srclang="*all*" datatype="plaintext"/>
  <body>
    <tu>
      <tuv xml:lang="FR"><seg>Oui</seg></tuv>
      <tuv xml:lang="de"><seg>Ja</seg></tuv>
      <tuv xml:lang="en-US"><seg>Yes</seg></tuv>
    </tu>
    <tu>
      <tuv xml:lang="en"><prop type="x">1</prop><seg>No</seg></tuv>
    </tu>
  </body>
</tmx>
"""
ANDROID = """<?xml version='1.0' encoding='utf-8'?>
<!-- notes --><resources
    xmlns:x="urn:x">
    <string name='one'
        >It\\'s <b>"new"</b> &#8230;</string>
    <string name="two" translatable="false">API</string>
    <plurals name="three">
        <item quantity="one">%d file</item>
        <item quantity="other">%d files</item>
    </plurals>
</resources>
"""


def opened(folder: Path, name: str, text: str, encoding: str = "utf-8") -> BilingualFile:
    path = folder / name
    path.write_bytes(text.encode(encoding))
    return BilingualFile(path, ["en", "de"])


@pytest.mark.parametrize(
    ("languages", "codes", "found"),
    [
        (("en", "de"), ("EN_GB", "de-AT"), "EN_GB de-AT"),
        (("en-US", "de-DE"), ("en", "de"), "en de"),
        (("en_us", "de"), ("en-GB", "EN-US", "de"), "EN-US de"),
        (("en-US", "de"), ("en-GB", "de"), "en-GB de"),
        (("en-US", "de"), ("en-GB", "en-AU", "de"), ""),
        (("en", "de"), ("en-GB", "en-AU", "de"), "en-GB de"),
        (("en", "pt-BR"), ("en", "pt-PT"), ""),  # else nothing would be left to translate
        (("en-US", "en-GB"), ("en-GB", "en"), "en en-GB"),
        (("en-US", "en-GB"), ("en-GB",), ""),
        (("sr-Latn-RS", "de"), ("sr-Cyrl-RS", "de"), ""),
        (("en", "de"), ("de", "fr"), ""),
        (("eng_Latn", "rus_Cyrl"), ("en", "ru-RU"), "en ru-RU"),
        (("en", "zh_TW"), ("en", "zh-CN", "zh-Hant"), "en zh-Hant"),
    ],
)
def test_a_language_is_found_under_near_codes(
    tmp_path: Path, languages: tuple[str, str], codes: tuple[str, ...], found: str
) -> None:
    variants = "".join(f'<tuv xml:lang="{code}"><seg>{code}</seg></tuv>' for code in codes)
    header = '<?xml version="1.0"?><tmx version="1.4"><header srclang="*all*" datatype="plaintext"/><body><tu>'
    path = tmp_path / "a.tmx"
    path.write_text(f"{header}{variants}</tu></body></tmx>")
    file = BilingualFile(path, languages)
    assert [" ".join(pair) for pair in file.pairs()] == [found] * bool(found)
    assert (file.lacking, file.complete) == (int(not found), int(bool(found)))
    assert list(file.codes) == [code.lower().replace("_", "-") for code in codes]


def filled(file: BilingualFile, forms: list[str], review: bool = True) -> str:
    """The file after its open units have been written."""
    for unit in file.units:
        if unit.is_open:
            unit.write(forms[: len(unit.sources)], review)
    return file.content().decode()


def test_finished_translations_are_read(tmp_path: Path) -> None:
    assert list(opened(tmp_path, "a.po", PO).pairs()) == [("Open", "Otwórz")]
    assert list(opened(tmp_path, "a.ts", TS).pairs()) == [("Save", "Speichern")]
    assert list(opened(tmp_path, "a.xlf", XLIFF).pairs()) == [("Yes", "Ja")]
    assert list(opened(tmp_path, "a.tmx", TMX).pairs()) == [("Yes", "Ja")]  # by the languages that it names


@pytest.mark.parametrize(
    ("name", "content", "own"),
    [("a.po", PO, "Language: {}\\n"), ("a.ts", TS, ' language="{}"'), ("a.xlf", XLIFF, ' target-language="{}"')],
)
def test_a_file_in_another_language_than_it_says_is_an_error(tmp_path: Path, name: str, content: str, own: str) -> None:
    language = "pl" if name == "a.po" else "de"
    assert own.format(language) in content

    def check(said: str, wanted: str) -> None:
        new = own.format(said) if said else ""
        (tmp_path / name).write_text(content.replace(own.format(language), new))
        BilingualFile(tmp_path / name, ("en", wanted)).check_language()

    for said, wanted in (("de", "de"), ("de_AT", "de"), ("DE", "de_CH"), ("deu", "deu_Latn"), ("", "de"), ("nb", "no")):
        check(said, wanted)
    for said, wanted in (("fr", "de"), ("fr", "deu_Latn"), ("pt_PT", "pt_BR"), ("zh_TW", "zho_Hans")):
        with pytest.raises(UserError, match=f"says that its translations are in {said}, not in {wanted}"):
            check(said, wanted)


def test_each_plural_form_comes_with_its_source(tmp_path: Path) -> None:
    found = [unit for unit in opened(tmp_path, "a.po", PO).units if unit.is_open]
    assert [unit.sources for unit in found] == [["%d file", "%d files", "%d files"]]


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_only_translations_change(tmp_path: Path, newline: str) -> None:
    for name, text, changes in [
        (
            "a.po",
            PO,
            {
                "#, c-format\nmsgid": "#, fuzzy, c-format\nmsgid",
                'msgstr[0] ""\nmsgstr[1] ""\nmsgstr[2] ""': 'msgstr[0] "A %d"\nmsgstr[1] "B"\nmsgstr[2] "C"',
            },
        ),
        (
            "a.ts",
            TS,
            {
                "<numerusform></numerusform>\n            <": "<numerusform>A %d</numerusform>\n            <",
                "<numerusform></numerusform>": "<numerusform>B</numerusform>",
            },
        ),
        (
            "a.xliff",
            XLIFF,
            {
                "</seg-source>\n": '</seg-source>\n        <target state="needs-review-translation">'
                '<mrk mtype="seg" mid="1">A %d</mrk></target>\n',
                '<target state="needs-translation">No<': '<target state="needs-review-translation">A %d<',
            },
        ),
        (
            "a.tmx",
            TMX,
            {"<seg>No</seg></tuv>\n": '<seg>No</seg></tuv>\n      <tuv xml:lang="de"><seg>A %d</seg></tuv>\n'},
        ),
        (
            "strings.xml",
            ANDROID,
            {'>It\\\'s <b>"new"</b> &#8230;<': ">A %d<", ">%d file<": ">A %d<", ">%d files<": ">B<"},
        ),
    ]:
        expected = text
        for before, after in changes.items():
            assert before in expected
            expected = expected.replace(before, after)
        file = opened(tmp_path, name, text.replace("\n", newline))
        assert file.content().decode() == text.replace("\n", newline), name
        assert filled(file, ["A %d", "B", "C"]) == expected.replace("\n", newline), name


def test_translations_are_marked_as_finished_if_asked(tmp_path: Path) -> None:
    assert "fuzzy\nmsgid" not in filled(opened(tmp_path, "a.po", PO), ["A %d", "B", "C"], review=False)
    assert "unfinished" not in filled(opened(tmp_path, "a.ts", TS), ["A", "B"], review=False)
    assert "needs" not in filled(opened(tmp_path, "a.xlf", XLIFF), ["A"], review=False)


def test_inline_elements_are_written_as_elements(tmp_path: Path) -> None:
    file = opened(tmp_path, "a.xlf", XLIFF)
    assert file.units[0].sources == ['Press <g id="1">here</g> &amp; wait<x id="2"/>']
    file.units[0].write(['Warte &amp; drücke <g id="1">hier</g><x id="2"/>'], True)
    assert '>Warte &amp; drücke <g id="1">hier</g><x id="2"/></mrk></target>' in file.content().decode()
    with pytest.raises(ExpatError):
        file.units[0].write(["<g>Warte"], True)


def test_strings_of_android_have_the_forms_of_the_target_language(tmp_path: Path) -> None:
    (tmp_path / "strings.xml").write_text(ANDROID)
    file = BilingualFile(tmp_path / "strings.xml", ["en", "pl"])
    assert [unit.sources for unit in file.units] == [
        ["It's <b>new</b> …"],
        ["%d file", "%d files", "%d files", "%d files"],
    ]
    text = filled(file, ["1's", "2", "3", "4"])
    assert "\n        >1\\'s</string>" in text
    items = [("one", "1\\'s"), ("few", "2"), ("many", "3"), ("other", "4")]
    assert re.findall('quantity="(.*)">(.*)<', text) == items
    assert re.sub("(?s)<plurals.*</plurals>", "", text) == re.sub("(?s)<plurals.*</plurals>", "", ANDROID).replace(
        'It\\\'s <b>"new"</b> &#8230;', "1\\'s"
    )


def test_a_line_break_in_a_string_of_android_wraps_nothing(tmp_path: Path) -> None:
    line = "A line that seems to be wrapped at some column, as it is so long"
    text = f"<resources><string name='a'>{line}\\ngoes on.</string></resources>"
    file = opened(tmp_path, "strings.xml", text)
    assert file.string(file.units[0]).texts == [line, "goes on."]


@pytest.mark.parametrize(
    ("language", "forms"),
    [
        ("rus_Cyrl", (3, 4, 3)),
        ("jpn_Jpan", (1, 1, 1)),
        ("pt_BR", (2, 3, 2)),
        ("zho_Hant", (1, 1, 1)),
        ("no", (2, 2, 2)),
    ],
)
def test_plural_forms_are_those_of_the_language_in_whatever_form_its_code_is(
    tmp_path: Path, language: str, forms: tuple[int, ...]
) -> None:
    header = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\n'
    (tmp_path / "a.po").write_text(header + 'msgid "%d file"\nmsgid_plural "%d files"\nmsgstr[0] ""\n')
    (tmp_path / "a.xml").write_text(ANDROID)
    (tmp_path / "a.ts").write_text(TS.replace(' language="de"', "").replace("<numerusform></numerusform>", ""))
    files = [BilingualFile(tmp_path / name, ("en", language)) for name in ("a.po", "a.xml", "a.ts")]
    assert tuple(max(len(unit.sources) for unit in file.units) for file in files) == forms


def test_a_variant_gets_the_code_that_the_file_has_for_its_language(tmp_path: Path) -> None:
    for own, code in (("DE-de", "DE-de"), ("fr", "de")):
        path = tmp_path / "a.tmx"
        path.write_text(TMX.replace('xml:lang="de"', f'xml:lang="{own}"'))
        file = BilingualFile(path, ("en", "deu_Latn"))
        assert f'<tuv xml:lang="{code}"><seg>Nein</seg></tuv>' in filled(file, ["Nein"])


def test_a_template_becomes_a_catalog_of_the_language(tmp_path: Path) -> None:
    header = HEADER.replace("pl", "", 1).replace("UTF-8", "CHARSET").split('"Plural')[0]
    (tmp_path / "a.pot").write_text(
        header + '"Plural-Forms: nplurals=INTEGER; plural=EXPRESSION;\\n"\n' + PO[len(HEADER) :]
    )
    file = BilingualFile(tmp_path / "a.pot", ("en", "rus_Cyrl"))
    text = filled(file, ["1", "2", "3"])
    assert '"Language: ru\\n"' in text
    assert "charset=UTF-8" in text
    assert re.search(r'"Plural-Forms: nplurals=3; plural=\(n%10==1', text)
    assert 'msgstr[2] "3"' in text


@pytest.mark.parametrize("name", ["a.sdlxliff", "a.mqxliff", "a.xml", "a.XLF.gz"])
def test_xliff_of_other_names_comes_back_as_it_was(tmp_path: Path, name: str) -> None:
    own = ' xmlns:sdl="http://sdl.com/FileTypes/SdlXliff/1.0" sdl:version="1.0">'
    defined = '<sdl:seg-defs><sdl:seg id="1" conf="Draft"><sdl:value key="a">1</sdl:value></sdl:seg></sdl:seg-defs>'
    text = "\ufeff" + XLIFF.replace('version="1.2">', 'version="1.2"' + own).replace(
        "</trans-unit>", defined + "</trans-unit>"
    )
    raw = text.encode()
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    file = BilingualFile(tmp_path / name, ("en", "de"))
    assert file.content() == raw
    assert len(file.units) == 3
    assert ">Ja neu</target>" in filled(file, ["Ja neu"])


def test_a_file_without_units_stays(tmp_path: Path) -> None:
    text = '<xliff><file><group id="a"/></file></xliff>'
    assert opened(tmp_path, "a.xliff", text).content() == text.encode()


def test_utf_16_stays(tmp_path: Path) -> None:
    for encoding in ("utf-16-le", "utf-16-be"):
        text = "\ufeff" + TMX.replace('"1.0"', '"1.0" encoding="utf-16"', 1)
        file = opened(tmp_path, "a.tmx", text, encoding)
        assert file.content() == text.encode(encoding)


@pytest.mark.parametrize(
    ("encoding", "word"), [("KOI8-R", "дом"), ("CP1252", "“é”"), ("Shift_JIS", "表"), ("utf-8-sig", "家")]
)
def test_gettext_has_the_encoding_of_its_header(tmp_path: Path, encoding: str, word: str) -> None:
    """Even where what follows the header begins with such characters, which the toolkit takes for Latin-1."""
    charset = encoding.removesuffix("-sig")
    header = f'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset={charset}\\n"\n\n# {word}\n'
    text = f'{header}msgid "a {word}"\nmsgstr "{word}"\n\nmsgid "b {word}"\nmsgstr "%s"\n'
    file = opened(tmp_path, "a.po", text % "", encoding)
    assert [unit.sources for unit in file.units] == [[f"a {word}"], [f"b {word}"]]
    file.units[1].write([word], False)
    assert file.content() == (text % word).encode(encoding)
    file.units[1].write(["한"], False)
    if charset != "utf-8":  # it lacks this character
        assert file.content() == (text % "한").replace(charset, "UTF-8").encode()


BOMB = '<!DOCTYPE TS [<!ENTITY a "aaaa">' + "".join(f'<!ENTITY b{n} "&a;&a;">' for n in range(9)) + "]>"
STOLEN = '<!DOCTYPE TS [<!ENTITY a SYSTEM "file:///etc/passwd">]>'


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.ts", TS.replace("<!DOCTYPE TS>", BOMB).replace("Old", "&b8;"), "declares entities"),
        ("a.ts", TS.replace("<!DOCTYPE TS>", STOLEN).replace("Old", "&a;"), "declares entities"),
        ("a.xlf", XLIFF[:-20], "cannot be read as .xlf: "),
        ("a.xlf", XLIFF.replace("version='1.0' encoding='utf-8'", "version='1.0' encoding='ascii'", 1) + "ä", "cannot"),
        ("a.tmx", TS, "cannot be read as .tmx"),
        ("a.po", "some text\n", "cannot be read as .po: line 1: no entry of msgid and msgstr: 'some text"),
        ("a.po", PO[len(HEADER) :], "has no header"),
        ("a.po", PO.replace("nplurals=3", "nplurals=999999999"), "has 999999999 plural forms"),
        ("a.mo", PO, "cannot be read as .mo"),
        ("a.tmx", "", "cannot be read as .tmx"),
        ("strings.xml", "<?xml version='1.0'?>" + STOLEN + "<resources>&a;</resources>", "declares entities"),
        ("strings.xml", "<html></html>", "is none of the formats of translators"),
        ("a.ts", "export default {a: 1}\n", "is no file of Qt Linguist"),
        ("a.xlf", '<xliff version="2.0"></xliff>', "is XLIFF 2, and only XLIFF 1.2 is read\n"),
    ],
)
def test_damaged_and_hostile_files_are_one_error(tmp_path: Path, name: str, content: str, problem: str) -> None:
    with pytest.raises(UserError, match=problem) as caught:
        opened(tmp_path, name, content)
    assert str(tmp_path / name) in caught.value.message
    assert "\n" not in caught.value.message


def test_a_wrong_encoding_and_a_huge_file_are_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"cannot be read as \.po: line 12: 'utf-8' codec"):
        opened(tmp_path, "a.po", PO, "iso-8859-2")
    header = b'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\n'
    (tmp_path / "a.po").write_bytes(header + b'msgid "\xe4"\nmsgstr ""\n')  # right behind the header
    with pytest.raises(UserError, match=r"cannot be read as \.po: line 4: 'utf-8' codec"):
        BilingualFile(tmp_path / "a.po", ["en", "de"])
    monkeypatch.setattr(declared, "LARGEST_FILE", 100)
    with pytest.raises(UserError, match="has more than 100 bytes"):
        opened(tmp_path, "a.po", PO)


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize(
    ("name", "text"), [("a.po", PO), ("a.ts", TS), ("a.xlf", XLIFF), ("a.tmx", TMX), ("strings.xml", ANDROID)]
)
def test_a_unit_takes_over_all_that_another_version_of_it_has(
    tmp_path: Path, name: str, text: str, newline: str
) -> None:
    same, one, other = (opened(tmp_path, name, text.replace("\n", newline)) for _ in range(3))
    for unit in same.units:
        same.keep(unit, unit, False)
    assert same.content() == one.content()
    for number, unit in enumerate(one.units):
        unit.write([f"{number} {source}" for source in unit.sources], number % 2 > 0, "model")
    written = one.other(one.path, one.content())
    for unit, filled in zip(other.units, written.units, strict=True):
        other.keep(unit, filled, False)
    assert other.content() == one.content()
    edited = one.other(one.path, one.content())
    for unit in edited.units:
        unit.write([f"{source}!" for source in unit.sources], False)
    assert rest_of(one.other(one.path, edited.content())) == rest_of(written)


def test_pairs_are_placed_in_the_line_of_their_unit(tmp_path: Path) -> None:
    path = tmp_path / "app.po"
    units = ['#. note\nmsgid "Open"\nmsgstr "Öffnen"', '#, fuzzy\nmsgid "No"\nmsgstr "?"']
    units += ['msgid "a %d"\nmsgid_plural "as %d"\nmsgstr[0] "b %d"\nmsgstr[1] "bs %d"', 'msgid "End"\nmsgstr "Ende"']
    header = 'msgid ""\nmsgstr ""\n"Language: de\\n"\n"Plural-Forms: nplurals=2; plural=(n != 1);\\n"'
    path.write_text("\n\n".join([header, *units, ""]), encoding="utf-8")
    found = [(line, source) for line, source, _ in BilingualFile(path, ("en", "de")).placed_pairs()]
    text = path.read_text(encoding="utf-8").splitlines()
    assert [text[line - 1] for line, _ in found] == ['msgid "Open"', 'msgid "a %d"', 'msgid "a %d"', 'msgid "End"']
