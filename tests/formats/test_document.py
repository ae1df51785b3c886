"""Paragraphs of texts, and the layout of their translations."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.formats.document import LONGEST_BLOCK, Document


def laid_out(text: str, translate: Callable[[str], str]) -> str:
    document = Document(text.split("\n"))
    found = [document.lay_out(translate(each) if each else "") for each in document]
    return "\n".join(lines for lines in found if lines is not None)


def sent(text: str) -> list[str]:
    """The texts to translate."""
    return [each for each in Document(text.split("\n")) if each]


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
    assert laid_out(text, str) == text.replace("Without  a  file", "Without a file")


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


@pytest.mark.parametrize(
    ("lines", "joint"),
    [
        ("They have sung all day and all night long the well-\nknown songs.", ""),
        ("It is once more a matter of before- and of after-\nand of now.", " "),
        ("这是一个很长的句子，它在这里被分成两行，因为宽度\n不够。", ""),
        ("It is described in the book about it on page\n12. But not well.", " "),
        ("All of the files that are in that direc‐\ntory.", ""),  # by groff
    ],
)
def test_lines_are_joined_as_their_script_and_hyphens_ask_for(lines: str, joint: str) -> None:
    assert sent(lines) == [lines.replace("\n", joint).replace("‐", "")]


@given(st.lists(st.text(st.sampled_from("aA中é1 \t>-*#|.:<!`~=‐\u3000\x1c"), max_size=20)))
def test_every_line_has_a_text_and_no_character_is_lost(lines: list[str]) -> None:
    assert len(list(Document(lines))) == len(lines)
    found, text = (re.sub(r"[\s>‐]", "", each) for each in (laid_out("\n".join(lines), str), "".join(lines)))
    assert found == text


def test_paragraphs_come_before_the_text_ends_and_long_ones_are_cut() -> None:
    def lines() -> Iterator[str]:
        yield from ["Dear Anna,", ""]
        yield from ["a line that is not the last one, and which goes on to the next,"] * LONGEST_BLOCK
        yield "one more"
        raise EOFError

    texts = iter(Document(lines()))
    assert [next(texts) for _ in range(2)] == ["Dear Anna,", ""]
    assert sum(1 for _ in zip(range(LONGEST_BLOCK), texts, strict=False)) == LONGEST_BLOCK
    with pytest.raises(EOFError):
        next(texts)


@pytest.mark.parametrize(
    "line", ["a" + " " * 100_000 + "b\tc", "(" * 100_000, "a\t" * 50_000, "> " * 50_000, "a." * 50_000]
)
def test_no_line_takes_time_that_grows_with_the_square_of_its_length(line: str) -> None:
    assert laid_out(line, str).split() == line.split()


def test_front_matter_and_hard_breaks_stay() -> None:
    text = "---\ntitle: The cat\n---\nThe cat sees\\\nthe dog.\n"
    assert sent(text) == ["The cat sees", "the dog."]
    assert laid_out(text, str.upper) == "---\ntitle: The cat\n---\nTHE CAT SEES\\\nTHE DOG.\n"
    assert sent("---\nThe cat sees the dog.\n---\n") == ["The cat sees the dog."]  # rules
    assert sent("+++\na = 1\n\nThe cat sees the dog.") == ["The cat sees the dog."]  # has no end
