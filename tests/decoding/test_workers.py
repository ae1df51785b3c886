"""Several processes as one engine: order, shares, errors and ends."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import textwrap
import threading
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from engines import fateful, pipeline, second_refuses, shuffling

from nmt.decoding import workers as workers_module
from nmt.decoding.workers import Saved, Workers, _Worker
from nmt.search.sources import Source
from nmt.system.errors import UserError

WAIT = 60.0  # seconds after which a test gives up


def killed(connection: Connection, asks: int = 0) -> _Worker:
    """The handle of a worker whose process has been killed."""
    process: Any = SimpleNamespace(join=lambda: None, exitcode=-signal.SIGKILL)
    return _Worker("worker 2 of 3", process, connection, asks)


def test_results_are_those_of_one_engine_in_order() -> None:
    lines = [f"{number:x}g" * (number % 7) for number in range(1000)]  # no numbers alone, which are copied
    with Workers(shuffling, 2) as engine:
        assert [worker.name for worker in engine._workers] == ["worker 1 of 2", "worker 2 of 2"]
        for _ in range(2):  # a search follows another
            found = pipeline(engine).stream(lines, n_best=2)
            assert [translation.texts[0] for translation in found] == [line[::-1] for line in lines]


@pytest.mark.parametrize(("lengths", "shares"), [([5] * 10, [5, 5]), ([31, 7, 7, 7, 7], [1, 4]), ([9], [1, 0])])
def test_a_worker_that_asks_for_everything_gets_its_share(lengths: list[int], shares: list[int]) -> None:
    engine, pipes = Workers(shuffling, 2), [Pipe() for _ in range(2)]
    engine._workers = [killed(here, asks=1000) for here, _ in pipes]
    queue: Any = SimpleNamespace(take_sources=lambda tokens, wait: waiting.pop() if waiting else [])
    waiting = [[Source(number, [4] * length, cap=9) for number, length in enumerate(lengths)]]
    engine._serve(queue)
    for worker in engine._workers:
        if worker.sender:
            worker.outbox.put(b"")
            worker.sender.join()
    assert [len(there.recv()) if there.poll() else 0 for _, there in pipes] == shares
    assert [len(worker.busy) for worker in engine._workers] == shares


@pytest.mark.parametrize(
    ("word", "message", "hint"),
    [
        ("raise", r"^worker [12] of 2: ValueError: out of memory\n", "--debug"),
        ("refuse", r"^worker [12] of 2: no such key\n", "try another"),
        ("die", r"^worker [12] of 2 was killed by SIGKILL\n", "memory"),
    ],
)
def test_a_workers_failure_is_one_error_that_names_it(word: str, message: str, hint: str) -> None:
    with Workers(fateful, 2) as engine:
        processes = [worker.process for worker in engine._workers]
        lines = (word if number == 300 else "ab" for number in count())
        with pytest.raises(UserError, match=message) as error:
            for _ in pipeline(engine).stream(lines):
                pass
        assert hint in str(error.value.hint)
        assert not any(process.is_alive() for process in processes)
    if word == "raise":
        assert "in order" in str(error.value.__cause__)  # where it happened


def test_a_worker_that_cannot_begin_is_named_at_once() -> None:
    engine = Workers(second_refuses, 2)
    with pytest.raises(UserError, match=r"^worker 2 of 2: no such device\n"), engine:
        pytest.fail("it began")


def test_a_worker_imports_nothing_from_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pickle", "runpy", "socket", "threading", "torch", "nmt"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(77)")
    monkeypatch.chdir(tmp_path)
    with Workers(shuffling, 1) as engine:
        assert [found.texts for found in pipeline(engine).stream(["abc"])] == [["cba"]]


def test_streams_that_are_open_at_once_or_dropped_leave_each_other_their_results() -> None:
    lines = [f"{number:x}g" * (number % 7 + 1) for number in range(300)]
    mirrored = [line[::-1] for line in lines]
    with Workers(shuffling, 2) as engine:
        translator = pipeline(engine)
        pairs = zip(translator.stream(lines), translator.stream(lines, n_best=2), strict=True)
        assert [(one.texts[0], other.texts[0]) for one, other in pairs] == [*zip(mirrored, mirrored, strict=True)]
        for _ in range(3):
            stream = translator.stream(lines)
            assert next(stream).texts == mirrored[:1]
            assert translator.translate(lines[:20]) == mirrored[:20]
            assert next(stream).texts == mirrored[1:2]
            del stream  # amid its search
        assert translator.translate(lines) == mirrored


def test_closing_the_model_ends_the_workers_whatever_they_do() -> None:
    with Workers(fateful, 2) as engine:
        processes = [worker.process for worker in engine._workers]
        closed, stream = (pipeline(engine).stream(["abcde", "hang", "cd"]) for _ in range(2))
        assert next(closed).texts == ["edcba"]
        closed.close()
        engine.close()
        assert not any(process.is_alive() for process in processes)
        with pytest.raises(UserError, match="the workers have ended"):
            next(stream)


PARENT = """
import threading
from engines import fateful, pipeline
from nmt.decoding.workers import Workers

