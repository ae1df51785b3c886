"""Every command that reads a damaged file says which one, in one error and one hint, and does nothing else."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from reverse_task import reseal, sets
from safetensors.torch import load_file, save_file
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
    "convert": (("average", AVERAGED, "--format", "ctranslate2", "--out", "exported"), AVERAGED, BUNDLE),
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


def assert_refused(done: Any, path: str, problem: str) -> None:
    """The command failed with one error that names a file and says what is wrong with it, and one hint."""
    assert (done.code, done.out) == (1, b""), done.err
    errors = [line for line in done.err.splitlines() if line.startswith("error: ")]
    hints = [line for line in done.err.splitlines() if line.startswith("hint: ")]
    assert (len(errors), len(hints)) == (1, 1), done.err
    # A run whose only checkpoint is damaged says that none is whole before it names the file.
    where = errors[0].removeprefix("error: ").removeprefix("ckpts: all checkpoints are damaged; the newest: ")
    assert where.startswith(f"{path}: "), done.err
    assert problem in errors[0]


def files(folder: Path) -> dict[str, bytes]:
    """All regular files but locks, by name."""
    return {
        str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and not path.name.endswith("lock")
    }


@pytest.mark.parametrize("problem", ["damaged", "is not a regular file"])
@pytest.mark.parametrize(("command", "where", "name"), TABLE)
def test_a_flipped_byte_or_a_pipe_is_named_and_not_waited_for(
    nmt: Callable[..., Any], folder: Path, command: tuple[str, ...], where: str, name: str, problem: str
) -> None:
    if "ctranslate2" in command:
        pytest.importorskip("ctranslate2")
    path = folder / where / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.unlink()  # a link to the original
    if problem == "damaged":
        path.write_bytes(content)
    else:
        os.mkfifo(path)
    before = files(folder)
    assert_refused(nmt(*command, stdin=b"a b c\n"), f"{where}/{name}", problem)
    assert files(folder).items() >= before.items()


NOT_WEIGHTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "bool": torch.Tensor.bool,
    "int8": lambda tensor: tensor.to(torch.int8),
    "uint64": lambda tensor: tensor.to(torch.uint64),
    "nan": lambda tensor: tensor.index_fill(0, torch.tensor([0]), float("nan")),
    "inf": lambda tensor: tensor.index_fill(0, torch.tensor([1]), float("inf")),
    "beyond fp32": lambda tensor: tensor.double() * 1e300,
}


def replace_tensor(path: Path, name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Changes one tensor of a file, which its manifest then takes for undamaged."""
    tensors = {key: tensor.clone() for key, tensor in load_file(path).items()}
    assert name in tensors
    path.unlink()
    save_file(tensors | {name: change(tensors[name]).contiguous()}, path)
    manifest = path.with_name("bundle.json")
    copy = manifest.read_bytes()
    manifest.unlink()
    manifest.write_bytes(copy)
    reseal(path.parent)


@pytest.mark.parametrize(  # by PyTorch, by NumPy, and once for each further user of the former
    ("reader", "change"),
    [*product(("translate", "convert"), NOT_WEIGHTS), *product(("score", "start", "average", "resume"), ["nan"])],
)
def test_weights_that_are_none_are_named(nmt: Callable[..., Any], folder: Path, reader: str, change: str) -> None:
    command, where, _ = READERS[reader]
    if "ctranslate2" in command:
        pytest.importorskip("ctranslate2")
    replace_tensor(folder / where / "model.safetensors", "decoder.0.feed_forward.inner.weight", NOT_WEIGHTS[change])
    problem = "tensor decoder.0.feed_forward.inner.weight: holds "
    assert_refused(nmt(*command, stdin=b"a b c\n"), f"{where}/model.safetensors", problem)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (torch.Tensor.half, "holds numbers of type float16, not float32"),
        (torch.Tensor.double, "holds numbers of type float64, not float32"),
        (NOT_WEIGHTS["nan"], "holds values that are infinite or not a number"),
    ],
)
def test_moments_that_the_optimizer_did_not_write_are_named(
    nmt: Callable[..., Any], folder: Path, change: Callable[[torch.Tensor], torch.Tensor], problem: str
) -> None:
    name = "decoder.0.feed_forward.inner.bias:exp_avg_sq"
    replace_tensor(folder / NEWEST / "training.safetensors", name, change)
    assert_refused(nmt(*READERS["resume"][0]), f"{NEWEST}/training.safetensors", f"tensor {name}: {problem}")
