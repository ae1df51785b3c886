"""Terms and text to keep: what is found in a source, by format, and what counts as standing in a translation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nmt.formats.names import amounts
from nmt.formats.placeholders import FORMATS
from nmt.formats.terms import (
    PLACEHOLDERS,
    Phrase,
    Span,
    Term,
    Terms,
    find_copies,
    in_order,
    in_translation,
    missing,
    read_terms,
    spaced_like,
)
from nmt.system.errors import UserError

TABLE = [
    Term("dog", "Hund"),
    Term("dog", "köter"),
    Term("New York", "Neu York"),
    Term("York", "Yorck"),
    Term("US", "Vereinigte Staaten", case=True),
    *(Term(word, "Hund") for word in ("犬", "หมา", "ཁྱི", "개")),
]


def sources(text: str, *keep: str, common: bool = True) -> list[str]:
    """What is found in a text."""
    return [phrase.source for phrase in Terms(TABLE, keep, common).phrases(text)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("A Dog, and a DOG!", ["Dog", "DOG"]),  # every occurrence counts
        ("dogs, hotdog, dog_, dog1", []),
        ("dog-house 'dog' (dog)", ["dog", "dog", "dog"]),
        ("new york, York", ["new york", "York"]),
        ("New  York", ["York"]),
        ("us in the US", ["US"]),
        ("小犬が, ฉันเห็นหมาครับ, ཁྱིའི", ["犬", "หมา", "ཁྱི"]),  # scripts without spaces
        ("무지개 개", ["개"]),  # Korean has spaces
        ("do", []),
        ("", []),
    ],
)
def test_terms_stand_as_words_the_longest_first(text: str, found: list[str]) -> None:
    assert sources(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Press Ctrl+Q, F1.", ["Ctrl+Q → Strg+Q", "F1"]),
        ("the C++ compiler and C++", ["C++ compiler → C++-Compiler", "C++"]),
        ("see x.org and a.x.org", ["x.org → x.de", "a.x.org"]),
        ("ctrl+q", ["ctrl+q → Strg+Q"]),
        ("AB-1 Ctrl+W", ["AB-1", "Ctrl+W"]),  # what the user keeps
    ],
)
def test_a_term_counts_more_than_what_is_kept_in_every_text(text: str, found: list[str]) -> None:
    table = [Term("Ctrl+Q", "Strg+Q"), Term("C++ compiler", "C++-Compiler"), Term("x.org", "x.de")]
    terms = Terms([*table, Term("AB-1", "BA-1"), Term("Ctrl+W", "Strg+W")], [r"[A-Z]+-\d", "Ctrl.W"])
    assert [str(phrase) for phrase in in_translation(terms.phrases(text))] == found


def test_a_term_has_its_alternatives() -> None:
    (dog,) = Terms(TABLE).phrases("a dog")
    assert (dog.targets, dog.case) == (("Hund", "köter"), False)
    (states,) = Terms([Term("US", "die USA", True)]).phrases("in the US")
    assert (states.targets, states.case) == (("die USA",), True)


def test_what_a_pattern_matches_is_kept_each_time() -> None:
    found = Terms([], [r"[A-Z]{2}-\d+"]).phrases("AB-1 and CD-22, AB-1 %s")
    assert [(phrase.source, phrase.start) for phrase in found] == [("AB-1", 0), ("CD-22", 9), ("AB-1", 16), ("%s", 21)]
    assert sources("me@x.org, {name} and https://x.org", common=False) == []


@pytest.mark.parametrize(
    ("source", "translation", "lacking"),
    [
        ("a dog", "Der Hund.", []),
        ("a dog", "Die Hunde.", ["dog"]),
        ("a dog", "„Hund“, Hund", []),
        ("a dog", "Köter", []),  # capitalised
        ("a dog and a dog", "Hund und Hunde", ["dog"]),
        ("a dog and a dog", "Hund und köter", []),
        ("犬", "小Hund", []),
        ("%s and %s", "%s und %s", []),
        ("%s and %s", "%s und %s und %s", ["%s"]),
        ("%s and %s", "%s", ["%s"]),
        ("www.x.org", "awww.x.org", ["www.x.org"]),
        ("https://x.org and https://x.org/a", "https://x.org/a, https://x.org", []),
        ("https://x.org and https://x.org/a", "https://x.org/a", ["https://x.org"]),
        ("{a}b {a}", "{a}c {a}", []),
        ("in 1912", "في ١٩١٢", []),
        ("1912 men", "1.912 Männer", []),
        ("in 1912", "in 191.", ["1912"]),
    ],
)
def test_what_is_missing(source: str, translation: str, lacking: list[str]) -> None:
    assert [phrase.source for phrase in missing(Terms(TABLE).phrases(source), source, translation)] == lacking


def test_a_table_is_read(tmp_path: Path) -> None:
    (tmp_path / "terms").write_text("dog\tHund\n\n US \tUSA\tcase\ndog\tKöter\t\n", encoding="utf-8")
    assert read_terms(tmp_path / "terms") == [Term("dog", "Hund"), Term("US", "USA", True), Term("dog", "Köter")]


@pytest.mark.parametrize("line", ["dog", "dog\t", "\tHund", "dog\tHund\tx", "dog\tHund\tcase\tmore"])
def test_a_wrong_line_is_named(line: str, tmp_path: Path) -> None:
    (tmp_path / "terms").write_text(f"dog\tHund\n{line}\n", encoding="utf-8")
    with pytest.raises(UserError) as raised:
        read_terms(tmp_path / "terms")
    assert raised.value.message.startswith(f"{tmp_path / 'terms'}:2: is no source term, tab, target term")
    assert "a line of its own" in raised.value.hint


@pytest.mark.parametrize(("pattern", "problem"), [("(", "is no regular expression"), ("a*", "matches an empty text")])
def test_a_wrong_pattern_is_named(pattern: str, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        Terms([], [pattern])


# --- text to keep --------------------------------------------------------------------------------------------

URLS = """https://x.org/a?b=c&d#e HTTPS://x.org ftp://x.org/a_(b) https://en.example.org/wiki/Bank_(geography)
www.x.de/q mailto:me@x.org?subject=a git+ssh://x.org/%20 http://%s:%d/ https://x.org/é
https://x.org/{id}/a?q={{q}}&b=${c} https://en.example.org/wiki/Murphy's_law"""
BRACES = "{} {0} {name} {0:N2} {x!r:>10} {a.b[0]} {0,10} {$php} {x!r:>{width}}"
PRINTF = "%s %d %5.2f %-10s %*d %.*f %+d %ld %lu %zu %lld %hhd %'d %@ %n"
EXAMPLES = {
    "URL": URLS.split(),
    "URL beside spaces": ["https://ja.example.org/wiki/日本", "https://日本.jp/", "https://例え.jp/パス"],
    "domain": ["example.com", "paste.x-y.net", "amazon.com.br", "easyBus.co.uk", "x.org/a/b?q=1"],
    "version": ["1.2.3", "2.1.25", "v10.0.1", "2.6.32.5", "1.2.3-rc1", "3.0.0beta2", "0.9.13.2"],
    "address of a machine": [
        *("192.168.100.200", "10.0.0.0/8", "127.0.0.1:8080", "00:1A:2b:3C:4d:5E", "0x7fFF"),
        "123e4567-e89b-12d3-a456-426614174000",
    ],
    "address": ["me@x.org", "o'neil@x.org", "Me.Too+x@mail.x.co.uk"],
    "telephone, ISBN": [
        *("+1 (555) 123-4567", "+49 30 901820", "+4930901820", "(555) 123-4567", "555-123-4567"),
        *("978-3-16-148410-0", "979 10 90636 07 1"),
    ],
    "hashtag": ["#love", "#MeToo", "#año_nuevo", "#ff00aa"],
    "mustache": ["{{x.y}}", "{{ name }}", "{{#if a}}", "{{ name | upper }}", "{{{raw}}}", "${{x}}", "{% if a %}"],
    "ICU": ["{count, plural, one {# dog} other {# {x} dogs}}", "{n,number,#.##}", "{who, select, a {b} other {c}}"],
    "Ruby, JavaScript": ["${name}", "#{user.name}", "%{name}", "${ a + b }"],
    "Python, C#": ["{ name }", *BRACES.split()],
    "printf, named": ["%(name)s", "%1$s", "%2$-10d", "%<n>d", "%1$@", "%(n).2f", "%<PRIu64>"],
    "printf": PRINTF.split(),
    "percent sign": ["%%"],
    "date": ["%Y", "%B", "%-d", "%H"],
    "Qt, KDE": ["%1", "%9", "%L1", "%1%"],
    "Windows, Symfony": ["%userprofile%", "%user.name%"],
    "Drupal": ["@name", "@link-text", "@dogs_count", "@angular/core"],
    "Drupal, LibreOffice": ["%title", "%site_name", "%PRODUCTNAME", "%user", "%arg"],
    "Apple": ["%#@dogs@", "%1$#@dogs@"],
    "Boost": ["%|1$d|", "%|-5|"],
    "subtitles": [
        *(r"{\an8}", "<00:01.500>", "00:00:01,000 --> 00:00:02,500"),
        "00:01.000 --> 00:02.000 align:start position:10%",
    ],
    "variable": ["$name", "$t(key)", "$(HOME)", "$HOME"],
    "React": ["<0>", "</0>", "<1/>", "<2 />"],
    "ERB, EJS": ["<%= x %>", "<% if a %>", "<%- user.name -%>"],
    "PHP": ["<?= $x ?>", "<?= name() ?>"],
    "pictograph": [*"©™•→✓😀♪", "❤️", "👨‍👩‍👧‍👦", "👍🏽", "🇪🇺", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "1️⃣", "★★★★☆"],
    "wiki": ["[[x]]", "[[Main Page|the page]]", "![[cat.png]]"],
    "underscores": ["__x__", "__file_name__"],
}
PROSE = """100 % sicher|{siehe oben}|10:30|Preis: 5 $|5%ige|20% off|100%|%50 indirim|50%-a|50%'i|US$ 5|$5|a < b > c|a@b
100 %Cotton|50 %BCotton|%Cotton|{ }|5 %ige Lösung|note: see below|{ a b }|100%.|3%,
100 %der Leute|5%off|@ home|a@2x|@Straße|@tommüller|René@home|müé@ab
tired.so I|1.000.000|30.11.2026|14.7.1789|2026-11-30|10.000.000,50|1.2
(2000) 12 people|(2000) 20 30|(12) 30000 books|+5 and|5-6|#1|# a|(50)|1999-2001|2-3-4|&#39;|a#b
§ 1.2.3-b|e.g. com|ASP.NET|a.commune|x.com.pany|de.org-a"""


