"""What a line's result tells: texts, scores, JSON, ranked lines, and the caps of its length."""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import pytest
from engines import Alphabet, Characters, Found, Mirror, Searched, Shuffling, pipeline

from nmt.commands.translate import ranked
from nmt.decoding.engine import Request, most_positions, read_tagged
from nmt.decoding.translator import Translator
from nmt.formats.terms import Phrase
from nmt.recipe import Decoding, Model
from nmt.search.sources import Source, SourceQueue
from nmt.system.errors import UserError

# --- what is said of a line ---------------------------------------------------------------------------------


def test_a_translation_tells_what_became_of_its_line() -> None:
    (found,) = pipeline(Mirror()).stream([" abCD e "], n_best=2)
    assert found.texts == [" e DCba ", " DCba "]
    assert found.scores == [-1.0, -2.0]
    assert found.source == Characters().encode("abCD e")
    assert found.ids == [Characters().encode("e DCba"), Characters().encode(" DCba")]
    assert found.alignments == [[5, 4, 3, 2, 1, 0], [4, 3, 2, 1, 0]]
    assert (found.parts, found.capped, found.unknown, found.empty) == (1, False, 2, False)


def test_a_result_has_the_origin_of_its_request_whatever_the_lines_before_it() -> None:
    lines = ["ab", Request("<b>cd", origin=1), "ef</b> <i", Request("> </i>", origin=[2]), Request("", origin=3)]
    found = list(pipeline(Shuffling(0)).stream(read_tagged(lines)))
    assert [each.origin for each in found] == [None, 1, None, [2], 3]
    assert [each.texts for each in found] == [["ba"], ["<b>dc"], ["fe</b> <i"], ["> </i>"], [""]]


class Stuttering(Mirror):
    """Finds as many hypotheses as it is asked for, of which each text stands twice, one after the other."""

    def search(self, queue: SourceQueue, n_best: int, sample: bool = False) -> Generator[Found, None, None]:
        for number, found in super().search(queue, n_best):
            yield number, [hypothesis for one in found for hypothesis in (one, replace(one, score=one.score - 0.5))]


def test_texts_of_several_hypotheses_differ_and_have_the_best_scores() -> None:
    (found,) = pipeline(Stuttering(), beam=4).stream(["abc de"], n_best=3)
    assert found.texts == ["ed cba", "d cba", "cba"]
    assert found.scores == [-1.0, -2.0, -3.0]
    assert found.ids == [Characters().encode(text) for text in ("ed cba", "d cba", " cba")]
    (found,) = pipeline(Stuttering(), beam=4).stream(["a"], n_best=4)
    assert (found.texts, found.scores) == (["a", ""], [-1.0, -2.0])  # there are no others


def test_one_hypothesis_is_asked_for_where_one_is_wanted_and_else_the_beam() -> None:
    asked = []

    class Asked(Mirror):
        def search(self, queue: SourceQueue, n_best: int, sample: bool = False) -> Generator[Found, None, None]:
            asked.append(n_best)
            return super().search(queue, n_best)

    for n_best in (1, 2, 4):
        list(pipeline(Asked(), beam=4).stream(["abc"], n_best))
    assert asked == [1, 4, 4]


def test_a_split_line_is_joined_and_its_indices_run_on() -> None:
    (found,) = pipeline(Mirror(), max_source=4).stream(["abcd Efg hi"])
    assert found.texts == ["dcba gfE ih"]  # its parts "abcd", " Efg", " hi", each reversed
    assert found.parts == 3
    assert found.scores == [-3.0]
    assert [found.source[index] for index in found.alignments[0]] == found.ids[0]
    assert found.alignments == [[3, 2, 1, 0, 7, 6, 5, 4, 10, 9, 8]]
    assert found.unknown == 1


# --- as lines -----------------------------------------------------------------------------------------------


def test_json_tells_all_in_one_line() -> None:
    tokenizer: Any = Alphabet()
    translator = Translator(Searched(Mirror()), tokenizer, Decoding(), annotated=True)
    (found,) = translator.stream(["x Ab"], n_best=2)
    said = {"texts": ['fox \u2028 "', "A x"], "lost": ["3"], "missing": [Phrase("A", ("a", "b"), 2)], "loop": "fox"}
    line = translator.as_json(3, replace(found, **said, log_probabilities=[[-0.5, -0.123456], [-1.0]]))
    assert "\n" not in line
    fox, rest = ({"text": text, "score": score} for text, score in (('fox \u2028 "', -1.0), ("A x", -2.0)))
    assert json.loads(line) == {
        "line": 3,
        "source": list("x▁Ab"),
        "hypotheses": [
            {**fox, "tokens": list("bA▁x"), "alignment": [3, 2, 1, 0], "log_probabilities": [-0.5, -0.1235]},
            {**rest, "tokens": list("A▁x"), "alignment": [2, 1, 0], "log_probabilities": [-1.0]},
        ],
        **{"parts": 1, "capped": False, "unknown": 1, "unusual_length": False, "missing": ["A → a | b"]},
        **{"lost": ["3"], "invented": [], "deleted": [], "left": [], "loop": "fox"},
    }


def test_ranked_lines_tell_number_rank_score_and_text() -> None:
    (found,) = pipeline(Mirror()).stream(["xof"], n_best=2)
    found = replace(found, texts=['fox \u2028 "', " ox  "], scores=[-0.125, -2.0])
    assert ranked(12, found) == '12\t1\t-0.1250\tfox \u2028 "\n12\t2\t-2.0000\tox'


def test_translations_have_the_spaces_at_the_ends_of_their_lines() -> None:
    lines = pipeline(Mirror()).stream(["  abc ", "\t", "\u3000abc"])
    assert [result.texts for result in lines] == [["  cba "], ["\t"], ["\u3000cba"]]


# --- caps ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("positions", "cap"), [(None, 15), (100, 15), (12, 12)])
def test_a_cap_is_the_length_and_some_within_the_models_positions(positions: int | None, cap: int) -> None:
    caps = []

    class Capped(Mirror):
        def order(self, batch: list[Source]) -> list[Source]:
            caps.extend(source.cap for source in batch)
            return batch

    next(pipeline(Capped(), positions, max_extra=10, max_source=8).stream(["abcde"]))
    assert caps == [cap]


def test_an_ensemble_serves_what_each_of_its_models_does() -> None:
    models = [Model(positions="learned", max_positions=length) for length in (30, 20)]
    assert most_positions([*models, Model()]) == 20
    assert most_positions([Model()]) > 10**9
    with pytest.raises(UserError, match=r"max_source.*max_positions 20.*got 20"):
        pipeline(Mirror(), positions=20, max_source=20)
