"""A command as a process: signals while it ends, completion in shells, and what is said to somebody who types."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from nmt.cli import cli
from nmt.commands.process import COMPLETE, ending_of

PROGRAM = """
import os, sys
import click
from nmt.system.errors import UserError
from nmt.commands import process

class Failing(click.Group):
    def invoke(self, context):
        raise UserError("it failed", "mend it")

def signalled(error, ending_of=process.ending_of):
    os.kill(os.getpid(), int(sys.argv.pop()))
    return ending_of(error)

process.ending_of = signalled
process.run(Failing(invoke_without_command=True))
"""


@pytest.mark.parametrize(("number", "rank"), [(signal.SIGTERM, True), (signal.SIGTERM, False), (signal.SIGINT, False)])
def test_a_signal_to_a_command_that_is_ending_is_no_traceback(number: int, rank: bool) -> None:
    environment = {**os.environ, "RANK": "1" if rank else ""}
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(int(number))], env=environment, capture_output=True)
    said = b"error: it failed\nhint: mend it\n"
    assert (done.returncode, done.stderr) == ((1, said) if rank else (-number, b""))  # it is its launcher's


def test_a_hangup_that_is_ignored_stays_ignored(nmt, monkeypatch) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # what nohup does
    try:
        assert re.fullmatch(rb"nmt [\d.]+\n", nmt("--version").out)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_errors_of_libraries_about_names_and_temporary_files_are_no_bugs(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: "ascii")
    with pytest.raises(UnicodeEncodeError) as name:
        "Größe".encode("ascii")
    assert ending_of(name.value).message == "Größe: this name has characters that the locale, of ascii, cannot write"
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "missing")])
    with pytest.raises(FileNotFoundError) as missing:
        tempfile.gettempdir()
    assert "TMPDIR" in ending_of(missing.value).hint


# --- completion in shells -----------------------------------------------------------------------------------


def test_a_shell_is_told_commands() -> None:
    program = Path(sys.executable).parent / "nmt"
    asked = {"_NMT_COMPLETE": "bash_complete", "COMP_WORDS": "nmt tr", "COMP_CWORD": "1"}
    done = subprocess.run([program], env={**os.environ, **asked}, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "plain,train\nplain,translate\n", "")


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["train", "rec"], ["file rec"]),
        (["translate", "--devi"], ["plain --device", "plain --devices"]),
        (["average", "--quantization", "i"], ["plain int8"]),
        (["parse", "--precision", ""], ["plain auto", "plain fp32", "plain bf16", "plain fp16", "plain int8"]),
        (["train", "--device", "c"], ["plain cpu", "plain cuda"]),
        (["score", "--metric", "b"], ["plain bleu", "plain brackets"]),
        (["score", ""], ["file "]),
        (["score", "--baseline", ""], ["file "]),
        (["average", "ckpts"], ["file ckpts"]),
        (["parse", "--model", ""], ["file "]),
    ],
)
def test_options_choices_values_and_files_are_completed(
    words: list[str], found: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "recipes").mkdir()
    monkeypatch.chdir(tmp_path)
    items = BashComplete(cli, {}, "nmt", COMPLETE).get_completions(words[:-1], words[-1])
    assert [f"{item.type} {item.value}" for item in items] == found


# --- at a terminal -------------------------------------------------------------------------------------------


def test_translate_says_what_it_waits_for_and_answers_each_line(reverse_run: Path) -> None:
    terminal, end = pty.openpty()
    environment, command = {**os.environ, "TERM": "xterm-256color", "CI": ""}, ["-m", "nmt", "translate", "--beam", "1"]
    streams = {"stdin": end, "stdout": end, "stderr": end}
    process = subprocess.Popen([sys.executable, *command], cwd=reverse_run, env=environment, **streams)
    os.close(end)
    shown, waits = b"", b"reading from the terminal: one sentence per line, Ctrl-D to end\r\n"
    lines = [(b"", waits), (b"a b c\n", b"c b a\r\n"), (b"j i h\n", b"h i j\r\n")]
    try:
        for typed, wanted in [*lines, (b"\x04", b"2 sentences\r\n")]:  # and no speed: it would be that of typing
            os.write(terminal, typed)
            while wanted not in shown:
                shown += os.read(terminal, 4096)  # fails once the command has ended
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
    assert b"\x1b" not in shown  # no progress line between what is typed and what is answered
