"""Paragraphs of texts, and the layout of their translations."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.formats.alignment import Aligned, AlignedLine
from nmt.formats.document import LONGEST_AHEAD, LONGEST_BLOCK, Document, Piece, TextLine

ROOT = Path(__file__).parents[2]


def laid_out(text: str, translate: Callable[[str], str]) -> str:
    document = Document(text.split("\n"))
    found = [piece.lay_out(translate(each.raw) if each.raw else "") for each, piece in document if piece]
    return "\n".join(found)


def sent(text: str) -> list[str]:
    """The texts to translate."""
    return [each.raw for each, _ in Document(text.split("\n")) if each.raw]


BREAK = "  "  # hard line break of Markdown
MAIL = f"""\
From: Anna Example <anna@example.org>
Cc: one@example.org,
 two@example.org
Subject: The new flat

Dear Bert,

the flat has three rooms, a kitchen with a window, and a balcony. The rent
is more than I had hoped.
We could ask:

  - Who pays for the heating? In the last flat it was included, and that
    made things simple.
  - May we keep the cat?

> I have found another one near the station, it has only two rooms, but a
> garden.
>> Is it dear?

Anna Example
12 Long Street

--{BREAK[1:]}
+49 555 1234"""
MARKDOWN = f"""\
# Trains

Shows when the next train leaves, and
---
needs no network:

    pip install trains
    trains --help

This is:
```
make all of it     # with everything that it needs, and a bit more
```

<!-- a comment -->
<!-- another one
which ends here -->

Options
-------

| option | meaning |
|--------|---------|
| `-s`   | station |

1. [ ] Write the name of the station into a file, as the timetable spells
   it.
   * Names are short.

Roses are red,{BREAK}
violets are blue.

[manual]: https://example.org/manual"""
MANUAL = """\
CAT(1)                      User Commands                      CAT(1)

NAME
       cat - show files one after the other

DESCRIPTION
       Without  a  file, it reads what is typed, and ends with the
       end of the input.

       -n, --number
              count the lines of the output, also where they are of
              no length

       -q     say nothing

       Two of the files are special, as all who have used it know:

           cat -n < one.txt > two.txt"""
CONTROL = """\
Package: trains
Depends: libc6 (>= 2.34), python3
License: GPL-2
Description: shows when the next train leaves from a station that you name in it
 Trains reads the timetable from a file and needs no network at all. You
 may have several files.
 .
 It knows
  * stations
  * trains that go on Sundays, on holidays, on the day before a holiday or
    at night
Homepage: https://example.org/trains"""
VERSE = """\
The rose upon my window sill
Has waited for the rain,
And every morning, waiting still,
It leans against the pane.

bread
milk
a bottle of oil

you said
that you would be back before the leaves fell

Copyright 2020 Anna Example, Springfield, of the country <anna@example.org>
Copyright 2021 Bert Example"""


SENTENCES = {
    MAIL: """\
The new flat
Dear Bert,
the flat has three rooms, a kitchen with a window, and a balcony. The rent is more than I had hoped.
We could ask:
Who pays for the heating? In the last flat it was included, and that made things simple.
May we keep the cat?
I have found another one near the station, it has only two rooms, but a garden.
Is it dear?
Anna Example
12 Long Street""",
    MARKDOWN: """\
Trains
Shows when the next train leaves, and
needs no network:
This is:
Options
| option | meaning |
| `-s`   | station |
Write the name of the station into a file, as the timetable spells it.
Names are short.
Roses are red,
violets are blue.""",
    MANUAL: """\
NAME
cat - show files one after the other
DESCRIPTION
Without a file, it reads what is typed, and ends with the end of the input.
count the lines of the output, also where they are of no length
say nothing
Two of the files are special, as all who have used it know:""",
    CONTROL: """\
shows when the next train leaves from a station that you name in it
Trains reads the timetable from a file and needs no network at all. You may have several files.
It knows
stations
trains that go on Sundays, on holidays, on the day before a holiday or at night""",
    VERSE: VERSE.replace("\n\n", "\n"),
    "Features:\n\n * It is small.\n": "Features:\nIt is small.",  # no field of a mail
}
"""Texts to translate, by the documents that have them"""


