"""Every command that reads a damaged file says which one, in one error and one hint, and does nothing else."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from reverse_task import sets
from tiny_parser import train_tokenizer, write_parser

BUNDLE = ("bundle.json", "model.safetensors", "recipe.yaml", "tokenizer.model")
CHECKPOINT = (*BUNDLE, "training.json", "training.safetensors")
DATA = ("fingerprint.json", "report.json", "tokenizer.model", "train.arrow", "valid.arrow")
AVERAGED, NEWEST, PREPARED, PARSER = "ckpts/averaged", "ckpts/step-00000800", "data/reverse", "parser"

TRAIN = ("train", "recipe.yaml", "--device", "cpu", "--set")
NEW = "training.updates=1", "data.name=new"
READERS: dict[str, tuple[tuple[str, ...], str, tuple[str, ...]]] = {
    "translate": (("translate", "--model", AVERAGED), AVERAGED, BUNDLE),
    "score": (("score", "test.b", "--source", "test.a", "--model", AVERAGED), AVERAGED, BUNDLE),
    "convert": (("translate", "--model", AVERAGED, "--engine", "ctranslate2"), AVERAGED, BUNDLE),
    "runs": (("score", "--runs", AVERAGED), AVERAGED, ("bundle.json",)),
    "start": ((*TRAIN, f"training.init_from={AVERAGED}", *sets(*NEW), "--out", "new"), AVERAGED, BUNDLE),
    "average": (("average", "ckpts"), NEWEST, BUNDLE),
    "resume": ((*TRAIN, "training.updates=801"), NEWEST, CHECKPOINT),
    "train": ((*TRAIN, "training.updates=1", "--out", "new"), PREPARED, DATA),
    "preprocess": (("preprocess", "recipe.yaml"), PREPARED, DATA),
    "auto": (("average", "ckpts", "--last", "auto", "--device", "cpu"), PREPARED, ("fingerprint.json", "valid.arrow")),
    "parse": (("parse", "--model", PARSER), PARSER, ("source.model", "tree.json")),
}
"""By name: a command, the directory in which a file is damaged, and the files there that the command reads."""

TABLE = [pytest.param(*READERS[name][:2], file, id=f"{name}-{file}") for name in READERS for file in READERS[name][2]]


@pytest.fixture(scope="module")
def original(reverse_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one checkpoint, its average and its data; and a parser."""
    folder = tmp_path_factory.mktemp("damage")
    for name in ("recipe.yaml", "train.a", "train.b", "valid.a", "valid.b", "test.a", "test.b"):
        shutil.copy2(reverse_run / name, folder / name)
    for name in (AVERAGED, NEWEST, PREPARED):
        shutil.copytree(reverse_run / name, folder / name)
    write_parser(folder / PARSER, train_tokenizer())
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it as the working directory."""
    shutil.copytree(original, tmp_path, dirs_exist_ok=True, copy_function=os.link)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def patience() -> Iterator[None]:
    """Ends a test that waits for a pipe in vain."""

    def waited(number: int, frame: object) -> None:
        raise TimeoutError("it waits")

    before = signal.signal(signal.SIGALRM, waited)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def assert_refused(done: Any, path: str, problem: str) -> None:
    """The command failed with one error that names a file and says what is wrong with it, and one hint."""
    assert (done.code, done.out) == (1, b""), done.err
    errors = [line for line in done.err.splitlines() if line.startswith("error: ")]
    hints = [line for line in done.err.splitlines() if line.startswith("hint: ")]
    assert (len(errors), len(hints)) == (1, 1), done.err
    assert errors[0].startswith(f"error: {path}: "), done.err
    assert problem in errors[0]


def files(folder: Path) -> dict[str, bytes]:
    """All regular files but locks, by name."""
    return {
        str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and not path.name.endswith("lock")
    }


@pytest.mark.parametrize(("command", "where", "name"), TABLE)
def test_one_flipped_byte_is_named(
    nmt: Callable[..., Any], folder: Path, command: tuple[str, ...], where: str, name: str
) -> None:
    if "ctranslate2" in command:
        pytest.importorskip("ctranslate2")
    path = folder / where / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.unlink()  # a link to the original
    path.write_bytes(content)
    before = files(folder)
    assert_refused(nmt(*command, stdin=b"a b c\n"), f"{where}/{name}", "damaged")
    assert files(folder).items() >= before.items()


@pytest.mark.parametrize(("command", "where", "name"), TABLE)
def test_a_pipe_in_place_of_a_file_is_named_and_not_waited_for(
    nmt: Callable[..., Any], folder: Path, patience: None, command: tuple[str, ...], where: str, name: str
) -> None:
    if "ctranslate2" in command:
        pytest.importorskip("ctranslate2")
    (folder / where / name).unlink()
    os.mkfifo(folder / where / name)
    assert_refused(nmt(*command, stdin=b"a b c\n"), f"{where}/{name}", "is not a regular file")