def found(text: str) -> list[str]:
    return [text[slice(*span)] for span in Terms().spans(text)]


def test_each_format_has_an_example() -> None:
    assert FORMATS.keys() <= EXAMPLES.keys()


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_format_is_kept_whole_wherever_it_stands(name: str) -> None:
    for example in EXAMPLES[name]:
        for text in (example, f"Hi {example}, you", f"({example})", f"see: {example}.", f"{example} {example}"):
            assert found(text) == [example] * text.count(example), text


@pytest.mark.parametrize("name", sorted(EXAMPLES.keys() - {"URL", "URL beside spaces", "subtitles"}))
def test_each_format_is_kept_where_it_touches_letters_of_asia(name: str) -> None:
    for example in EXAMPLES[name]:
        for text in (f"打开{example}个", f"ファイル{example}を", f"파일 {example}을", f"ไฟล์{example}นี้"):
            assert found(text) == [example], text
        assert found(f"ל{example} ו") == [example]


def test_what_translators_may_change_is_no_placeholder() -> None:
    text = "x.org 1.2.3 10.0.0.1 #love 555-123-4567 0x7f"
    assert found(text) == text.split()
    assert PLACEHOLDERS.spans(text) == []


@pytest.mark.parametrize("text", re.split(r"[|\n]", PROSE))
def test_prose_is_not_kept(text: str) -> None:
    assert found(f"So {text} it is") == found(text) == []


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("%d/%d of %s%s, %s: %s %5d%%", ["%d/%d", "%s%s", "%s", "%s", "%5d%%"]),
        ("%d.%m.%Y %H:%M", ["%d.%m.%Y", "%H:%M"]),
        ("%1 %s in %dms, %dx%d, %luKB, %1th, pre%dfix", ["%1", "%s", "%d", "%d", "%d", "%lu", "%1", "%d"]),
        ("%sread%s, %sread more%s", ["%s", "%s", "%s", "%s"]),
        ("%C18*%O$t%C18$1%O said $2 to %C", ["%C18*%O$t%C18$1%O", "$2", "%C"]),  # colours and styles
        ("%UUsers of ($1%C23), %BKeep%b it", ["%U", "$1%C23", "%B", "%b"]),
        ("https://x.org/{id}/%s", ["https://x.org/{id}/%s"]),
        ("see https://x.org/a|b^c/<id>/[key]?q=1| now", ["https://x.org/a|b^c/<id>/[key]?q=1"]),
        ("https://x.org/a<br>b", ["https://x.org/a"]),
        ("$1 of $2, for $5.00 or $25", ["$1", "$2"]),
        ("for $5 or $2", []),
        ("$1 %@", ["$1", "%@"]),
        ("見てhttps://x.org/aを。", ["https://x.org/a"]),
        ("<https://x.org/a> (http://x.org), “www.x.org”", ["https://x.org/a", "http://x.org", "www.x.org"]),
    ],
)
def test_spans_that_belong_together_are_one(text: str, spans: list[str]) -> None:
    assert found(text) == spans