@pytest.mark.parametrize("text", SENTENCES, ids=["mail", "markdown", "manual", "control", "verse", "colon"])
def test_sentences_are_whole_and_the_layout_comes_back(text: str) -> None:
    assert sent(text) == SENTENCES[text].split("\n")
    assert laid_out(text, str) == text
    changed = laid_out(text, lambda each: each.replace("e", "é")).replace("é", "e")
    assert changed == text.replace("Without  a  file", "Without a file")


def test_paragraphs_keep_their_width_and_single_lines_stay_single() -> None:
    text = """\
=======
A title
=======
1. The first of the items is so long that its end had to go to a
   second line.
2. The next one is short."""
    longer = {"title": "long title", "second": "second " * 10 + "s" * 70, "short": "short, " * 10 + "short"}
    assert (
        laid_out(text, lambda each: " ".join(longer.get(word.strip("."), word) for word in each.split()))
        == f"""\
============
A long title
============
1. The first of the items is so long that its end had to go to a
   second second second second second second second second
   second second
   {"s" * 70}
   line.
2. The next one is {"short, " * 10}short"""
    )


def test_a_wrapped_line_does_not_begin_with_what_would_be_a_mark_of_a_list() -> None:
    text = "We go to the lake by the old road from the village on foot\nor by train."
    found = laid_out(text, lambda each: each.replace("foot or", "foo - and if it rains"))
    assert found == "We go to the lake by the old road from the village on\nfoo - and if it rains by train."
    found = laid_out(text, lambda each: each.replace("or", "?"))  # as French has it
    assert found == "We go to the lake by the old road from the village on\nfoot ? by train."


def test_a_sentence_of_subtitles_goes_on_in_the_next_line() -> None:
    cue = "00:00:01,000 --> 00:00:02,000\n"
    said = "The dog <i>sees\nthe</i> cat.\n- Where is\nthe cat?\n-Here.\n[The dog]\nThe cat, the\nother one"
    texts = ["The dog <i>sees the</i> cat.", "Where is the cat?", "-Here.", "[The dog]", "The cat, the other one"]
    assert sent(cue + said) == texts
    texts[1] = f"- {texts[1]}"
    assert laid_out(cue + said, lambda each: each.replace("h", "k")) == cue + "\n".join(texts).replace("h", "k")


@pytest.mark.parametrize(
    ("lines", "joint"),
    [
        ("They have sung all day and all night long the well-\nknown songs.", ""),
        ("It is once more a matter of before- and of after-\nand of now.", " "),
        ("这是一个很长的句子，它在这里被分成两行，因为宽度\n不够。", ""),
        ("It is described in the book about it on page\n12. But not well.", " "),
        ("All of the files that are in that direc‐\ntory.", ""),  # by groff
        ("ภาษาไทยเป็นภาษาที่มีระดับเสียงของคำแน่นอนหรือวรรณยุกต์เช่นเดียวกับ\nภาษาจีน", ""),
    ],
)
def test_lines_are_joined_as_their_script_and_hyphens_ask_for(lines: str, joint: str) -> None:
    assert sent(lines) == [lines.replace("\n", joint).replace("‐", "")]


@given(st.lists(st.text(st.sampled_from('apP中é1 \t>-*#|.:<!/?`~=[]^{}$"\\‐\u3000\x1c'), max_size=20)))
def test_every_line_has_a_text_and_no_character_is_lost(lines: list[str]) -> None:
    assert len(list(Document(lines))) == len(lines)
    assert laid_out("\n".join(lines), str) == "\n".join(lines)
    changed = laid_out("\n".join(lines), lambda each: each.replace("a", "ä")).replace("ä", "a")
    found, text = (re.sub(r"[\s>‐]", "", each) for each in (changed, "".join(lines)))
    assert found == text


def test_paragraphs_come_before_the_text_ends_and_long_ones_are_cut() -> None:
    def lines() -> Iterator[str]:
        yield from ["Dear Anna,", ""]
        yield from ["a line that is not the last one, and which goes on to the next,"] * LONGEST_BLOCK
        yield "one more"
        raise EOFError

    texts = (each.raw for each, _ in Document(lines()))
    assert [next(texts) for _ in range(2)] == ["Dear Anna,", ""]
    assert sum(1 for _ in zip(range(LONGEST_BLOCK), texts, strict=False)) == LONGEST_BLOCK
    with pytest.raises(EOFError):
        next(texts)


