"""Order, windows, slow and endless inputs, errors and ends, with engines that only seem to search."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from engines import Alphabet, Characters, Found, Mirror, Searched, Shuffling, mirrored, pipeline

from nmt.commands.translate import ranked
from nmt.decoding import engine as feed_module
from nmt.decoding.engine import FIRST_WINDOW, LARGEST_WINDOW, Pool, ReadAhead, Source, SourceQueue, most_positions
from nmt.decoding.translator import Translator
from nmt.recipe import Decoding, Model
from nmt.system.errors import UserError
from nmt.text.terms import Phrase

WAIT = 60.0  # seconds after which a test gives up


def texts(engine: Any, lines: Iterable[str], **settings: Any) -> list[str]:
    return [translation.texts[0] for translation in pipeline(engine, **settings).stream(lines)]


def some_lines(number: int, seed: int = 1) -> list[str]:
    draw = random.Random(seed)
    return ["".join(draw.choices("abcdefgh", k=draw.choice([0, 1, 5, 20, 60]))) for _ in range(number)]


def reader() -> threading.Thread | None:
    return next((thread for thread in threading.enumerate() if thread.name == "read-ahead"), None)


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    if thread := reader():
        thread.join(WAIT)
        assert not thread.is_alive()


@pytest.fixture
def fast_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes every input for a fast one, however slow the machine is."""
    monkeypatch.setattr(feed_module, "PATIENCE", WAIT)


# --- no output ---------------------------------------------------------------------------------------------


class Finding(Mirror):
    """Finds nothing for what has an x."""

    def search(self, queue: SourceQueue, n_best: int) -> Generator[Found, None, None]:
        for number, hypotheses in super().search(queue, n_best):
            yield number, [] if ord("x") in hypotheses[0].ids else hypotheses

    sample = search


def test_a_search_that_finds_nothing_costs_that_line_alone() -> None:
    translator = pipeline(Finding(), split="sentences")
    found = list(translator.stream(["ab", "axb", "", "cd. xx. ef."], n_best=2))
    assert [each.texts for each in found] == [["ba", "a"], [""], [""], [".dc .fe"]]
    assert [each.failed for each in found] == [False, True, False, True]
    assert [each.complaints for each in found if each.failed] == 2 * [
        ["no output: the model gives each a probability of 0, or no number"]
    ]
    counts = [[occurs(each) for occurs in translator.warnings.values()] for each in found]
    assert [sum(row) for row in counts] == [0, 1, 0, 2]  # with the parts of the last one
    hypotheses = [json.loads(translator.as_json(1, each))["hypotheses"] for each in found]
    assert [[each["score"] for each in row] for row in hypotheses] == [[-1.0, -2.0], [None], [0.0], [None]]


def test_every_sample_has_its_line_even_if_nothing_was_found() -> None:
    assert pipeline(Finding()).translate(["ab", "x"], sample=2) == [["ba", "a"], ["", ""]]


def test_a_line_that_cannot_be_encoded_is_named_by_its_number() -> None:
    lines = ["a", "", "b" * 10, "c"]
    for before, number in ((0, "3"), (2000, "2,003")):
        found = pipeline(Mirror(), split="none", max_source=5).stream(lines, before=before)
        with pytest.raises(UserError, match=rf"^line {number}: a line that may not be split has 10 subwords"):
            list(found)


# --- order and windows --------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [Mirror, lambda: Mirror(tokens=1), lambda: Shuffling(1), lambda: Shuffling(2)])
def test_results_are_in_order_whatever_the_engine_does(make: Callable[[], Mirror]) -> None:
    lines = some_lines(3000)
    assert texts(make(), lines) == [line[::-1] for line in lines]


@pytest.mark.usefixtures("fast_input")
def test_windows_are_full_when_the_input_is_fast_so_runs_are_alike() -> None:
    lines = [line or "x" for line in some_lines(3 * LARGEST_WINDOW)]
    first, second = Mirror(), Mirror()
    texts(first, lines)
    texts(second, iter(lines))
    assert first.batches == second.batches
    seen = [line for batch in first.batches for line in batch]
    start = 0
    for size in (FIRST_WINDOW, 4 * FIRST_WINDOW, 16 * FIRST_WINDOW, LARGEST_WINDOW):
        window = lines[start : start + size]
        assert seen[start : start + size] == sorted(window, key=len, reverse=True)
        start += size


