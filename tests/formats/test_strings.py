"""Accelerators, edges, ends and placeholders of programs' strings."""

from __future__ import annotations

import pytest
from copying import as_it_was

from nmt.formats.strings import Accelerators, ProgramString, plain_pairs, read_string

GTK = ["_Open", "Save _As…", "E_xit", "Print line nu_mbers", "Line numbers", "mask_apply", "%(file_name)s"]
QT = ["&File", "E&xit", "Drag && Drop", "R&D", "Tom &amp; Jerry", "Find & replace"]


@pytest.mark.parametrize(
    ("texts", "mark", "letters"),
    [
        (GTK, "_", ["O", "A", "x", "m", "", "", ""]),
        (QT, "&", ["F", "x", "", "", "", ""]),
        (["Save ~As", "~File"], "~", ["A", "F"]),
        (["mask_apply", "the _name of a function", "gtk_main_quit"], "", ["", "", ""]),
        (["&lt;none&gt;", "AT&T", "&#39;x&#39;"], "", ["", "", ""]),
        (["ファイル(&F)", "&Edit"], "&", ["F", "E"]),
    ],
)
def test_accelerators_are_found_by_the_file(texts: list[str], mark: str, letters: list[str]) -> None:
    found = Accelerators(texts)
    assert found.mark == mark
    assert [found.split(text)[1] for text in texts] == letters


def test_a_run_of_marks_takes_no_time_that_grows_with_the_square_of_its_length() -> None:
    assert Accelerators(["_" * 100_000, "_File"]).mark == "_"


@pytest.mark.parametrize(
    ("source", "translation", "expected"),
    [
        ("_File", "Fil", "_Fil"),
        ("E_xit", "Avsluta", "_Avsluta"),  # no x: the first letter
        ("Save _As…", "Spara som", "Sp_ara som…"),
        ("Show _spaces", "Show spaces", "Show _spaces"),
        ("_As %s", "%s som", "%s _som"),  # never inside a placeholder
        ("_As %(a)s", "%(a)s a", "%(a)s _a"),
        ("_Open:", "開く", "開く(_O):"),
        ("_Open\tCtrl+O", "Datei\tCtrl+O", "_Datei\tCtrl+O"),  # nor inside a shortcut, or a name
        ("_Open\tCtrl+O", "開く\tCtrl+O", "開く(_O)\tCtrl+O"),
        ("_Open x.conf, c.org", "x.conf, c.org ändern", "x.conf, c.org _ändern"),
        ("_Open x.conf", "x.conf", "x.c_onf"),
        ("Open", "_Öppna", "Öppna"),  # an accelerator that the source has not
        ("  Name:\n", "Namn", "  Namn:\n"),
        ("Save", "Spara.", "Spara"),
        ("Wait...", "Vänta…", "Vänta..."),
        ("Wait ...", "Vänta ...", "Vänta ..."),
        ("%s of %d", "%d av %s", "%s av %d"),  # filled in by their order
        ("%s of %d", "%s av", ""),  # lost
        ("All of it", "%d av allt", ""),  # invented
        ("%C18*%O$tGone", "%C 1*%1%1 borta", ""),  # of a program's own kind
        ("<b>All</b>", "<b>Allt", ""),
        ("<b>_File:</b>", "<b>Fil</b>", "<b>_Fil:</b>"),  # the end stands before or behind tags, as in the source
        ("<b>File</b>:", "<b>Fil</b>", "<b>Fil</b>:"),
        ("<b>File</b>", "<b>Fil.</b>", "<b>Fil</b>"),
        ("Open it.", "Åpne den !", "Åpne den."),
        ("<b>Wait</b> ...", "<b>Vent</b>!", "<b>Vent</b> ..."),
        ("Wait!", "Vent!", "Vent!"),
        ("Hello! Open it.", "Hei! Åpne den!", "Hei! Åpne den!"),
        ("[b]File[/b]", "[b]Fil.[/b]", "[b]Fil[/b]"),
        (
            "[b]A dog[/b] sees [url=https://x.org]the cat[/url]",
            "[b]Ein Hund[/b] sieht [url=https://x.org]die Katze[/url]",
            "[b]Ein Hund[/b] sieht [url=https://x.org]die Katze[/url]",
        ),
    ],
)
def test_a_translation_has_what_programs_need(source: str, translation: str, expected: str) -> None:
    assert ProgramString(source, Accelerators([*GTK, source])).dressed(translation) == expected