def test_no_span_crosses_a_wall_or_begins_in_a_copy() -> None:
    text = "{name} and <x>%s</x> https://x.org/a"
    spans = Terms().spans(text, [Span(11, 20)], [3, 35])
    assert [text[slice(*span)] for span in spans] == ["<x>%s</x>", "https://x.org/"]


def test_of_copies_that_overlap_the_longest_counts() -> None:
    assert find_copies("%s%s %s", ["%s", "%s%s"]) == [(0, 4), (5, 7)]
    assert find_copies("a", []) == []


@pytest.mark.parametrize(
    ("text", "copies", "expected"),
    [
        ("%d von %s", "%s %d", "%s von %d"),
        ("%2$s %1$d %d", "%1$d %2$s %d", "%2$s %1$d %d"),
        ("{} %d %(a)s", "%(a)s {} %d", "{} %d %(a)s"),
        ("%C2$1 %C4$2", "%C4 $2 %C2 $1", "%C2$1 %C4$2"),
        ("%d", "%(a)s {} %d", "%d"),  # of what is missing, no order is known
    ],
)
def test_placeholders_without_numbers_stay_in_their_order(text: str, copies: str, expected: str) -> None:
    assert in_order(text, copies.split()) == expected


@pytest.mark.parametrize(
    ("source", "text", "expected"),
    [
        ("{start}the dog{end}", "{start} der Hund {end}", "{start}der Hund{end}"),
        ("<0>the dog</0> and %s.", "<0> der Hund </0> und%s .", "<0>der Hund</0> und %s ."),
        ("see %s now", "%s지금", "%s지금"),  # an ending of Korean
        ("press %s now", "按%s键", "按%s键"),
        ("%d\u00a0km of %s", "%d km von %s", "%d\u00a0km von %s"),
        ("%s, %s", "%s , %s", "%s , %s"),
        ("{x}{x} {x}a", "{x} {x} a {x}", "{x} {x} a {x}"),
        ('is 😀 "it"', "ist 😀„es“", "ist 😀 „es“"),
        ('"it." 😀 is', "„es.“😀 ist", "„es.“ 😀 ist"),
        ('see 😀 "it"', "siehe „😀“.", "siehe „😀“."),
        ("the address of %s is", "l'adresse d'%s est", "l'adresse d'%s est"),  # an apostrophe is no quotation mark
        ("friends of %s here", "l’amico dell’%s qui", "l’amico dell’%s qui"),
        ("the files of %s are", "%s's files are", "%s's files are"),
        ("I see.[1] Yes", "Je vois. [1] Oui", "Je vois.[1] Oui"),
    ],
)
def test_what_is_kept_is_as_near_to_words_as_in_the_source(source: str, text: str, expected: str) -> None:
    phrases = [Phrase(source[start:end], (), start, kept=True) for start, end in Terms().spans(source, linked=False)]
    assert spaced_like(text, source, phrases) == expected


def test_a_sign_belongs_to_one_of_the_numbers_beside_it() -> None:
    text = "It costs 5 € 3 times, € 20 or £20, 30 °C, 50 m² 3 rooms, 5×3."
    found = [match[0] for match in re.finditer(amounts("€£°²×"), text)]
    assert found == ["5 €", "€ 20", "£20", "30 °C", "m²", "5×3"]