@pytest.mark.parametrize("wrong", [None, b"bytes", 3])
def test_what_is_no_text_is_an_error_and_not_the_end(wrong: Any) -> None:
    results = pipeline(Mirror()).stream(["ab", wrong, "cd"])
    assert next(results).texts == ["ba"]
    with pytest.raises(TypeError, match=f"a line must be str, not {type(wrong).__name__}"):
        list(results)


# --- memory -------------------------------------------------------------------------------------------------


class Stuck(Mirror):
    """Finds the first line only after as many as it is to take."""

    def __init__(self, number: int, then: Callable[[], None]) -> None:
        super().__init__()
        self.number, self.then = number, then

    def search(self, queue: SourceQueue, n_best: int) -> Generator[Found, None, None]:
        (first, *others), taken = queue.take(10**6, wait=True), 1
        while taken < self.number:
            yield from ((source.number, mirrored(source, n_best)) for source in others)
            taken += len(others)
            others = queue.take(10**6, wait=False)
        self.then()
        assert queue.take(10**6, wait=False) == []
        yield first.number, mirrored(first, n_best)


@pytest.mark.usefixtures("fast_input")
@pytest.mark.parametrize(
    ("length", "lines"),
    [
        (5, 64 + 256 + 1024 + 2 * 2048),
        (1280 - 64, 4 + 13 + 52 + 2 * 103),  # each counts as 20
    ],
)
def test_a_first_line_that_takes_long_does_not_let_the_rest_run_away(length: int, lines: int) -> None:
    pulled, then = count(), []
    engine = Stuck(lines, lambda: then.append(next(pulled)))
    # the first is the longest
    results = pipeline(engine, max_source=2000).stream("x" * (length + (next(pulled) == 0)) for _ in count())
    assert len(next(results).texts[0]) == length + 1
    assert then == [lines]
    results.close()


def test_without_waiting_nothing_is_given_that_does_not_fit() -> None:
    def sources() -> Pool:
        return Pool([Source(0, [1, 2, 3], 9), Source(1, [1], 9), Source(2, [1], 9)])

    assert sources().take(3, at_least=0) == []
    assert [source.number for source in sources().take(3, at_least=1)] == [0]
    assert [source.number for source in sources().take(8, at_least=0)] == [0, 1]
    pool = sources()
    assert [source.number for source in pool.take(1000, at_least=1)] == [0, 1, 2]
    assert not pool
    assert pool.take(1000, at_least=1) == []


# --- slow inputs --------------------------------------------------------------------------------------------


def test_a_slow_input_is_answered_line_by_line() -> None:
    answered = threading.Semaphore(0)

    def conversation() -> Iterator[str]:
        for line in ["ab", "", "", "cd", "efg", ""]:
            yield line
            assert answered.acquire(timeout=WAIT)  # comes only when this line was answered

    found = []
    for result in pipeline(Mirror()).stream(conversation()):
        found.append(result.texts[0])
        answered.release()
    assert found == ["ba", "", "", "dc", "gfe", ""]


def test_a_search_under_way_admits_lines_as_they_come() -> None:
    admitted = threading.Event()

    class Patient(Mirror):
        def search(self, queue: SourceQueue, n_best: int) -> Generator[Found, None, None]:
            (first,) = queue.take(1000, wait=True)
            while not (second := queue.take(1000, wait=False)):
                admitted.set()
            yield second[0].number, mirrored(second[0], 1)
            yield first.number, mirrored(first, 1)
            assert queue.take(1000, wait=True) == []

    def lines() -> Iterator[str]:
        yield "ab"
        assert admitted.wait(WAIT)  # the first line is being searched and nothing more is there
        yield "cd"

    assert texts(Patient(), lines()) == ["ba", "dc"]