def test_the_language_says_what_ends_a_string() -> None:
    string = ProgramString("Name:", Accelerators([]), lambda end: "\u00a0" + end)
    assert [string.dressed(text) for text in ("Nom", "Nom\u00a0:", "Nom:")] == ["Nom\u00a0:", "Nom\u00a0:", "Nom:"]


@pytest.mark.parametrize(
    ("language", "source", "translation", "expected"),
    [
        ("hi", "Done.", "हो गया।", "हो गया।"),  # a full stop, which the toolkit does not know
        ("hi", "Done", "हो गया।", "हो गया"),
        ("bn", "Done.", "শেষ।", "শেষ।"),
        ("bn", "Done.", "শেষ", "শেষ।"),
        ("ur", "Done.", "ہو گیا۔", "ہو گیا۔"),
        ("ne", "Done.", "भयो ।", "भयो ।"),
        ("my", "Done.", "ပြီးပြီ။", "ပြီးပြီ။"),
        ("km", "Name:", "ឈ្មោះ៖", "ឈ្មោះ៖"),
        ("hy", "Name:", "Անուն՝", "Անուն՝"),
        ("ja", "Done.", "完了｡", "完了｡"),
        ("ja", "Name:", "名前：", "名前："),
        ("ja", "名称：", "名前", "名前："),
        ("zh", "Loading...", "正在加载……", "正在加载..."),
        ("zh", "Loading…", "正在加载……", "正在加载……"),
        ("zh", "Loading...", "正在加载。。。", "正在加载。。。"),
        ("zh", "_File...", "文件……", "文件(_F)..."),
        ("ko", "_File", "파일", "파일(_F)"),
        ("en", "完成。", "Done.", "Done."),
        ("en", "完成。", "Done", "Done."),
        ("en", "名称：", "Name:", "Name:"),
        ("en", "हो गया।", "Done.", "Done."),
        ("en", "ہو گیا۔", "Done.", "Done."),
        ("en", "Nom\u00a0:", "Name", "Name:"),
        ("en", "正在加载……", "Loading…", "Loading…"),
        ("sv", "Wait ...", "Vänta", "Vänta ..."),
        # Inside quotation marks or brackets in one of both
        ("ja", 'He said "no."', "「いいえ」と言った。", "「いいえ」と言った。"),
        ("ja", "He said no.", "彼は「いいえ。」", "彼は「いいえ。」"),
        ("de", "Take one (a dog, etc.).", "Nimm einen (einen Hund usw.)", "Nimm einen (einen Hund usw.)."),
    ],
)
def test_ends_of_all_scripts(language: str, source: str, translation: str, expected: str) -> None:
    punctuation = pytest.importorskip("translate.lang.factory").getlanguage(language).punctranslate
    assert ProgramString(source, Accelerators([*GTK, source]), punctuation).dressed(translation) == expected


TEXTS = [
    "Usage: foo [OPTION]\n\n  -v, --verbose   print more\n\n",
    " padded\tby tabs  and spaces ",
    "This is a long text that a programmer has wrapped at some column, as\nis usual in a terminal. It goes on here.\n",
    "\n",
    "%s",
    "Name\nAddress\nCity\n",
    "<p>The boy sees\n   the cat.</p>\n<p>A dog</p>",
    "See <code>a\n\nb</code> it.  Two\n",
    "{n, plural,\n  one {# dog}\n  other {# dogs}}",
    "x <b>  y\n</b> z",
    "<b>{a}</b>{b} and {na<i>me}</i>",
    "<b>https://x.org/a</b>b and $1<x/>$1",
    "_Find:",
]


@pytest.mark.parametrize("text", ["The dog: %s\r\n\r\nThe cat.\r\n", "The dog.\r\nThe cat", "a long\nline.\r\nThe"])
def test_lines_end_as_they_did(text: str) -> None:
    string = ProgramString(text, Accelerators([]))
    assert string.put({part: part.replace("The", "Der") for part in string.texts}) == text.replace("The", "Der")
    is_windows = text.count("\r") == text.count("\n")
    assert not (is_windows and any("\r" in part for part in string.texts))


@pytest.mark.parametrize("text", TEXTS)
def test_spaces_and_lines_stay_where_they_are(text: str) -> None:
    string = ProgramString(text, Accelerators(GTK))
    assert string.put({part: as_it_was(read_string(part)) for part in string.texts}) == text
    doubled = string.put({part: part.replace("a", "aa") for part in string.texts})
    assert doubled.count("\n") == text.count("\n")
    found = [piece for text in string.texts for piece in read_string(text).pieces]
    assert [piece for piece in found if piece != piece.strip()] == []


