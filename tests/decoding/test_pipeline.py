"""Order, windows, slow and endless inputs, errors and ends, with engines that only seem to search."""

from __future__ import annotations

import json
import os
import pickle
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
from engines import Found, Mirror, Shuffling, mirrored, pipeline

from nmt.decoding import engine as feed_module
from nmt.decoding.engine import FIRST_WINDOW, LARGEST_WINDOW, ReadAhead, Request
from nmt.search.sources import Pool, Source, SourceQueue
from nmt.system.errors import UserError

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

    def search(self, queue: SourceQueue, n_best: int, sample: bool = False) -> Generator[Found, None, None]:
        for number, hypotheses in super().search(queue, n_best):
            yield number, [] if ord("x") in hypotheses[0].ids else hypotheses


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
    assert [each.texts for each in pipeline(Finding()).stream(["ab", "x"], sample=2)] == [["ba", "a"], ["", ""]]


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


class Single(Mirror):
    """Runs one search at a time, as engines do, and fails for what has an x."""

    is_searching = False

    def search(self, queue: SourceQueue, n_best: int, sample: bool = False) -> Generator[Found, None, None]:
        assert not self.is_searching
        self.is_searching = True
        try:
            for number, hypotheses in super().search(queue, n_best):
                if ord("x") in hypotheses[0].ids:
                    raise UserError("an x", "leave it out")
                yield number, hypotheses
        finally:
            self.is_searching = False


def test_streams_of_one_engine_take_turns_whether_amid_their_searches_dropped_or_the_input_of_each_other() -> None:
    lines, translator = [line or "a" for line in some_lines(500)], pipeline(Single())
    mirrored = [line[::-1] for line in lines]
    streams = [translator.stream(lines, n_best=n_best) for n_best in (1, 2)]
    assert next(streams[0]).texts == mirrored[:1]
    pairs = zip(streams[1], streams[0], strict=False)
    assert [(one.texts[0], other.texts[0]) for one, other in pairs] == [*pairwise(mirrored)]
    stream = translator.stream(lines)
    next(stream)
    del stream
    back = translator.stream(translated for line in lines[:50] for translated in translator.translate([line]))
    assert [found.texts[0] for found in back] == lines[:50]


def test_an_error_of_a_search_that_another_stream_finishes_is_that_of_its_own_stream() -> None:
    translator = pipeline(Single())
    stream = translator.stream(["a" * 9, "b", "x"])
    assert next(stream).texts == ["a" * 9]
    assert translator.translate(["ab"]) == ["ba"]
    with pytest.raises(UserError, match="an x"):
        list(stream)
    assert translator.translate(["ab"]) == ["ba"]


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


def test_a_lone_surrogate_is_one_character_wherever_it_is() -> None:
    """UTF-8 cannot encode it."""
    translator, lone = pipeline(Mirror()), "\ud800"
    assert Request(f"a{lone}", prefix=lone) == Request("a?", prefix="?")
    terms: Any = {"terms": [(f"b{lone}", f"{lone}c")], "keep": [lone, "e."]}
    assert translator.translate([f"a {lone}", lone, f"{lone}\n"], **terms) == ["? a", "?", "?\n"]
    assert translator.translate([f"{lone}<i> <br></i>{lone} "], markup=True, **terms)[0].count("?") == 2
    (found,) = translator.stream([f"a{lone}"])
    assert json.loads(translator.as_json(1, found).encode())["source"] == ["a", "?"]


@pytest.mark.parametrize("wrong", [None, b"bytes", 3])
def test_what_is_no_text_is_an_error_and_not_the_end(wrong: Any) -> None:
    results = pipeline(Mirror()).stream(["ab", wrong, "cd"])
    assert next(results).texts == ["ba"]
    with pytest.raises(TypeError, match=f"a line must be str, not {type(wrong).__name__}"):
        list(results)


@pytest.mark.usefixtures("fast_input")
def test_lines_are_counted_as_soon_as_they_are_searched() -> None:
    """Blank ones are not; `</s>` counts where there is one, in each part."""
    counts: list[int] = []
    found = pipeline(Mirror(), max_source=4).stream(["a", "", "abcdefgh", "abc"], 2, searched=counts.append)
    assert next(found).texts[0] == "a"
    assert counts == [8 + 2, 3 + 1, 1 + 1]
    assert [translation.texts[0] for translation in found] == ["", "dcbahgfe", "cba"]
    capped = pipeline(Mirror(), max_extra=2).stream(["abc"], searched=counts.append)
    next(capped)
    assert counts[3:] == [3]


# --- memory -------------------------------------------------------------------------------------------------


class Stuck(Mirror):
    """Finds the first line only after as many as it is to take."""

    def __init__(self, number: int, then: Callable[[], None]) -> None:
        super().__init__()
        self.number, self.then = number, then

    def search(self, queue: SourceQueue, n_best: int, sample: bool = False) -> Generator[Found, None, None]:
        (first, *others), taken = queue.take_sources(10**6, wait=True), 1
        while taken < self.number:
            yield from ((source.number, mirrored(source, n_best)) for source in others)
            taken += len(others)
            others = queue.take_sources(10**6, wait=False)
        self.then()
        assert queue.take_sources(10**6, wait=False) == []
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

    assert sources().take_sources(3, at_least=0) == []
    assert [source.number for source in sources().take_sources(3, at_least=1)] == [0]
    assert [source.number for source in sources().take_sources(8, at_least=0)] == [0, 1]
    pool = sources()
    assert [source.number for source in pool.take_sources(1000, at_least=1)] == [0, 1, 2]
    assert not pool
    assert pool.take_sources(1000, at_least=1) == []


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
        def search(self, queue: SourceQueue, n_best: int, sample: bool = False) -> Generator[Found, None, None]:
            (first,) = queue.take_sources(1000, wait=True)
            while not (second := queue.take_sources(1000, wait=False)):
                admitted.set()
            yield second[0].number, mirrored(second[0], 1)
            yield first.number, mirrored(first, 1)
            assert queue.take_sources(1000, wait=True) == []

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
            taken.extend(
                ahead.take_sources(1000, wait=False)
            )  # by an engine that has room, while the input keeps it waiting
            yield "a line"
        over.set()

    with ReadAhead(trickle(), lambda request: [Source(0, [1], 1)]) as ahead:
        begun.set()
        assert not over.wait(0.3)  # since nothing is given out
        assert len(taken) <= 192
        given = 0
        while given < 1000:  # and then all is
            taken.extend(ahead.take_sources(1000, wait=False))
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


OPEN = """
import os, sys
from engines import Mirror, pipeline

model = pipeline(Mirror())
stream = model.stream(["ab", "cd"] * 5000)
print(next(stream).texts, flush=True)
if os.fork() == 0:
    sys.exit()
print(os.wait()[1])
"""


def test_a_program_may_end_while_a_stream_is_open_and_so_may_a_fork_of_it() -> None:
    path = os.pathsep.join([str(Path(__file__).parents[1] / "support"), os.environ["PYTHONPATH"]])
    command = [sys.executable, "-c", OPEN]
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=WAIT)
    assert (done.stdout, done.stderr, done.returncode) == ("['ba']\n0\n", "", 0)


def test_a_model_that_is_sent_to_another_process_says_what_to_do() -> None:
    with pytest.raises(UserError, match="cannot be pickled") as caught:
        pickle.dumps(pipeline(Mirror()))
    assert caught.value.hint == "load it in each process"
