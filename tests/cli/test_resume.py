"""`nmt translate --resume` and `nmt parse --resume`: stopped, and the same as without it."""

from __future__ import annotations

import gzip
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from reverse_task import reseal
from tiny_parser import train_tokenizer, write_parser

from nmt import cli
from nmt.commands.resume import Statistics
from nmt.system.errors import Interrupted

SMALL = "import nmt.commands.resume as blocks; blocks.BLOCK_LINES = 10"
"""Gives the command `nmt` small blocks."""
WORDS = ["the", "dog", "sees", "a", "house"]
INPUT = ["--input", "test.a", "--output"]


@pytest.fixture
def here(reverse_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a trained model and a test set, in which blocks have 10 lines."""
    shutil.copytree(reverse_run / "ckpts/averaged", tmp_path / "ckpts")
    shutil.copy(reverse_run / "test.a", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("nmt.commands.resume.BLOCK_LINES", 10)
    monkeypatch.setattr("nmt.decoding.engine.PATIENCE", 60.0)  # a file is a fast input, however slow the machine is
    return tmp_path


@pytest.fixture
def stop_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Has a signal come after so many results."""
    add: Callable[..., int] = Statistics.add

    def stop(lines: int) -> None:
        left = iter(range(lines))

        def counted(statistics: Statistics[Any], result: Any) -> int:
            if next(left, None) is None:
                raise Interrupted("terminated", signal.SIGTERM)
            return add(statistics, result)

        monkeypatch.setattr(Statistics, "add", counted)

    return stop


def summary(told: str) -> str:
    """The last line that a command told, without its speed."""
    return re.sub(r"[\d,]+ tokens/s", "speed", told.splitlines()[-1])


@pytest.mark.parametrize(
    "options", [["--json", "--n-best", "3"], ["--prefix", "prefixes"], ["--sample", "2"], ["--devices", "2"]], ids=str
)
def test_a_search_stopped_anywhere_is_the_one_never_stopped(nmt, here: Path, stop_after, options: list[str]) -> None:
    (here / "prefixes").write_text("a\n\n" * 50)
    lines = (here / "test.a").read_text().splitlines()
    lines[3], lines[57], lines[58] = "é è", "", "ö"  # unknown characters and a blank line
    (here / "test.a").write_text("\n".join(lines) + "\n")
    plain = nmt("translate", *options, *INPUT, "plain")
    assert plain.code == 0
    assert nmt("translate", *options, *INPUT, "whole", "--resume").code == 0
    draw, stops = random.Random(str(options)), 0
    most = 1 if "--devices" in options else 100  # each time, two processes start anew
    while True:
        stop_after(draw.randint(1, 60) if stops < most else 1000)
        done = nmt("translate", *options, *INPUT, "out", "--resume")
        if not done.code:
            break
        stops += 1
        assert (done.code, done.out) == (128 + signal.SIGTERM, b"")
        assert re.search(r"\d+ of 100 lines are done; run the same command to continue\n$", done.err)
        assert not (here / "out").exists()
    assert stops > 0
    assert "--devices" in options or (here / "out").read_bytes() == (here / "whole").read_bytes()
    assert same(here / "out", here / "plain")
    assert summary(done.err) == summary(plain.err)  # complaints of lines before the last stop stand above it there
    assert not (here / "out.parts").exists()


def same(path: Path, other: Path) -> bool:
    """Whether outputs are equal up to the rounding of scores, which depends on what is in a batch."""
    first, second = path.read_text(), other.read_text()
    score = re.compile(r"-?\d+\.\d+(e-\d+)?")
    scores = [[float(found[0]) for found in score.finditer(text)] for text in (first, second)]
    return score.sub("", first) == score.sub("", second) and scores[0] == pytest.approx(scores[1], abs=2e-4)


def started(folder: Path) -> subprocess.Popen[bytes]:
    (folder / "path").mkdir(exist_ok=True)
    (folder / "path/sitecustomize.py").write_text(SMALL)
    path = f"{folder / 'path'}{os.pathsep}{os.environ['PYTHONPATH']}"
    command = [sys.executable, "-m", "nmt", "translate", "--threads", "1", *INPUT, "out", "--resume"]
    variables = {**os.environ, "PYTHONPATH": path}
    return subprocess.Popen(command, cwd=folder, env=variables, stderr=subprocess.PIPE)


def test_a_killed_command_goes_on(nmt, here: Path) -> None:
    (here / "test.a").write_text((here / "test.a").read_text() * 6)
    assert nmt("translate", *INPUT, "plain").code == 0
    with started(here) as process:
        until = time.monotonic() + 60
        while not (here / "out.parts/00000002.json").exists():
            assert time.monotonic() < until
            time.sleep(0.005)
        process.kill()
    assert not (here / "out").exists()
    with started(here) as process:
        assert process.wait(120) == 0
    assert (here / "out").read_bytes() == (here / "plain").read_bytes()


@pytest.mark.parametrize("command", ["translate", "parse"])
def test_ranks_do_not_all_search_the_whole_input(nmt, here: Path, monkeypatch, command: str) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    done = nmt(command, *INPUT, "out")
    assert done.code == 1
    assert done.err.startswith(
        "error: this is one of 2 ranks, and each would search the whole input\nhint: start one process"
    )
    monkeypatch.setenv("WORLD_SIZE", "1")
    if command == "translate":
        assert nmt("translate", *INPUT, "out").code == 0


# --- what blocks belong to ----------------------------------------------------------------------------------

CHANGES = "--prefix prefixes, --terms terms, --keep a+, --markup, --sample 2, --model other, "
CHANGES += "--beam 3, --alpha 1, --n-best 2, --json, --precision bf16, --set decoding.split=none, --input changed"
"""Options that change what is written."""
OTHERS = "--strict --output --resume --batch-tokens --devices --device --threads --quiet --debug --version"
OTHERS += " --ledger --all --to --from --memory --attention --document --pretty"
"""Those that do not, that --resume refuses, that need other models or files, and the one of `nmt parse`."""


def test_it_is_known_of_every_option_whether_it_changes_what_is_written() -> None:
    known = {*(change.split()[0] for change in CHANGES.split(", ")), *OTHERS.split()}
    for command in (cli.translate, cli.parse):
        assert {parameter.opts[0] for parameter in command.params} <= known


@pytest.mark.parametrize("change", [change.split() for change in CHANGES.split(", ")], ids=str)
def test_blocks_made_with_other_options_do_not_go_on(nmt, here: Path, stop_after, change: list[str]) -> None:
    (here / "prefixes").write_text("\n" * 100)
    (here / "terms").write_text("a\tb\n")
    shutil.copytree(here / "ckpts", here / "other")
    recipe = here / "other/recipe.yaml"
    recipe.write_text(recipe.read_text() + "\n")
    reseal(here / "other")
    (here / "changed").write_text((here / "test.a").read_text() + "a b\n")
    stop_after(25)
    assert nmt("translate", *INPUT, "out", "--resume").code == 143
    done = nmt("translate", *INPUT, "out", "--resume", *change)
    assert done.code == 1
    assert "error: out.parts: holds blocks made with other settings or files: " in done.err
    option = change[1].split("=")[0] if change[0] == "--set" else change[0]
    assert option.removeprefix("--") in done.err
    stop_after(1000)
    assert nmt("translate", *INPUT, "out", "--resume", "--batch-tokens", "100", "--threads", "1").code == 0
    if change[0] in ("--beam", "--model", "--terms"):
        again = [nmt("translate", *INPUT, "out", "--resume", *change).err for _ in range(2)]
        assert "out: was made with other settings or files, so it is made again: " in again[0]
        assert again[1].endswith("out: already up to date; remove it to translate again\n")
        assert nmt("translate", *INPUT, "out").code == 0
        assert "out: there is no record" in nmt("translate", *INPUT, "out", "--resume").err


def test_strict_counts_the_lines_that_earlier_runs_searched(nmt, here: Path, stop_after) -> None:
    lines = (here / "test.a").read_text().splitlines()
    lines[7] += " é"
    (here / "test.a").write_text("\n".join(lines))
    stop_after(35)
    assert nmt("translate", "--strict", *INPUT, "out", "--resume").code == 143
    stop_after(1000)
    done = nmt("translate", "--strict", *INPUT, "out", "--resume")
    assert done.code == 1
    assert "unknown characters 1 (first in line 8)" in done.err
    assert (here / "out").read_bytes().count(b"\n") == 100


def test_trees_are_drawn_block_by_block_into_a_compressed_file(
    nmt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_after
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("nmt.commands.resume.BLOCK_LINES", 4)
    write_parser(tmp_path / "ckpts", train_tokenizer())
    lines = "".join(f"{' '.join(WORDS[:length])}\n" for length in (1, 2, 3, 2, 1, 3, 2, 1, 1))
    (tmp_path / "in.gz").write_bytes(gzip.compress(lines.encode()))
    arguments = ("parse", "--pretty", "--input", "in.gz", "--output")
    assert nmt(*arguments, "plain.gz").code == 0
    stop_after(6)
    assert nmt(*arguments, "out.gz", "--resume").code == 143
    assert sorted(path.name for path in (tmp_path / "out.gz.parts").glob("*.txt")) == ["00000000.txt"]
    stop_after(100)
    assert nmt(*arguments, "out.gz", "--resume").code == 0
    assert (tmp_path / "out.gz").read_bytes() == (tmp_path / "plain.gz").read_bytes()
