"""Fixtures shared by the whole suite: the command in-process, and one small trained run."""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from reverse_task import BARE, sets, shell, write_reverse_task

from nmt import cli

os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])  # commands run the tree that these tests stand in
torch.set_num_threads(1)  # on tensors as tiny as those of tests, threads cost more than they save


@dataclass(frozen=True)
class Result:
    """What a command left behind."""

    code: int
    out: bytes
    err: str


@pytest.fixture
def nmt(monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Callable[..., Result]:
    """Runs the command line in this process: `nmt("score", "ref", "hyp", stdin=b"...")`."""

    # Translating by forks is for a process of its own: this one has threads, which a fork would lack.
    monkeypatch.setattr("nmt.decoding.composition.cores", lambda: 1)

    def run(*argv: object, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "argv", ["nmt", *map(str, argv)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capfdbinary.readouterr()
        with pytest.raises(SystemExit) as exit_info:
            cli.main()
        captured = capfdbinary.readouterr()
        return Result(exit_info.value.code, captured.out, captured.err.decode())

    return run


@pytest.fixture(scope="session")
def prepared_task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reverse task with its data prepared; its tests must not change it."""
    folder = tmp_path_factory.mktemp("prepared")
    write_reverse_task(folder)
    bare = " ".join(f"'{part}'" for part in sets(*BARE))
    done = shell(f"nmt preprocess recipe.yaml && nmt preprocess recipe.yaml {bare}", folder)
    assert done.returncode == 0, done.stderr.decode()
    return folder


@pytest.fixture
def task(prepared_task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the reverse task, data prepared, as the working directory."""
    shutil.copytree(prepared_task, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def reverse_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which `nmt train recipe.yaml` and `nmt average ckpts` were typed; its tests must not change it."""
    folder = tmp_path_factory.mktemp("reverse")
    write_reverse_task(folder)
    done = shell("nmt train recipe.yaml && nmt average ckpts", folder)
    assert done.returncode == 0, done.stderr.decode()
    (folder / "train.log").write_bytes(done.stderr)
    return folder
