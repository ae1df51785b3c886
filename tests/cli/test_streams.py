"""Standard streams that are closed, full or left by their reader, signals while the command starts, empty options."""

from __future__ import annotations

import gzip
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import click
import pytest
from reverse_task import shell, write_reverse_task

from nmt.cli import cli

WAIT = 60.0  # seconds that no test takes
ONE_ERROR = re.compile(rb"error: [^\n]+\nhint: [^\n]+\n")

# --- encodings ----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("new_processes")
@pytest.mark.parametrize(
    "locale",
    ["PYTHONIOENCODING=latin-1", "PYTHONIOENCODING=ascii:strict", "LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0"],
)
def test_what_is_shown_is_utf8_whatever_the_locale(tmp_path: Path, locale: str) -> None:
    (tmp_path / "trees").write_text("(TOP (É (NP 中) (VP b)))\n", encoding="utf-8")
    done = shell(f"{locale} nmt score --metric brackets trees trees && {locale} nmt average --help", tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")
    assert "\nÉ   " in done.stdout.decode()
    assert "--weights W,W,…" in done.stdout.decode()


# --- closed streams -----------------------------------------------------------------------------------------


def test_a_stderr_that_takes_nothing_costs_no_run_and_gets_into_no_file(tmp_path: Path) -> None:
    write_reverse_task(tmp_path)
    line = "nmt train recipe.yaml --set training.updates=2 --set data.valid=[]"
    done = shell(f"{line} 2>&- && nmt average ckpts 2>&- && echo a | nmt translate --output out 2>&-", tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert (tmp_path / "ckpts/averaged/bundle.json").is_file()
    assert (tmp_path / "out").read_bytes().count(b"\n") == 1


@pytest.mark.usefixtures("new_processes")
def test_an_error_keeps_its_exit_code_where_nobody_can_read_it(tmp_path: Path) -> None:
    closed = shell("nmt score missing 2>&-; echo $?; nmt score --no-such-option 2>&-; echo $?", tmp_path)
    assert (closed.stdout, closed.stderr) == (b"1\n2\n", b"")


CLOSED, FULL = "stdout is closed", "No space left on device\nhint: free some space"


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("nmt translate < test.a >&-", CLOSED),
        ("nmt score --model ckpts --source test.a test.b --metric logprob >&-", CLOSED),
        ("nmt train recipe.yaml --plan >&-", CLOSED),
        ("nmt translate --quiet < test.a > /dev/full", FULL),
        ("nmt score test.b test.b > /dev/full", FULL),
        ("nmt --help > /dev/full", FULL),
    ],
)
def test_a_stdout_that_takes_nothing_is_one_error(reverse_run: Path, command: str, problem: str) -> None:
    if problem == FULL and not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    done = shell(command, reverse_run)
    assert done.returncode == 1
    assert b"Traceback" not in done.stderr
    assert ONE_ERROR.fullmatch(done.stderr if problem == FULL else done.stderr[done.stderr.index(b"error: ") :])
    assert problem in done.stderr.decode()


@pytest.mark.usefixtures("new_processes")
def test_a_closed_stdin_is_one_error(reverse_run: Path) -> None:
    for command in ("nmt translate --quiet <&-", "nmt score test.b <&-"):
        done = shell(command, reverse_run)
        assert (done.returncode, done.stdout) == (1, b"")
        assert ONE_ERROR.fullmatch(done.stderr)
        assert b"stdin is closed" in done.stderr
    done = shell("nmt translate --quiet --input test.a <&-", reverse_run)
    assert (done.returncode, done.stdout.count(b"\n")) == (0, 100)


def test_a_closed_descriptor_is_not_given_to_the_next_file(tmp_path: Path) -> None:
    code = (
        "import os, sys; from nmt.commands.process import open_standard_streams; open_standard_streams(); "
        "file = open('file', 'w'); print(file.fileno(), file=file); print('lost', file=sys.stderr); "
        "os.write(1, b'lost'); os.write(2, b'lost')"
    )
    done = shell(f"'{sys.executable}' -c \"{code}\" <&- >&- 2>&-", tmp_path)
    assert done.returncode == 0
    assert int((tmp_path / "file").read_text()) > 2