@pytest.mark.parametrize(
    "line",
    [
        *("a" + " " * 100_000 + "b\tc", "(" * 100_000, "a\t" * 50_000, "> " * 50_000, "a." * 50_000),
        *("| a" + " " * 100_000 + "b | c", "[a" * 50_000, "a" + "]" * 50_000, "$_" * 50_000, "| `" * 50_000),
    ],
)
def test_no_line_takes_time_that_grows_with_the_square_of_its_length(line: str) -> None:
    assert laid_out(line, str).split() == line.split()


def test_a_rule_before_a_paragraph_begins_no_front_matter() -> None:
    text = "---\nNote: read this\nmore prose\n\nNext prose"
    assert sent(text) == ["Note: read this", "more prose", "Next prose"]


def test_front_matter_and_hard_breaks_stay() -> None:
    text = "---\ntitle: The cat\n---\nThe cat sees\\\nthe dog.\n"
    assert sent(text) == ["The cat sees", "the dog."]
    assert laid_out(text, str.upper) == "---\ntitle: The cat\n---\nTHE CAT SEES\\\nTHE DOG.\n"
    assert sent("---\ntags:\n- a cat\n\nmore: the dog\n---\nThe cat sees the dog.") == ["The cat sees the dog."]
    assert sent("---\nThe cat sees the dog.\n---\n") == ["The cat sees the dog."]  # rules
    assert sent("+++\na = 1\n\nThe cat sees the dog.") == ["The cat sees the dog."]  # has no end


