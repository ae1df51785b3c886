"""What a line is known to keep, by the table of formats, and what is prose."""

from __future__ import annotations

import pytest

from nmt.text.spans import FORMATS, Span, compiled_formats, find_copies, find_spans, in_order

EXAMPLES = {
    "URL": [
        "https://x.org/a?b=c&d#e",
        "HTTPS://x.org",
        "ftp://x.org/a_(b)",
        "https://en.example.org/wiki/Bank_(geography)",
        "www.x.de/q",
        "mailto:me@x.org?subject=a",
        "git+ssh://x.org/%20",
        "http://%s:%d/",
        "https://x.org/é",
        "https://x.org/{id}/a?q={{q}}&b=${c}",
        "https://en.example.org/wiki/Murphy's_law",
    ],
    "URL beside spaces": ["https://ja.example.org/wiki/日本", "https://日本.jp/", "https://例え.jp/パス"],
    "address": ["me@x.org", "o'neil@x.org", "Me.Too+x@mail.x.co.uk"],
    "mustache": ["{{x.y}}", "{{ name }}", "{{#if a}}", "{{ name | upper }}", "{{{raw}}}", "${{x}}", "{% if a %}"],
    "ICU": ["{count, plural, one {# dog} other {# {x} dogs}}", "{n,number,#.##}", "{who, select, a {b} other {c}}"],
    "Ruby, JavaScript": ["${name}", "#{user.name}", "%{name}", "${ a + b }"],
    "Python, C#": [
        "{}",
        "{0}",
        "{name}",
        "{0:N2}",
        "{x!r:>10}",
        "{a.b[0]}",
        "{0,10}",
        "{$php}",
        "{ name }",
        "{x!r:>{width}}",
    ],
    "printf, named": ["%(name)s", "%1$s", "%2$-10d", "%<n>d", "%1$@", "%(n).2f"],
    "printf": [
        "%s",
        "%d",
        "%5.2f",
        "%-10s",
        "%*d",
        "%.*f",
        "%+d",
        "%ld",
        "%lu",
        "%zu",
        "%lld",
        "%hhd",
        "%'d",
        "%@",
        "%n",
    ],
    "percent sign": ["%%"],
    "date": ["%Y", "%B", "%-d", "%H"],
    "Qt, KDE": ["%1", "%9", "%L1", "%1%"],
    "Windows, Symfony": ["%userprofile%", "%user.name%"],
    "variable": ["$name", "$t(key)", "$(HOME)", "$HOME"],
    "React": ["<0>", "</0>", "<1/>", "<2 />"],
}
PROSE = [
    *(
        "100 % sicher",
        "{siehe oben}",
        "10:30",
        "Preis: 5 $",
        "5%ige",
        "20% off",
        "100%",
        "%50 indirim",
        "50%-a",
        "50%'i",
    ),
    *("US$ 5", "$5", "a < b > c", "a@b", "5 %ige Lösung", "note: see below", "{ a b }", "see :)", "100%.", "3%,"),
]


def found(text: str) -> list[str]:
    return [text[slice(*span)] for span in find_spans(text, (), compiled_formats())]


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_is_kept_whole_wherever_it_stands(name: str) -> None:
    for example in EXAMPLES[name]:
        for text in (example, f"Hi {example}, you", f"({example})", f"see: {example}.", f"{example} {example}"):
            assert found(text) == [example] * text.count(example), text


@pytest.mark.parametrize("text", PROSE)
def test_prose_is_not_kept(text: str) -> None:
    assert found(f"So {text} it is") == found(text) == []


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("%d/%d of %s%s, %s: %s", ["%d/%d", "%s%s", "%s", "%s"]),
        ("%d.%m.%Y %H:%M", ["%d.%m.%Y", "%H:%M"]),
        ("%1 %s in %dms, %dx%d, %luKB, %1th, pre%dfix", ["%1", "%s", "%d", "%d", "%d", "%lu", "%1", "%d"]),
        ("https://x.org/{id}/%s", ["https://x.org/{id}/%s"]),
        ("見てhttps://x.org/aを。", ["https://x.org/a"]),
        (
            "<https://x.org/a> (https://x.org/b), “https://x.org/c”",
            ["https://x.org/a", "https://x.org/b", "https://x.org/c"],
        ),
    ],
)
def test_spans_that_belong_together_are_one(text: str, spans: list[str]) -> None:
    assert found(text) == spans


def test_no_span_crosses_a_wall_or_begins_in_a_copy() -> None:
    text = "{name} and <x>%s</x> https://x.org/a"
    spans = find_spans(text, (), compiled_formats(), [Span(11, 20)], [3, 35])
    assert [text[slice(*span)] for span in spans] == ["<x>%s</x>", "https://x.org/"]


def test_of_copies_that_overlap_the_longest_counts() -> None:
    assert find_copies("%s%s %s", ["%s", "%s%s"]) == [(0, 4), (5, 7)]
    assert find_copies("a", []) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%d von %s", "%s von %d"),
        ("%2$s %1$d %d", "%2$s %1$d %d"),
        ("{} %d %(a)s", "{} %d %(a)s"),
        ("%d", "%d"),  # of what is missing, no order is known
    ],
)
def test_placeholders_without_numbers_stay_in_their_order(text: str, expected: str) -> None:
    copies = ["%s", "%d"] if "von" in text else ["%1$d", "%2$s", "%d"] if "$" in text else ["%(a)s", "{}", "%d"]
    assert in_order(text, copies) == expected