def lines():
    yield from ("abcde", "hang")
    threading.Event().wait()

if __name__ == "__main__":
    with Workers(fateful, 3, fork=FORK) as engine:
        try:
            for translation in pipeline(engine).stream(lines()):
                print(translation.texts[0], flush=True)
        except KeyboardInterrupt:
            print("interrupted")
"""


def test_a_worker_killed_while_it_sends_is_named() -> None:
    here, there = Pipe()
    os.write(there.fileno(), struct.pack("!i", 20_000) + b"a beginning")
    there.close()
    with pytest.raises(UserError, match=r"^worker 2 of 3 was killed by SIGKILL\n"):
        killed(here).receive()


def test_a_worker_that_failed_before_it_was_sent_anything_says_why() -> None:
    here, there = Pipe()
    there.send(("idle",))
    there.send(("failed", "no such key", "try another", "Traceback"))
    there.close()
    worker = killed(here)
    worker.send([])
    assert worker.receive() == ("idle",)
    with pytest.raises(UserError, match=r"^worker 2 of 3: no such key\n"):
        worker.receive()


def test_what_is_sent_does_not_wait_for_the_worker_to_read_it() -> None:
    here, there = Pipe()
    worker = killed(here)
    sources = [Source(0, [4] * 1_000_000, cap=9)]  # more than a pipe holds
    sending = threading.Thread(target=worker.send, args=(sources,), daemon=True)
    sending.start()
    sending.join(WAIT)
    assert not sending.is_alive()
    threading.Thread(target=there.send, args=(("found", 0, sources),), daemon=True).start()
    assert worker.receive() == ("found", 0, sources)  # neither end has read anything yet
    assert there.recv() == sources
    worker.close()


FORKED = """
import os, sys, nmt
if __name__ == "__main__":
    with nmt.load("ckpts", workers=int(sys.argv[1]), beam=2) as model:
        for use in (lambda: model.translate(["a b"]), lambda: model.attention("a b", "b a")):
            if (child := os.fork()) == 0:
                try:
                    use()
                except nmt.UserError as error:
                    print(error.hint)
                sys.exit()  # runs what ends the workers of other processes
            assert os.waitpid(child, 0)[1] == 0
        lines = [line.rstrip() for line in open("test.a")]
        found = model.translate(lines)
        assert model.translate(lines[:9]) == found[:9]  # the workers are still there
    assert found == nmt.load("ckpts", beam=2).translate(lines)
    print(len(found))
"""


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])  # each imports torch anew
def test_a_fork_of_a_program_cannot_use_its_model_and_workers_find_what_one_process_finds(
    reverse_run: Path, tmp_path: Path, workers: int
) -> None:
    program = tmp_path / "program.py"
    program.write_text(FORKED)
    command = [sys.executable, "-u", program, str(workers)]
    done = subprocess.run(command, cwd=reverse_run, capture_output=True, text=True, check=False, timeout=WAIT)
    hint = "load it after the fork, in each process, or start processes by the method spawn\n"
    assert (done.stdout, done.stderr, done.returncode) == (2 * hint + "100\n", "", 0)


@pytest.mark.parametrize(("number", "fork"), [(signal.SIGINT, False), (signal.SIGKILL, True)])
def test_no_worker_outlives_its_parent(tmp_path: Path, number: int, fork: bool) -> None:
    script = tmp_path / "parent.py"
    script.write_text(textwrap.dedent(PARENT).replace("FORK", str(fork)))
    path = os.pathsep.join([str(Path(__file__).parents[1] / "support"), os.environ["PYTHONPATH"]])
    parent = subprocess.Popen(
        [sys.executable, script],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == "edcba\n"
    if number == signal.SIGINT:
        os.killpg(parent.pid, number)  # as a terminal does
    else:
        parent.send_signal(number)
    out, err = parent.communicate(timeout=WAIT)  # which ends when the last of them is gone, whose streams these are
    assert err == ""
    if number == signal.SIGINT:
        assert (out, parent.returncode) == ("interrupted\n", 0)


# --- how many there are ---------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux alone")
@pytest.mark.parametrize(
    ("forks", "workers", "threads", "expected"),
    [(True, None, None, 6), (True, None, 3, 3), (True, 2, 3, 2), (False, None, 3, 1), (False, 2, None, 2)],
)
def test_a_search_on_a_cpu_has_a_forked_worker_for_each_thread_unless_told(
    monkeypatch: pytest.MonkeyPatch, forks: bool, workers: int | None, threads: int | None, expected: int
) -> None:
    counts: list[int] = []
    monkeypatch.setattr("nmt.system.parallelism.cores", lambda: 6)
    monkeypatch.setattr(workers_module, "choose_device", lambda *arguments: "cpu")

    def several(make: Any, count: int, fork: bool) -> AbstractContextManager[str]:
        counts.append(count)
        assert fork == forks
        return nullcontext("workers")

    monkeypatch.setattr(workers_module, "Workers", several)
    saved = Saved([], "cpu", workers, threads, forks, print)
    with saved.open(lambda models, say: "engine") as engine:
        assert engine == ("engine" if expected == 1 else "workers")
    assert counts == ([] if expected == 1 else [expected])