BLOCKS = {
    # what has text
    "[^1]: The boy sees.\n\n    The girl does not.": ["The boy sees.", "The girl does not."],
    "[Anna]: Hello.\n[Bert]: The cat is here.": ["Hello.", "The cat is here."],
    ":warning: The cat is here.\n:smile the cat": ["The cat is here.", ":smile the cat"],
    "<b>Note:</b> the cat <i>is here</i>": ["<b>Note:</b> the cat <i>is here</i>"],
    "$ 5 is the price": ["$ 5 is the price"],
    "$ is the sign of it.": ["$ is the sign of it."],
    "<details><summary>More of it</summary>": ["<details><summary>More of it</summary>"],
    "- [Installation](#installation)": ["[Installation](#installation)"],
    "<p>The cat\nis here.</p>\nMore": ["<p>The cat is here.</p>", "More"],
    "The cat is here, and it has come all of the way from\n<https://example.org/the/cat>.": [
        "The cat is here, and it has come all of the way from <https://example.org/the/cat>."
    ],
    "<li>The cat is\n<li>The dog is": ["<li>The cat is", "<li>The dog is"],
    "The cat<br>\nis here": ["The cat<br>", "is here"],
    "> [!NOTE]\n> The cat is here.\n\n> [!tip]- A title": ["The cat is here.", "A title"],
    "!!! note\n    The cat.\n\n    Is here.\n\nMore": ["The cat.", "Is here.", "More"],
    '!!! note inline "The title"\n    It is\n\n        make all of it': ["The title", "It is"],
    '=== "The tab"\n\n    The cat.': ["The tab", "The cat."],
    ":::note[The title]\n:::tip[It]{.x}\n:::": ["The title", "It"],
    ":::note\nThe cat.\n:::\n::: tip The title\n:::": ["The cat.", "The title"],
    "```{note}\nThe cat.\n```\n```{code}\nthe cat is here, all of it\n```": ["The cat."],
    ".. note:: The cat is here.": ["The cat is here."],
    "- [ ] The cat\n- [x] The dog": ["The cat", "The dog"],
    "The term\n: The definition": ["The term", "The definition"],
    "1) The cat\n2) The dog": ["The cat", "The dog"],
    "## The title {#the-title}\n## The next ##": ["The title", "The next"],
    "The title {#id}\n===============": ["The title"],
    "> > The cat is here\n>\n> The dog": ["The cat is here", "The dog"],
    "the book   is on the table": ["the book   is on the table"],
    "<u>The **cat**</u>   is here": ["<u>The **cat**</u>   is here"],
    "The cat\tis here": ["The cat\tis here"],
    "  Apple     a fruit\n  Old leek  not one": ["Apple     a fruit", "Old leek  not one"],
    "~~The~~[^1] ![](a.png)": ["~~The~~[^1] ![](a.png)"],
    "{name}evening, %(x)smorning": ["{name}evening, %(x)smorning"],
    "犬、猫。花{name}": ["犬、猫。花{name}"],
    "*[HTML]: The language of pages": ["The language of pages"],
    "<table>\n  <tr>\n    <td>The cat</td>\n\n    <td>The dog</td>": ["<td>The cat</td>"],  # code behind a blank line
    "[![The cat](a.png)](b)\n[![The dog](c.png)](d)": ["[![The cat](a.png)](b)", "[![The dog](c.png)](d)"],
    # tables
    "| The cat | 1 |\n|:--|--:|\n| `-s` | 2 |\n| | The dog |": ["| The cat | 1 |", "| | The dog |"],
    "the cat | it\n-|-\nmeow|`x`\n1|2\n\ncat a | grep b": ["the cat | it", "meow|`x`"],
    "> | The cat |\n> |---|": ["| The cat |"],
    "[Home](a) | [The cat](b)": ["[Home](a) | [The cat](b)"],
    "+---+-----+\n| a | cat |\n+===+=====+\n| b | dog |\n+---+-----+": [],  # columns have their width
    # what has none
    "[x]: https://example.org\n[the cat]: <a b>\n[x]: ./a 'The title'\n[x]: LICENSE\n[x]: #the-cat": [],
    ":Author: Anna Example\n:param cat: the cat that is here\n:returns: the cat that is here\n:orphan:": [],
    "$ make all of it": [],
    '<p align="center">\n<img src="a"\n  alt="The cat is here">': [],
    "<pre>\nThe cat is here.\n</pre>": [],
    "$$\nThe cat is here.\n$$": [],
    "1. ```sh\n   make all of it\n   ```\n2. The cat\n\n- <!-- The cat\n  is here -->\n- The dog": [
        "The cat",
        "The dog",
    ],
    "> ```\n> make all of it\nThe cat is here.": ["The cat is here."],  # a quote that was cut
    "{% highlight c %}\nmake all of it\n{%- endhighlight %}\n{{< highlight c >}}\nthe cat\n{{< /highlight >}}\nIt is": [
        "It is"
    ],
    "\\begin{align*}\nthe cat &= x\n\\end{align*}\n{% raw %}\nThe cat": ["The cat"],
    "[TOC]\n\n[[_TOC_]]\n\n@[toc]\n\nWEBVTT - the cat": [],
    "#. The cat\n#. The dog": ["The cat", "The dog"],
    "(the-label)=\n{: .the-class}\n{% include the cat %}\nimport Cat from 'the/cat'": [],
    "<!-- The cat\nis here. -->": [],
    "<!-- The cat\nis here. --> The dog <!-- is\n\nhere --> too.\nAnd more": ["The dog", "too.", "And more"],
    "The dog <!-- The cat\n\nis here. -->": ["The dog"],
    "> The dog <!-- The cat\n> is here. --> sees": ["The dog", "sees"],
    "Write `<!-- ` for it.\n\nThe cat --> it": ["Write `<!-- ` for it.", "The cat --> it"],
    "<pre>\nThe cat\n</pre> is here.": ["is here."],
    '<p class="a"\n   id="b">The cat</p>': ["The cat</p>"],
    "WEBVTT - the cat\nKind: the cat\n\nNOTE\nthe cat\n\nSTYLE\n::cue {\n  the: cat;\n}\n\nThe intro\n"
    "00:01.000 --> 00:02.000\nThe cat.\nNOTE the dog.": ["The cat.", "NOTE the dog."],
    "1\n00:00:01,000 --> 00:00:02,000 X1:10 X2:20 Y1:30 Y2:40\n<i>- Where is the cat?</i>\n- Here.\n": [
        "<i>- Where is the cat?</i>",
        "Here.",
    ],
    ".. code-block:: python\n   :linenos:\n\n   say('The cat is here')\n\nThe dog": ["The dog"],
    ".. note::\n\n   The dog\n\n   .. toctree::\n\n      the cat\n\n   The girl": ["The dog", "The girl"],
    ".. The cat\n   is here\n\nThe dog is this::\n\n  The cat\n\n  The cat\n\nThe boy": [
        "The dog is this:",
        "The boy",
    ],
    "=====  =====\nThe    cat\n=====  =====\nThe    cat\n=====  =====\n\nThe dog": ["The dog"],
    ".. warning:: The dog\n\n.. versionadded:: 1.2\n   The girl": ["The dog", "The girl"],
    "import {\n  The,\n  Cat,\n} from 'the/cat'\n\nThe dog": ["The dog"],
    "export const cat = {\n  is: 'The cat is here',\n\n  f: () => {},\n}\n\nThe dog": ["The dog"],
    "{/* The cat\nis here */}\nThe dog": ["The dog"],
    "<Cat\n  say={() => {\n    say('The cat is here')\n  }}\n/>\nThe dog": ["The dog"],
    "<Cats all={[\n  {name: 'The cat'},\n]}\n>\nThe dog": ["The dog"],
    # what is like it, and text
    "export the cat (and the\ndog) to us": ["export the cat (and the", "dog) to us"],
    "{The cat is here\n\nThe dog": ["{The cat is here", "The dog"],
}
"""Texts to translate, by the blocks that have them"""


