"""PO files are read as gettext reads them, and nothing but translations and the flag `fuzzy` changes in them."""

from __future__ import annotations

import gettext
import io
import re
import shutil
import subprocess
from collections.abc import Callable

import pytest

from nmt.formats.gettext import PoFile

pytest.importorskip("translate", reason="needs the package translate-toolkit")

TYPE = '"Content-Type: text/plain; charset=UTF-8\\n"\n'
FORMS = '"Plural-Forms: nplurals=2; plural=n != 1;\\n"\n'
HEADER = f'# by hand\n#, fuzzy\nmsgid ""\nmsgstr ""\n"Language: de\\n"\n{TYPE}{FORMS}'
NASTY = (
    HEADER
    + """\r
#: a.c:1\r
#. extracted, after the place\r
#,c-format\r
#| msgid "%d old"\r
msgid"%d \\"new\\""\r
  msgstr  ""\r
  "ein "\r
  "alter"\r



#, fuzzy
#~| msgid "gone before"
#~ msgid "gone"
#~ msgstr "weg"
#~
#| msgctxt "a\\tb"
#| msgid "was"
msgctxt "a\\tb" msgid "one" "\\x120" "file" msgid_plural
"%d files" msgstr[ 0 ]"" # of one
msgstr[1] "" msgid "next" msgstr "nächstes"
\x20\t
#, no-wrap, fuzzy
msgid ""
"two\\n"
"lines\\n"
msgstr "two\\nlines\\n"
#, fuzzy
msgid\r
"flagged"
msgstr ""
#~ msgid "last"
#~ msgstr "\""""
)


def opened(text: str, encoding: str = "utf-8") -> PoFile:
    return PoFile(text.encode(encoding), ["en", "de"])


def written(text: str, translate: Callable[[str], str], review: bool = True) -> str:
    """The file with all its units translated."""
    file = opened(text)
    for unit in file.units:
        unit.write([translate(source) for source in unit.sources], review)
    return file.content().decode()


def test_messages_are_read_wherever_their_parts_stand() -> None:
    units = opened(NASTY).units
    assert [unit.sources for unit in units] == [
        ['%d "new"'],
        ["one file", "%d files"],
        ["next"],
        ["two\nlines\n"],
        ["flagged"],
    ]
    assert [unit.targets for unit in units] == [["ein alter"], ["", ""], ["nächstes"], ["two\nlines\n"], [""]]
    assert [unit.context for unit in units] == ["", "a\tb", "", "", ""]
    assert [unit.needs_review for unit in units] == [False, False, False, True, True]
    assert [unit.is_open for unit in units] == [False, True, False, False, True]


def test_bytes_outside_translations_and_flags_stay() -> None:
    """Each line end too, though it differs from entry to entry."""
    changes = [
        ("#,c-format\r\n", "#, fuzzy,c-format\r\n"),
        ('msgstr  ""\r\n  "ein "\r\n  "alter"\r\n', 'msgstr  "%D \\"NEW\\""\r\n'),
        ('#| msgctxt "a\\tb"', '#, fuzzy\n#| msgctxt "a\\tb"'),
        ('msgstr[ 0 ]"" # of one\nmsgstr[1] "" ', 'msgstr[ 0 ]"ONE FILE" # of one\nmsgstr[1] "%D FILES" '),
        ('msgid "next" msgstr "nächstes"', '\n#, fuzzy\nmsgid "next" msgstr "NEXT"'),
        ('msgstr "two\\nlines\\n"', 'msgstr ""\n"TWO\\n"\n"LINES\\n"'),
        ('"flagged"\nmsgstr ""', '"flagged"\nmsgstr "FLAGGED"'),
    ]
    expected = NASTY
    for before, after in changes:
        assert expected.count(before) == 1, before
        expected = expected.replace(before, after)
    assert written(NASTY, str.upper) == expected
    assert written("\ufeff" + NASTY.rstrip('"'), str.upper) == "\ufeff" + expected.rstrip('"')
    assert opened(NASTY).content().decode() == NASTY
    again = opened(expected)
    for unit in again.units:
        unit.write(unit.targets, unit.needs_review)
    assert again.content().decode() == expected, "what is there already is not laid out anew"


def test_the_flag_goes_without_a_trace() -> None:
    done = written(NASTY, str.upper, review=False)
    assert "#, no-wrap\nmsgid" in done
    assert 'msgstr ""\n"TWO\\n"\n"LINES\\n"\nmsgid\r\n"flagged"' in done
    assert re.findall("fuzzy", done) == ["fuzzy", "fuzzy"], "of the header, and of an obsolete message"


def test_a_message_that_is_not_to_be_wrapped_keeps_the_line_breaks_of_its_text_alone() -> None:
    line = "nine words " * 9
    text = f'{HEADER}\n#, {{}}\nmsgid "{line}"\nmsgstr ""\n\n#, {{}}\nmsgid "{line}\\nshort"\nmsgstr ""\n'
    unwrapped = written(text.format("no-wrap", "c-format, no-wrap"), str.upper)
    assert f'msgstr "{line.upper()}"\n\n' in unwrapped
    assert unwrapped.endswith(f'msgstr ""\n"{line.upper()}\\n"\n"SHORT"\n')
    wrapped = written(text.format("c-format", "c-format"), str.upper)
    assert line.upper() not in wrapped