def test_an_error_of_ours_is_one_line(nmt: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmt.commands.score_texts.read_input", Mock(side_effect=RuntimeError("one\ntwo")))
    done = nmt("score", __file__)
    assert done.code == 1
    assert re.fullmatch(r"error: RuntimeError: one\\ntwo\nhint: [^\n]+\n", done.err)


# --- what breaks in the middle ------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2])
def test_an_input_that_breaks_off_is_one_error_after_the_lines(reverse_run: Path, tmp_path: Path, threads: int) -> None:
    (tmp_path / "in.gz").write_bytes(gzip.compress(b"a b c\n" * 10_000)[:-40])
    done = shell(f"nmt translate --quiet --beam 1 --threads {threads} --input '{tmp_path}/in.gz'", reverse_run)
    assert done.returncode == 1
    assert re.fullmatch(rb"error: [^\n]+/in\.gz: cannot be read to its end: [^\n]+\n(hint: [^\n]+\n)?", done.stderr)
    assert set(done.stdout.splitlines()) <= {b"c b a"}


@pytest.mark.parametrize("threads", [1, 2])
def test_a_reader_that_has_enough_ends_all_quietly(reverse_run: Path, threads: int) -> None:
    line = f"yes 'a b c' | nmt translate --quiet --beam 1 --threads {threads} | head -1; echo ${{PIPESTATUS[1]}}"
    done = shell(line, reverse_run)
    assert (done.stdout, done.stderr) == (b"c b a\n0\n", b"")


SIGNALLED = """
import os, sys

class Finder:
    def find_spec(self, name, *others):
        if name == "MODULE":
            sys.meta_path.remove(self)
            os.kill(os.getpid(), NUMBER)

sys.meta_path.insert(0, Finder())
"""


@pytest.mark.usefixtures("new_processes")
@pytest.mark.parametrize(
    ("number", "module"), [(signal.SIGINT, "click"), (signal.SIGTERM, "click"), (signal.SIGINT, "torch")]
)
def test_a_signal_while_the_command_starts_ends_it_without_a_traceback(
    reverse_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, module: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(SIGNALLED.replace("MODULE", module).replace("NUMBER", str(int(number))))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}")
    command = [sys.executable, "-m", "nmt", "translate", "--quiet"]
    process = subprocess.Popen(command, cwd=reverse_run, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        code = process.wait(WAIT)  # its input stays open
        assert process.stderr is not None
        said = process.stderr.read()
        assert code in (128 + number, -number)  # the latter before our code runs; a shell says the former
        assert said in (b"", b"interrupted\n", b"terminated\n")
    finally:
        process.kill()
        process.wait()


# --- empty options ------------------------------------------------------------------------------------------


def texts() -> Iterator[tuple[str, click.Parameter]]:
    """Every option and argument that takes more than a number or one of a few words."""
    for name, command in cli.commands.items():
        for parameter in command.params:
            flag = isinstance(parameter, click.Option) and parameter.is_flag
            if not flag and not isinstance(parameter.type, click.IntRange | click.FloatRange | click.Choice):
                yield name, parameter


@pytest.mark.parametrize(("command", "parameter"), list(texts()), ids=str)
def test_an_empty_text_is_a_usage_error_that_names_the_option(
    nmt: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, parameter: click.Parameter
) -> None:
    monkeypatch.chdir(tmp_path)
    is_option = isinstance(parameter, click.Option)
    given = [parameter.opts[0], ""] if is_option else [""]
    done = nmt(command, *([] if not is_option else ["x"] * (command not in ("translate", "parse"))), *given)
    assert done.code == 2
    name = parameter.opts[0] if is_option else parameter.make_metavar(click.Context(cli.commands[command]))
    assert f"invalid value for '{name}': must not be empty" in done.err