def test_a_sentence_goes_on_in_the_next_line_of_a_cue() -> None:
    text = (
        "1\n00:00:01,000 --> 00:00:02,000\nThe cat is in the houses\nand the dog is not.\nIt barks.\n2\n"
        "00:00:03,000 --> 00:00:04,000\n♪ The cat\nThe dog ♪\n[The cat]\nIs it Tom,\nthe dog\n- The boy\n- the girl"
    )
    assert sent(text) == [
        "The cat is in the houses and the dog is not.",
        "It barks.",
        "♪ The cat",
        "The dog ♪",
        "[The cat]",
        "Is it Tom, the dog",
        "The boy",
        "the girl",
    ]
    cue = "00:01.000 --> 00:02.000\n{}\n"
    text = cue.format("The cat is in the houses\nand the dog is not.")
    assert laid_out(text, str.upper) == cue.format("THE CAT IS IN THE HOUSES AND THE DOG IS\nNOT.")
    assert sent(cue.format("The cat...\n...waits.\n...")) == ["The cat...", "...waits."]


@pytest.mark.parametrize("text", BLOCKS)
def test_blocks_of_markdown_are_text_or_stay(text: str) -> None:
    assert sent(text) == BLOCKS[text]
    joined = text.replace("The cat\nis", "The cat is") if "<p>" in text else text
    assert laid_out(text, lambda each: each.replace("h", "ĥ")).replace("ĥ", "h") == joined


@pytest.mark.parametrize(
    ("text", "joint"),
    [
        ('The <a href="x"\ntitle="y"\nid="z">cat</a> is.\nHere', 'The <a href="x" title="y" id="z">cat</a> is.'),
        ("The <code>cat\nis</code> here.\nAnd", "The <code>cat is</code> here."),
    ],
)
def test_lines_inside_a_tag_or_code_are_joined(text: str, joint: str) -> None:
    assert sent(text) == [joint, text.split("\n")[-1]]


def test_what_only_looks_like_a_tag_joins_no_lines() -> None:
    assert sent("it is a <b and\nc > d here") == ["it is a <b and", "c > d here"]


def in_capitals(text: str) -> str:
    """The document with each text in capitals, and its codes around their words."""
    document = Document(text.split("\n"))
    found = list[str]()
    for segment, piece in document:
        part = Aligned.copied(segment.text, segment.walls)
        kept = {at for span in segment.kept for at in range(*span)}
        output = "".join(each if at in kept else each.upper() for at, each in enumerate(segment.text))
        line = AlignedLine(output, [(0, 0, replace(part, output=output))])
        if piece:
            found.append(piece.lay_out(segment.put(line) if segment.raw else ""))
    return "\n".join(found)


def test_cells_of_a_table_are_sentences_and_keep_their_pipes() -> None:
    table = "| *The | cat* \\| dog |  | `x | y` |\n|:--|--|--|-:|"
    (row, _), _ = Document(table.split("\n"))
    assert row.pieces == ["*The", "cat* | dog", "`x | y`"]  # no mark goes over cells
    assert in_capitals(table) == table.replace("The", "THE").replace("cat", "CAT").replace("dog", "DOG")


@pytest.mark.parametrize("formula", ["$n$", "$a + b$", "$x_1$", "$$y = 5$$", "$$ y = 5 $$", "$O(n)$"])
def test_formulas_are_copied(formula: str) -> None:
    ((segment, _),) = Document([f"A dog has {formula}, for $5 or $10, 5$ or A$3, in $ and A$."])
    assert [span.text_in(segment.text) for span in segment.kept] == [formula]


