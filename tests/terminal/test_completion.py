"""Completion in shells, asked for as their scripts ask: by environment variables, through the process `nmt`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from nmt.cli import cli
from nmt.terminal.process import COMPLETE

SHELLS = {
    "bash": lambda words: {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)},
    "zsh": lambda words: {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)},
    "fish": lambda words: {"COMP_WORDS": " ".join(words), "COMP_CWORD": words[-1]},
}


def ask(instruction: str, **variables: str) -> subprocess.CompletedProcess[str]:
    nmt = Path(sys.executable).parent / "nmt"
    environment = {**os.environ, "_NMT_COMPLETE": instruction, **variables}
    return subprocess.run([nmt], env=environment, capture_output=True, text=True, timeout=120, check=False)


def completed(shell: str, *words: str) -> set[str]:
    """What a shell is told for the last word: `kind value`, without the descriptions."""
    done = ask(f"{shell}_complete", **SHELLS[shell](["nmt", *words]))
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    if shell == "zsh":  # kind, value and description on lines of their own
        return {f"{kind} {value}" for kind, value in zip(lines[::3], lines[1::3], strict=True)}
    return {line.split("\t")[0].replace(",", " ", 1) for line in lines}


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_is_told_commands_and_files(shell: str) -> None:
    assert completed(shell, "tr") == {"plain train", "plain translate"}
    assert completed(shell, "train", "rec") == {"file rec"}


@pytest.mark.parametrize(
    ("words", "found"),
    [
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
