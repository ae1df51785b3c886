"""Completion in shells, asked for as their scripts ask: by environment variables; and of click."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from nmt.cli import cli
from nmt.commands.process import COMPLETE


def test_a_shell_is_told_commands() -> None:
    program = Path(sys.executable).parent / "nmt"
    asked = {"_NMT_COMPLETE": "bash_complete", "COMP_WORDS": "nmt tr", "COMP_CWORD": "1"}
    done = subprocess.run([program], env={**os.environ, **asked}, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "plain,train\nplain,translate\n", "")


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["train", "rec"], ["file rec"]),
        (["translate", "--en"], ["plain --engine"]),
        (["translate", "--engine", ""], ["plain nmt", "plain ctranslate2"]),
        (["parse", "--precision", ""], ["plain auto", "plain fp32", "plain bf16", "plain fp16", "plain int8"]),
        (["train", "--device", "c"], ["plain cpu", "plain cuda"]),
        (["score", "--metric", "b"], ["plain bleu", "plain brackets"]),
        (["average", "--last", ""], ["plain auto"]),
        (["average", "--last", "3"], []),
        (["score", ""], ["file "]),
        (["score", "--baseline", ""], ["file "]),
        (["average", "ckpts"], ["file ckpts"]),
        (["parse", "--model", ""], ["file "]),
    ],
)
def test_options_choices_values_and_files_are_completed(words: list[str], found: list[str]) -> None:
    items = BashComplete(cli, {}, "nmt", COMPLETE).get_completions(words[:-1], words[-1])
    assert [f"{item.type} {item.value}" for item in items] == found