@pytest.mark.parametrize(
    ("text", "wrapped", "lines"),
    [
        (
            "A <b>long</b> line that seems to be wrapped at some column, as\nit goes on here.",
            ["A <b>long</b> line that seems to be wrapped at some column, as it goes on here."],
            ["A <b>long</b> line that seems to be wrapped at some column, as", "it goes on here."],
        ),
        ("<b>One\ntwo</b>", ["<b>One", "two</b>"], ["<b>One\ntwo</b>"]),
        ("[b]One:\ntwo[/b]\n", ["[b]One:\ntwo[/b]\n"], ["[b]One:\ntwo[/b]\n"]),  # [b] is a tag for its [/b] alone
        ("[b]One[/b]:\ntwo [x]\n", ["[b]One[/b]:", "two [x]"], ["[b]One[/b]:", "two [x]"]),
    ],
)
def test_lines_are_texts_of_their_own_where_a_format_does_not_wrap_them(
    text: str, wrapped: list[str], lines: list[str]
) -> None:
    assert ProgramString(text, Accelerators([])).texts == wrapped
    string = ProgramString(text, Accelerators([]), may_wrap=False)
    assert string.texts == lines
    assert string.put({part: part for part in string.texts}) == text


def test_the_accelerator_is_marked_where_it_is_in_the_source() -> None:
    string = ProgramString("Window &Water", Accelerators(["&File", "Window &Water"]))
    assert string.dressed("Wand Wasser") == "Wand &Wasser"


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        ("The dog runs home.\nThe cat, too", ["The dog runs home.", "The cat, too"]),
        ("Name\tthe dog\n", ["Name\tthe dog"]),
    ],
)
def test_lines_at_whose_end_a_sentence_ends_stay_lines(text: str, texts: list[str]) -> None:
    assert ProgramString(text, Accelerators([])).texts == texts


def test_what_ends_a_string_stands_in_no_copied_element() -> None:
    string = ProgramString("Press <kbd>F1</kbd> now.", Accelerators([]))
    assert string.dressed("Jetzt <kbd>F1</kbd>") == "Jetzt <kbd>F1</kbd>."


def test_a_message_in_an_attribute_is_none_of_the_text() -> None:
    message = "{n, select, a {dog} other {cat}}"
    assert ProgramString(f"A {message}", Accelerators([])).has_message
    assert not ProgramString(f'A <x id="ICU" equiv-text="{message}"/>', Accelerators([])).has_message


def test_a_model_sees_no_special_space_between_words_beside_a_wide_gap() -> None:
    segment = read_string("Run\u00a0five km  name")
    assert segment.pieces == ["Run five km", "name"]
    assert as_it_was(segment) == segment.raw


def test_a_model_sees_no_accelerators_tags_or_breaks() -> None:
    pairs = plain_pairs("<b>_Find</b>\n\nNext one", "<b>_Sök</b>\n\nNästa", Accelerators(GTK))
    assert list(pairs) == [("Find", "Sök"), ("Next one", "Nästa")]
    assert list(plain_pairs("One\n\nTwo", "Ett, två", Accelerators([]))) == [("One Two", "Ett, två")]


@pytest.mark.parametrize(
    "text",
    [
        "_Open the file",
        "Save: re-read, twice (or more). Done...",
        "Line 2 of «a file.txt»",
        "Two  words",
        " words ",
        "1. The dog",
        "a_b",
        "Open %s",
        "No — yes",
    ],
)
def test_words_alone_are_what_a_string_taken_apart_would_give(text: str) -> None:
    accelerators = Accelerators(GTK)
    string = ProgramString(text, accelerators)
    apart = []
    for each in string.texts:
        apart += read_string(each).pieces
    assert list(plain_pairs(text, text, accelerators)) == [(each, each) for each in apart]


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("<p>The boy sees\n   the cat.</p>\n<p>A dog</p>", ["The boy sees the cat.", "A dog"]),
        ("<p>One\n\ntwo</p>", ["One", "two"]),
        ("Name:\tthe dog  <b>a\tcat</b>", ["Name:", "the dog", "a", "cat"]),
        ("Text (*.txt *.md);;All files (*)", ["Text (*.txt *.md)", "All files (*)"]),
        ("See <code>a\n\nb</code> it", ["See <code>a\n\nb</code> it"]),
        ("{n, plural,\n one {# dog}\n other {# dogs}} run", ["{n, plural,\n one {# dog}\n other {# dogs}} run"]),
    ],
)
def test_what_is_laid_out_ends_a_sentence_unless_the_format_wraps_it(text: str, pieces: list[str]) -> None:
    assert read_string(text).pieces == pieces
