"""What stands around a sentence: marks of lists, brackets, quotation marks."""

from __future__ import annotations

import pytest

from nmt.formats.frames import Frames

FRAMED = """- _|* _|> _|# _|### _|* _|• _|1) _|(1) _|a) _|iii) _|1. _|1.2. _|1、_
（1） _|(_)|[_]|（_）|【_】|"_"|“_”|„_“|„_”
«_»|« _ »|'_'|‘_’|- (_)|(1) "_"|- - _|[ _ ]|( (_) )
-_|–_|—“_”|(_).|"_",|«_».|[(_)];|（_）。
-- _|>> _|+ _|~ _|[ ] _|- [x] _|[12] _|..._|… _|- ... _|{\\an8}_|{\\i1}{\\an8}- (_)""".replace("\n", "|").split("|")
WHOLE = """The dog.|The dog (old).|(The) dog|(see it) and (that)|"The dog," he said, "ran."|[b]dog[/b]|-|()|( )
1984. It was|1.5 miles|-5 dogs|-x|--The dog|>The dog|.NET is|...
file(s)|(s)|[y/N]|(a/b)|(the dog|the dog)|"the dog'|C#|5-6
I. Newton|“The dog.” “The cat.”""".replace("\n", "|").split("|")


@pytest.mark.parametrize("frame", FRAMED)
@pytest.mark.parametrize("sentence", ["The dog's old.", "狗", "see (5) and [6]"])
def test_a_sentence_is_found_in_its_frame(frame: str, sentence: str) -> None:
    text = frame.replace("_", sentence)
    assert Frames("en", quotes=True).inside(text).text_in(text) == sentence


@pytest.mark.parametrize("text", WHOLE)
def test_what_is_part_of_a_sentence_stays_in_it(text: str) -> None:
    assert Frames("en", quotes=True).inside(text).text_in(text) == text


def test_a_number_may_be_an_ordinal() -> None:
    text = "3. Oktober"
    assert [Frames(language, quotes=True).inside(text).start for language in ("de", "", "en", "fr")] == [0, 0, 3, 3]
    assert Frames("de", quotes=True).inside("3) Oktober").start == 3


def test_quotation_marks_are_left_to_models_that_know_them() -> None:
    assert Frames("en", quotes=False).inside('"The dog."') == (0, 10)
    assert Frames("en", quotes=False).inside('("The dog.")') == (1, 11)


def test_frames_without_end_are_read_in_no_time() -> None:
    text = "(" * 99_999 + "the dog" + ")" * 99_999
    assert Frames("en", quotes=True).inside(text) == (9, len(text) - 9)