@pytest.mark.parametrize(
    ("text", "plain", "copies"),
    [
        ("The ==cat== and ^^dog^^", "The cat and dog", []),
        ("H~2~O and x^2^", "H2O and x2", []),
        ("Press ++ctrl+c++ now", "Press ++ctrl+c++ now", ["++ctrl+c++"]),
        ("The cat :+1: is :100: here, at 10:100: and :2:", "The cat is here, at 10:100: and :2:", []),
        ("See `a page`_ and `b`__, `c`_d", "See `a page`_ and `b`__, `c`_d", ["`a page`_", "`b`__", "`c`"]),
        ("_see `code`_ and __see `code`__", "see `code` and see `code`", ["`code`", "`code`"]),
        ("x==y and a==b, x == y ==> z, 2^3 and 4^2, ~5 and ~6, ^_^, C++ and D++", "", []),
    ],
)
def test_marks_beyond_commonmark_are_no_text(text: str, plain: str, copies: list[str]) -> None:
    ((segment, _),) = Document([text])
    assert segment.text == (plain or text)
    assert [span.text_in(segment.text) for span in segment.kept] == copies


def test_text_in_brackets_is_a_link_if_the_document_defines_it() -> None:
    text = """\
See [the Cat], [the dog][], ![the cat], [Anna][] and [sic].

> [The cat]: https://example.org/cat "A cat\""""
    assert (
        in_capitals(text)
        == """\
SEE [THE CAT][the Cat], [THE DOG][the dog], ![THE CAT][the cat], [ANNA][Anna] AND [SIC].

> [The cat]: https://example.org/cat "A cat\""""
    )
    unread = iter(["[cat] it is", "", *["c"] * LONGEST_AHEAD, "[cat]: b.md"])
    assert next(iter(Document(unread)))[0].text == "[cat] it is"  # its definition is too far
    assert [*unread] == ["[cat]: b.md"]


def test_lines_break_between_words_and_not_in_codes() -> None:
    text = """\
See [the cat](a.md "A cat"), ![](b.png), `if a < b`, <b>{{ user.name }}</b>
and <img src="c.png" alt="The cat"> or 5\u00a0km in the book about it: $a_1 = 2$ is a formula.
It has a > b, <div> and a number at the end, of which there are no more than
12."""
    for width in range(20, 60):
        lines = replace(Piece.paragraph([TextLine.of(line) for line in text.split("\n")]), width=width).lay_out(
            text.replace("\n", " ") + " x"
        )
        for line in lines.split("\n"):
            assert not re.match(r">|<div>|12\.|md|cat\"|a <|b`|<? b`|user|\}\}|src|alt|km|= 2", line)


def test_a_left_column_is_translated_and_stays_apart() -> None:
    text = """\
The cat     eats mice, sleeps on the sofa, and goes out at night when it is
            dark
-c, --cat   shows the cat
cat.txt     is a file"""
    assert (
        in_capitals(text)
        == """\
THE CAT     EATS MICE, SLEEPS ON THE SOFA, AND GOES OUT AT NIGHT WHEN IT IS
            DARK
-c, --cat   SHOWS THE CAT
cat.txt     IS A FILE"""
    )


def test_a_long_word_makes_no_paragraph_narrow() -> None:
    link = "[the manual](https://example.org/manual/of/all/that/is/here)"
    for text in (f"See\n{link}\nfor more", f"As {link}\nsays.", f"It is said in the\n{link}"):
        found = laid_out(text, lambda each: each.replace("a", "ä") + " and the cat is here")
        assert len(found.split("\n")) <= 3


def test_what_stays_is_counted_by_its_kind() -> None:
    document = Document(
        ["---", "title: A", "---", "a    b    c", "```sh", "make it", "make all", "```", "[x]: a/b", "The cat"]
    )
    assert [each.raw for each, _ in document if each.raw] == ["The cat"]
    assert document.left == "left as they were: lines of code (2), front matter (1), tables (1)"
    plain = Document(["The cat."])
    assert [each.raw for each, _ in plain] == ["The cat."]
    assert plain.left == ""


@pytest.mark.parametrize("page", sorted(ROOT.glob("*.md")) + sorted(ROOT.glob("docs/*.md")), ids=lambda page: page.name)
def test_pages_come_back_whole(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert laid_out(text, str) == text
    changed = laid_out(text, lambda each: each.replace("e", "ē"))
    assert changed != text
    assert re.sub(r"[\s>]", "", changed.replace("ē", "e")) == re.sub(r"[\s>]", "", text)
