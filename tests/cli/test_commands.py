"""What all commands have in common: help, exit codes, error lines, and the users' lines one after the other."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from recipe_files import RECIPES
from reverse_task import shell, write_reverse_task


@pytest.mark.usefixtures("new_processes")
def test_the_users_lines_work_verbatim_in_an_empty_directory(tmp_path: Path) -> None:
    """In new processes: a forked one would not miss a module that nobody imported."""
    write_reverse_task(tmp_path)
    shutil.copytree(RECIPES, tmp_path / "recipes")
    for side, name in (("a", "en"), ("b", "de")):
        for split in ("train", "valid", "test"):
            (tmp_path / f"{split}.{side}").rename(tmp_path / f"{split}.{name}")
    redirected = " ".join(
        f"--set '{setting}'"
        for setting in (
            f"data.root={tmp_path}",
            "data.train=[{source: train.en, target: train.de}]",
            "data.valid=[{source: valid.en, target: valid.de}]",
            "data.test=[{source: test.en, target: test.de}]",
            "tokenizer.vocab_size=280",
            "model={layers: 1, d_model: 16, d_ff: 16, heads: 2}",
            "training={updates: 6, batch_tokens: 1000, checkpoint_updates: 2, report: false}",
        )
    )
    for line in (
        f"nmt train recipes/wmt14_en_de.yaml {redirected}",
        "nmt average ckpts/ --last 5",
        "cat test.en | nmt translate --beam 4 | tee output.txt | nmt score test.de",
    ):
        done = shell(line, tmp_path)
        assert done.returncode == 0, (line, done.stderr.decode())
    assert b"BLEU" in done.stdout
    assert (tmp_path / "output.txt").read_bytes().count(b"\n") == 100
    assert json.loads((tmp_path / "ckpts/averaged/bundle.json").read_text())["steps"] == [2, 4, 6]


def test_help_loads_no_torch() -> None:
    code = "import sys; from nmt.cli import cli\nfor a in sys.argv[1:]: cli.main(a.split(), standalone_mode=False)\n"
    code += "heavy = {'torch', 'numpy', 'yaml', 'sentencepiece', 'rich', 'pydantic'} & set(sys.modules)\n"
    code += "assert not heavy, heavy"
    lines = ["--help", "translate --help"]
    done = subprocess.run([sys.executable, "-c", code, *lines], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    for command in (b"preprocess", b"train", b"average", b"translate", b"score", b"parse"):
        assert command in done.stdout


def test_a_hangup_that_is_ignored_stays_ignored(nmt, monkeypatch) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # what nohup does
    try:
        assert re.fullmatch(rb"nmt [\d.]+\n", nmt("--version").out)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