@pytest.mark.parametrize(
    ("header", "word", "expected"),
    [
        ('msgstr "Language: de\\n"\n', "Maß", f'msgstr {TYPE}"Language: de\\n"\n'),
        ('msgstr ""\n"Language: de\\n"\n', "Maß", f'msgstr ""\n{TYPE}"Language: de\\n"\n'),
        ('msgstr ""\n"Content-Type: text/plain\\n"\n', "Maß", f'msgstr ""\n{TYPE}'),
        (f'msgstr ""\n{TYPE}'.replace("UTF-8", "CHARSET"), "Maß", f'msgstr ""\n{TYPE}'),
        (f'msgstr ""\n{TYPE}'.replace("UTF-8", "ASCII"), "Maß", f'msgstr ""\n{TYPE}'),
        ('msgstr ""\n"Language: de\\n"\n', "Mass", 'msgstr ""\n"Language: de\\n"\n'),
    ],
)
def test_a_header_names_the_encoding_once_letters_need_one(header: str, word: str, expected: str) -> None:
    text = f'msgid ""\n{header}\nmsgid "Content-Type: a; charset=koi8-r"\nmsgstr ""\n'
    assert opened(text).content().decode() == text
    before, after = text.replace(header, expected).rsplit('""', 1)
    assert written(text, lambda _: word, review=False) == f'{before}"{word}"{after}'


def test_forms_that_the_header_declares_are_added_or_removed() -> None:
    one = opened(HEADER + '\r\nmsgid "a"\r\nmsgid_plural "b"\r\nmsgstr[0] ""\r\n')
    one.units[0].write(["c", "d"], False)
    assert one.content().decode().endswith('\r\nmsgstr[0] "c"\r\nmsgstr[1] "d"\r\n')
    three = opened(HEADER + '\nmsgid "a"\nmsgid_plural "b"\nmsgstr[0] ""\nmsgstr[1] ""\nmsgstr[2] ""\n')
    three.units[0].write(["c", "d"], False)
    assert three.content().decode().endswith('\nmsgstr[0] "c"\nmsgstr[1] "d"\n')
    single = HEADER.replace("nplurals=2; plural=n != 1", "nplurals=1; plural=0")
    (unit,) = opened(single + '\nmsgid "a"\nmsgid_plural "b"\nmsgstr[0] ""\n').units
    assert (unit.sources, unit.is_open) == (["b"], True)
    filled = opened(HEADER + '\nmsgid "a"\nmsgid_plural "b"\nmsgstr[0] "c"\n').units[0]
    assert (filled.is_open, filled.gaps) == (False, 1)


@pytest.mark.parametrize(("source", "is_open"), [("a", True), (" ", False), ("\\n", False)])
def test_white_space_alone_is_a_translation_of_white_space_alone(source: str, is_open: bool) -> None:
    (unit,) = opened(f'{HEADER}\nmsgid "{source}"\nmsgstr " "\n').units
    assert unit.is_open == is_open


def test_lines_are_wrapped_as_gettext_wraps_them() -> None:
    """At 79 columns with their quotes: a text that fits the line of its keyword stays there."""
    text = HEADER + '\nmsgid "a"\nmsgstr ""\n'
    assert written(text, lambda _: "b" * 70).endswith(f'\nmsgstr "{"b" * 70}"\n')
    assert written(text, lambda _: "b" * 71).endswith(f'\nmsgstr ""\n"{"b" * 71}"\n')
    assert written(text, lambda _: "木" * 36).endswith(f'\nmsgstr ""\n"{"木" * 36}"\n')
    assert written(text, lambda _: "word " * 20).endswith(f'\nmsgstr ""\n"{"word " * 15}"\n"{"word " * 5}"\n')


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('msgid "a"\nmsgstr "b\n', 'line 10: .*"b'),
        ('msgid "a"\n\nmsgid "b"\nmsgstr ""\n', 'line 9: .*msgid "a"'),
        ('msgid "a"\nmsgid_plural "b"\nmsgstr ""\n', "line 9: "),
        ('msgid "a"\nmsgstr ""\nmsgstr ""\n', "line 9: "),
        ("msgid\nmsgstr\n", "line 9: "),
        ('msgid "a"\nmsgstr ""\n# between\n"b"\n', "line 11: .*# between"),
        ('"a"\n[1]\n', r"line 10: .*\[1\]"),
        ("#~ a\nmsgstring\n", "line 10: .*string"),
    ],
)
def test_what_is_no_message_is_an_error_with_its_line(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        opened(f"{HEADER}\n{text}")


@pytest.mark.skipif(shutil.which("msgfmt") is None, reason="needs msgfmt of gettext")
def test_gettext_reads_what_is_written() -> None:
    """Characters that have escapes in C come back as well."""
    odd = 'tab\tbell\aquote"back\\slash\x1b end'
    texts = {source: f"{source[::-1]} {odd} ß" for source in ('%d "new"', "one file", "%d files", "next", "flagged")}
    text = HEADER.replace("#, fuzzy\n", "") + NASTY[len(HEADER) :].replace("c-format", "no-c-format")
    text = text.replace(" # of one", "")  # which it does not allow
    done = written(text, lambda source: texts.get(source, source), review=False)
    compiled = subprocess.run(["msgfmt", "-c", "-o", "-", "-"], input=done.encode(), capture_output=True, check=True)
    catalog = gettext.GNUTranslations(io.BytesIO(compiled.stdout))
    assert catalog.gettext("next") == texts["next"]
    assert catalog.gettext("two\nlines\n") == "two\nlines\n"
    assert [catalog.npgettext("a\tb", "one file", "%d files", n) for n in (1, 2)] == [
        texts["one file"],
        texts["%d files"],
    ]
