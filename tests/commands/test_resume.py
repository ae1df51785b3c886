"""An output made in blocks: stops, damage, other processes, and blocks that belong to something else."""

from __future__ import annotations

import gzip
import os
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from nmt.commands.resume import Blocks, Counts, Job, Statistics, folder_of, open_blocks, record_of
from nmt.decoding.translator import Translation, Translator
from nmt.formats.terms import Phrase
from nmt.system.errors import UserError

LINES = 47
TEXT = b"".join(b"LINE %d\n" % number for number in range(1, LINES + 1))


class Stopped(Exception):
    """Stands for a kill."""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setattr("nmt.commands.resume.BLOCK_LINES", 10)
    source = tmp_path / "in"
    source.write_bytes(TEXT.lower())
    return Job(tmp_path / "out", {"--input": source}, {"decoding.beam": 4, "--model": ["hash"]})


def count(job: Job) -> int:
    return len(job.inputs["--input"].read_bytes().splitlines())


def opened(job: Job) -> AbstractContextManager[Blocks | None]:
    return open_blocks(job, lambda: count(job), print)


def fill(blocks: Blocks, source: Path, numbers: list[int], lines: Iterator[object]) -> None:
    """Makes blocks until `lines` ends, which is a kill."""
    for number in numbers:
        before, size = blocks.span(number)
        counts = Counts(warnings={"odd": (1, before + 1)})
        with blocks.writing(number, counts) as write:
            for line in source.read_text().splitlines()[before : before + size]:
                if next(lines, None) is None:
                    raise Stopped
                write(line.upper())
                counts.lines, counts.tokens = counts.lines + 1, counts.tokens + 2


def make(job: Job, most: int = 10**6) -> tuple[list[int], Counts, list[str]]:
    """Makes the output, or is killed after so many lines: the blocks made, what was counted, what was said."""
    said: list[str] = []
    made: list[int] = []
    with opened(job) as blocks:
        assert blocks is not None
        numbers = blocks.missing() or blocks.join(said.append)
        while numbers:
            fill(blocks, job.inputs["--input"], numbers, iter(range(most)))
            made += numbers
            numbers = blocks.join(said.append)
        return made, blocks.total, said


def stop(job: Job, lines: int = 35) -> None:
    """Makes the output, and is killed after so many lines."""
    with pytest.raises(Stopped):
        make(job, lines)


@pytest.mark.parametrize(("name", "seed"), [("out", 0), ("out.gz", 1)])
def test_an_output_stopped_anywhere_is_the_one_never_stopped(job: Job, name: str, seed: int) -> None:
    job = replace(job, output=job.output.with_name(name))
    draw, stops = random.Random(seed), 0
    while True:
        try:
            _, total, _ = make(job, draw.randint(1, 25))
            break
        except Stopped:
            stops += 1
            assert not job.output.exists()
            assert stops < 1000
    content = job.output.read_bytes()
    assert (gzip.decompress(content) if name.endswith(".gz") else content) == TEXT
    assert total == Counts(LINES, 2 * LINES, {"odd": (5, 1)})
    assert {path.name for path in job.output.parent.iterdir()} == {name, f".{name}.job", "in"}


@pytest.mark.parametrize(
    ("name", "damage", "again"),
    [
        ("00000001.txt", Path.unlink, [3, 4, 1]),
        ("00000001.txt", lambda path: path.write_bytes(b"x" * path.stat().st_size), [3, 4, 1]),
        ("00000001.json", lambda path: path.write_text(path.read_text().replace('"tokens": 20', '"tokens": 21')), None),
        ("00000001.json", lambda path: path.write_text('{"text": "", "lines": 10, "warnings": {"odd": 1}}'), None),
    ],
)
def test_a_damaged_block_is_made_again(job: Job, name: str, damage, again: list[int] | None) -> None:
    stop(job)
    damage(folder_of(job.output) / name)
    made, total, said = make(job)
    assert (made, job.output.read_bytes()) == (again or [1, 3, 4], TEXT)
    assert total.lines == LINES
    assert [line.split(": ")[1] for line in said] == ["damaged; these lines are searched again"] * bool(again)


