"""Tags of HTML and XML: what goes on over several lines, what is copied, and what ends a sentence."""

from __future__ import annotations

import pytest
from copying import as_it_was

from nmt.formats import tags
from nmt.formats.alignment import Aligned, AlignedLine
from nmt.formats.tags import read_tagged_lines, read_tags


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("See <code>a\n  b c\n d</code> now.\nThe <b>dog</b>.", ["See", "", "now.", "The dog."]),
        ("<!-- a\nb --> The cat\n<a\nhref='x'>link</a>", ["", "The cat", "", "link"]),
        ("<script>\nvar a;\n</script>The dog <pre>x\ny</pre> <code>z\nw</code> end", ["", "", "The dog", "", "end"]),
        ('<p translate="no">The\n<b>dog</b>\nsees</p> it', ["", "", "it"]),
        ("See <code>a\nThe dog\n<code>x\nb", ["See a", "The dog", "x", "b"]),  # not closed: tags of their lines
        ('<ph id="1">a\nb</ph>The dog <bpt i="1">x\n</bpt>sees <ept i="1">\n}</ept>', ["", "The dog", "sees", ""]),
        ("<KBD\n>F1\n</KBD> a\n<code>b</code> c\n</code>", ["", "", "a", "<code>b</code> c", ""]),
        ("&#10;&#10;a&nbsp;&#10;b <a\n>c</a>", ["a b", "c"]),
        ("a < b\nc > d\nx <y", ["a < b", "c > d", "x <y"]),
        ("<code>a</code>\n<code>b\nc", ["<code>a</code>", "b", "c"]),
    ],
)
def test_what_is_copied_goes_on_over_lines(text: str, expected: list[str]) -> None:
    segments = [*read_tagged_lines(text.split("\n"))]
    assert [segment.raw for segment in segments] == text.split("\n")
    assert [as_it_was(segment) for segment in segments] == text.split("\n")
    assert [segment.text for segment in segments] == expected


def test_lines_behind_an_element_without_an_end_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tags, "LONGEST_ELEMENT", 10)
    asked = []

    def lines() -> list[str]:
        for number in range(30):
            asked.append(number)
            yield f"<code>{number}"

    first = next(read_tagged_lines(lines()))
    assert (first.text, asked) == ("0", [*range(10)])
    assert [segment.text for segment in read_tagged_lines(["<pre>a"] * 5000)] == ["a"] * 5000


def test_elements_without_ends_take_no_time_that_grows_with_the_square_of_their_number() -> None:
    assert read_tags("<code>a" * 15_000).text == "a" * 15_000


@pytest.mark.parametrize(
    ("line", "pieces"),
    [
        ("<ul><li>The boy</li><li>The girl</li></ul>", ["The boy", "The girl"]),
        ("<h1>Dogs</h1>The <b>small</b> dog<br>A cat<hr/>", ["Dogs", "The small dog", "A cat"]),
        ('<mrk mtype="seg" mid="1">A dog</mrk><mrk mid="2" mtype="seg">A cat</mrk>', ["A dog", "A cat"]),
        ('One<x id="1" ctype="lb"/>two <x id="2"/>three', ["One", "two three"]),
        ("a &nbsp;<br/>b", ["a", "b"]),
        ("<label>Name</label><textarea>A dog</textarea><button>Go</button>", ["Name", "A dog", "Go"]),
        ("Press <button>Save</button> to go on.", ["Press Save to go on."]),
        ("<button>Save</button><button>Cancel</button>", ["Save", "Cancel"]),
    ],
)
def test_sentences_end_at_tags_of_blocks(line: str, pieces: list[str]) -> None:
    assert read_tags(line).pieces == pieces


@pytest.mark.parametrize(
    "copied",
    [
        '<xliff:g id="x" example="3">%1$s</xliff:g>',
        "<kbd>a\nb</kbd>",
        '<b its:translate="no">x</b>',
        "<svg><g>x</g></svg>",
        "&brandShortName;",
        "<kbd>Ctrl</kbd>+<kbd>C</kbd>",
        "<code>a</code>/<code>b</code><code>c</code>",
        "B<my foo>",
        "E<lt>",
        "%<animal>s",
        "%<PRIu64>",
        ":ref:`the page <page>`",
        "`<b>x</b>`",
    ],
)
def test_what_no_one_may_translate_is_copied(copied: str) -> None:
    segment = read_tags(f"The dog {copied} sees")
    assert [segment.text[slice(*span)] for span in segment.kept] == [copied]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("<ruby>漢<rp>(</rp><rt>kan</rt><rp>)</rp></ruby> is it", "漢 is it"),
        ("The &rlm;dog&#x200e; is&ZeroWidthSpace;<b>&#8288;here</b>", "The dog ishere"),
    ],
)
def test_annotations_and_invisible_entities_are_codes(line: str, text: str) -> None:
    segment = read_tags(line)
    assert segment.text == text
    assert segment.put(AlignedLine(text, [(0, 0, Aligned.copied(text, segment.walls))])) == line


def test_tags_behind_capitals_and_percent_signs_are_tags() -> None:
    assert read_tags("I<b>love</b> 50%<br>d'accord, 5%<b>s</b>").text == "Ilove 50% d'accord, 5%s"


def test_copies_with_more_than_a_sign_between_them_are_two() -> None:
    segment = read_tags("Press <kbd>a</kbd>, <kbd>b</kbd>(<kbd>c</kbd>)")
    assert len(segment.kept) == 3


def test_tags_of_phrase_are_around_their_words() -> None:
    segment = read_tags("The {1>old {b>dog<b}<1} sees {2}.")
    assert segment.text == "The old dog sees {2}."
    assert segment.walls == [4, 8, 11, 11]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("[b]The dog[/b] is [url=https://x.org]here[/url].", "The dog is here."),
        ("[caption id='1']<b>The</b> dog[/caption] [gallery ids=\"1,2\"]", "The dog"),
        ("[color=#f00]The [i]cat[/i][/color]", "The cat"),
        ("[list][*]The cat [*]The dog[/list]", "The cat The dog"),
        ("foo [OPTION] [-h] [a=b] [file]", "foo [OPTION] [-h] [a=b] [file]"),
        ("copy [source] [dest] [/y]", "copy [source] [dest] [/y]"),
        ("Files in [/etc] and [/home].", "Files in [/etc] and [/home]."),
        ('See [the page](x.md), ![a cat](y.png "z") and **the dog**.', "See the page, a cat and the dog."),
        ("See [the page] (x.md), a[1](2), 2 ** 3 ** 4, **x", "See [the page] (x.md), a[1](2), 2 ** 3 ** 4, **x"),
        ("a {b>c}, <d} and {1>the dog<1}", "a {b>c}, <d} and the dog"),
    ],
)
def test_tags_in_brackets_are_tags_if_they_are_closed_or_have_attributes(line: str, text: str) -> None:
    assert read_tags(line).text == text


def test_a_placeholder_of_a_url_is_no_tag() -> None:
    assert read_tags("https://x.org/<id>/<b>y</b>").text == "https://x.org/<id>/y"