def test_a_slow_input_is_not_read_further_ahead_than_a_fast_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("PATIENCE", 0.0), ("LARGEST_WINDOW", 64), ("IN_FLIGHT", 192)):
        monkeypatch.setattr(feed_module, name, value)
    begun, over, taken = threading.Event(), threading.Event(), list[Source]()

    def trickle() -> Iterator[str]:
        begun.wait()
        for _ in range(1000):
            taken.extend(ahead.take(1000, wait=False))  # by an engine that has room, while the input keeps it waiting
            yield "a line"
        over.set()

    with ReadAhead(trickle(), lambda request: [Source(0, [1], 1)]) as ahead:
        begun.set()
        assert not over.wait(0.3)  # since nothing is given out
        assert len(taken) <= 192
        given = 0
        while given < 1000:  # and then all is
            taken.extend(ahead.take(1000, wait=False))
            while taken:
                ahead.put(taken.pop().number, [])
            given += len(ahead.due())


# --- errors and ends ----------------------------------------------------------------------------------------


def test_an_error_of_the_input_is_raised_after_the_lines_before_it() -> None:
    def broken() -> Iterator[str]:
        yield from ("ab", "cd")
        raise OSError("the disk is gone")

    results = pipeline(Mirror()).stream(broken())
    assert [next(results).texts[0], next(results).texts[0]] == ["ba", "dc"]
    with pytest.raises(OSError, match="the disk is gone"):
        next(results)


def test_an_error_of_the_engine_is_raised_at_once_and_ends_the_thread() -> None:
    class Broken(Mirror):
        def order(self, batch: list[Source]) -> list[Source]:
            raise ValueError("out of memory")

    with pytest.raises(ValueError, match="out of memory"):
        texts(Broken(), ("ab" for _ in count()))


def test_closing_does_not_wait_for_an_input_that_says_nothing() -> None:
    more = threading.Event()

    def lines() -> Iterator[str]:
        yield "ab"
        more.wait(WAIT)
        yield "cd"

    engine = Mirror()
    results = pipeline(engine).stream(lines())
    assert next(results).texts == ["ba"]
    results.close()
    assert engine.closed
    thread = reader()
    assert thread is not None
    assert thread.daemon  # so that the program can end too
    more.set()
    thread.join(WAIT)
    assert engine.batches == [["ab"]]


# --- what is said of a line ---------------------------------------------------------------------------------


def test_a_translation_tells_what_became_of_its_line() -> None:
    (found,) = pipeline(Mirror()).stream([" abCD e "], n_best=2)
    assert found.texts == [" e DCba ", " DCba "]
    assert found.scores == [-1.0, -2.0]
    assert found.source == Characters().encode("abCD e")
    assert found.ids == [Characters().encode("e DCba"), Characters().encode(" DCba")]
    assert found.alignments == [[5, 4, 3, 2, 1, 0], [4, 3, 2, 1, 0]]
    assert (found.parts, found.capped, found.unknown, found.empty) == (1, False, 2, False)


class Stuttering(Mirror):
    """Finds as many hypotheses as it is asked for, of which each text stands twice, one after the other."""

    def search(self, queue: SourceQueue, n_best: int) -> Generator[Found, None, None]:
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
        def search(self, queue: SourceQueue, n_best: int) -> Generator[Found, None, None]:
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


@pytest.mark.usefixtures("fast_input")
def test_lines_are_counted_as_soon_as_they_are_searched() -> None:
    """Blank ones are not; `</s>` counts where there is one, in each part."""
    counts: list[int] = []
    found = pipeline(Mirror(), max_source=4).stream(["a", "", "abcdefgh", "abc"], 2, searched=counts.append)
    assert next(found).texts[0] == "a"
    assert counts == [8 + 2, 3 + 1, 1 + 1]
    assert [translation.texts[0] for translation in found] == ["", "dcba hgfe", "cba"]
    capped = pipeline(Mirror(), max_extra=2).stream(["abc"], searched=counts.append)
    next(capped)
    assert counts[3:] == [3]


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
        "source": list("x Ab"),
        "hypotheses": [
            {**fox, "tokens": list("bA x"), "alignment": [3, 2, 1, 0], "log_probabilities": [-0.5, -0.1235]},
            {**rest, "tokens": list("A x"), "alignment": [2, 1, 0], "log_probabilities": [-1.0]},
        ],
        **{"parts": 1, "capped": False, "unknown": 1, "unusual_length": False, "missing": ["A → a | b"]},
        **{"kept_from_repeating": False, "lost": ["3"], "invented": [], "deleted": [], "loop": "fox"},
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