def test_an_output_that_is_there_with_its_blocks_is_joined_again(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("nmt.commands.resume.remove_directory", Mock(side_effect=Stopped))
        stop(job, 100)
    assert job.output.read_bytes() == TEXT
    assert make(job)[0] == []
    assert not folder_of(job.output).exists()


def test_a_second_command_is_refused(job: Job) -> None:
    stop(job, 15)
    with opened(job) as blocks:
        assert blocks
        with pytest.raises(UserError, match=r"out: another nmt is writing there"):
            make(job)
    assert make(job)[0] == [1, 2, 3, 4]


def test_an_output_of_the_same_job_is_left_alone_whatever_the_times_of_its_files(job: Job) -> None:
    make(job)
    later = job.output.stat().st_mtime_ns + 10**9
    os.utime(job.inputs["--input"], ns=(later, later))
    with opened(job) as blocks:
        assert blocks is None


@pytest.mark.parametrize("of_same_size_and_time", [False, True])
def test_an_output_of_other_settings_or_files_is_made_again(job: Job, of_same_size_and_time: bool) -> None:
    make(job)
    source = job.inputs["--input"]
    other = source.with_name("other")
    other.write_bytes(source.read_bytes().replace(b"7", b"8" if of_same_size_and_time else b"88"))
    stamp = source.stat().st_mtime_ns
    os.utime(other, ns=(stamp, stamp))
    for changed, difference in (
        (replace(job, inputs={"--input": other}), "--input"),
        (replace(job, settings={**job.settings, "decoding.beam": 1}), "--input, decoding.beam (4 there, 1 here)"),
        (job, "decoding.beam (1 there, 4 here)"),
    ):
        said: list[str] = []
        with open_blocks(changed, lambda: LINES, said.append) as blocks:
            assert blocks
            fill(blocks, changed.inputs["--input"], blocks.missing(), iter(range(100)))
            assert not blocks.join(said.append)
        assert sorted(said[0].rpartition(": ")[2].split(", ")) == sorted(difference.split(", "))
    assert job.output.read_bytes() == TEXT


def test_an_output_without_a_record_is_made_again_and_one_that_was_edited_is_kept(job: Job) -> None:
    make(job)
    record = record_of(job.output)
    known = record.read_text()
    job.output.write_bytes(TEXT + b"edited\n")
    for each in (job, replace(job, settings={})):
        with pytest.raises(UserError, match=r"out: has changed since it was made\n"):
            make(each)
    assert job.output.read_bytes() == TEXT + b"edited\n"
    for content in (known.replace("4", "5"), None):
        record.write_text(content) if content else record.unlink()
        assert make(job)[0] == [0, 1, 2, 3, 4]
        assert job.output.read_bytes() == TEXT


@pytest.mark.parametrize(
    ("settings", "line_7", "differences"),
    [
        ({"decoding.beam": 5, "--model": ["hash"]}, b"line 7", "decoding.beam (4 there, 5 here)"),
        ({"decoding.beam": 4, "--model": ["hash"], "--new": 1}, b"line 7", "--new (None there, 1 here)"),
        ({"--model": ["hash", "other"]}, b"line 7", "decoding.beam (4 there, None here), --model"),
        ({"decoding.beam": 4, "--model": ["hash"]}, b"line x", "--input"),
    ],
)
def test_blocks_of_another_job_are_kept_and_the_difference_is_named(job: Job, settings, line_7, differences) -> None:
    stop(job)
    source = job.inputs["--input"]
    before, later = source.read_bytes(), source.stat().st_mtime_ns + 10**9  # clocks of kernels tick every 4 to 10 ms
    source.write_bytes(before.replace(b"line 7", line_7))
    os.utime(source, ns=(later, later))
    with pytest.raises(UserError) as error:
        make(replace(job, settings=settings))
    assert error.value.message.endswith(f"out.parts: holds blocks made with other settings or files: {differences}")
    source.write_bytes(before)
    assert make(job)[0] == [3, 4]


def test_an_input_that_changes_meanwhile_is_an_error(job: Job) -> None:
    source = job.inputs["--input"]

    def fill_after_a_change() -> None:
        with opened(job) as blocks:
            assert blocks
            source.write_bytes(source.read_bytes() + b"more\n")
            fill(blocks, source, blocks.missing(), iter(range(100)))

    with pytest.raises(UserError, match="in: has changed while it was read"):
        fill_after_a_change()
    assert not folder_of(job.output).exists()


@pytest.mark.parametrize("content", ["{", '{"format": 2, "hashes": {}}', None])
def test_a_damaged_plan_is_an_error(job: Job, content: str | None) -> None:
    stop(job)
    plan = folder_of(job.output) / "blocks.json"
    plan.write_text(plan.read_text().replace('"lines": 47', '"lines": 40') if content is None else content)
    with pytest.raises(UserError, match=r"blocks\.json: damaged, or written by another version"):
        make(job)
    assert (folder_of(job.output) / "00000002.txt").exists()


def test_a_folder_of_other_files_is_left_alone(job: Job) -> None:
    folder = folder_of(job.output)
    folder.mkdir()
    (folder / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match=r"holds thesis\.txt, but no blocks of this output"):
        make(job)
    assert (folder / "thesis.txt").read_text() == "mine"


def test_blocks_keep_the_size_they_were_begun_with(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    stop(job)
    monkeypatch.setattr("nmt.commands.resume.BLOCK_LINES", 7)
    assert make(job)[0] == [3, 4]
    assert job.output.read_bytes() == TEXT


# --- what is counted of a search ----------------------------------------------------------------------------

FOUND: dict[str, Any] = {
    "texts": ["fox"],
    "scores": [-0.125],
    "ids": [[1]],
    "alignments": [[0]],
    "parts": 1,
    "loop": "",
}
FOUND |= {"log_probabilities": [[-0.5]], "source": [7], "pairs": [([7], [1])], "capped": False, "unknown": 0}
FOUND |= {"unusual_length": False}
FOUND |= {"missing": [], "lost": [], "invented": [], "deleted": [], "left": []}
PLAIN = Translation(**FOUND)
BLANK = replace(PLAIN, texts=[""], parts=0)


def test_statistics_know_where_each_problem_was_first(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 10.0
    monkeypatch.setattr("nmt.commands.resume.time.monotonic", lambda: now)
    statistics = Statistics("searching", Translator.warnings)
    assert list(statistics.timed(iter(["a line"]))) == ["a line"]
    now = 12.0
    split, capped, odd = replace(PLAIN, parts=3), replace(PLAIN, capped=True, parts=2), replace(PLAIN, unknown=5)
    empty = replace(PLAIN, texts=[" "], unusual_length=True, missing=[Phrase("fox", ("Fuchs", "Füchsin"), 0)])
    assert empty.complaints == ["missing: fox → Fuchs | Füchsin", "unusual length"]
    changed = replace(PLAIN, lost=["i386", "3"], invented=["i368"], loop="la")
    assert changed.complaints == ["lost: i386, 3; invented: i368; loop: la"]
    for translation in [PLAIN, BLANK, split, capped, odd, odd, empty, changed]:
        statistics.add(translation)
        statistics.searched(1000)
    assert statistics.summary(typed=False) == (
        "8 sentences, 4,000 tokens/s; caps hit 1, inputs split 2, unknown characters 10, empty outputs 1, "
        "unusual lengths 1, missing terms 1, numbers changed 1, loops 1"
    )
    assert Statistics("searching", Translator.warnings).summary(typed=False) == "0 sentences, 0 tokens/s"
    with pytest.raises(UserError) as error:
        statistics.check()
    assert error.value.message == (
        "--strict: caps hit 1 (first in line 4), inputs split 2 (first in line 3), "
        "unknown characters 10 (first in line 5), empty outputs 1 (first in line 7), "
        "unusual lengths 1 (first in line 7), missing terms 1 (first in line 7), "
        "numbers changed 1 (first in line 8), loops 1 (first in line 8)"
    )
    with pytest.raises(UserError, match=r"numbers changed 1 \(first in line 8\), loops 1 \(first in a.po, line 3\)"):
        statistics.check({"loops": "a.po, line 3"})
