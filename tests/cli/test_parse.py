"""`nmt parse` as users meet it, with a parser that nobody trained."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from tiny_parser import train_tokenizer, write_parser

from nmt.checkpoint.writing import add_info
from nmt.parsing.linearization import escape
from nmt.parsing.tree import Tree, read_tree_lines

HOSTILE = ["The cat sleeps .", "", ".", "  \t", "( a(b) ) )NP (S XX", "😀 a\u00a0b c\u2028d e\u3000f g\x85"]
HOSTILE += ["\x00 \x1b[31m \x1c", "the\tdog  sees\r", "x" * 5_000]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two parsers with one tokenizer, `ckpts` and `other`; its tests must not change it."""
    folder, tokenizer = tmp_path_factory.mktemp("parser"), train_tokenizer()
    write_parser(folder / "ckpts", tokenizer, seed=3)
    write_parser(folder / "other", tokenizer, seed=4)
    return folder


@pytest.fixture
def parse(nmt, folder: Path):
    """Runs `nmt parse` with the first of them."""
    return lambda *arguments, stdin=b"": nmt("parse", "--model", folder / "ckpts", *arguments, stdin=stdin)


def trees(out: bytes) -> list[Tree | None]:
    return list(read_tree_lines(out.decode().split("\n")[:-1]))


def test_as_many_trees_come_out_as_lines_went_in(parse) -> None:
    text = ("\ufeff" + "".join(line + "\n" for line in HOSTILE)).encode() + b"a \xff\xfe b\r\nlast without end"
    done = parse(stdin=text)
    assert done.code == 0, done.err
    words = [[escape(word.decode()) for word in line.encode().split()] for line in HOSTILE]
    words += [["a", "\ufffd\ufffd", "b"], ["last", "without", "end"]]
    assert [tree.leaves() if tree else [] for tree in trees(done.out)] == words
    assert done.out.startswith(b"(TOP ")
    assert re.search(
        r"^11 sentences, [\d,]+ tokens/s; (inputs split \d, )?words cut 1, unknown characters \d+\n\Z",
        done.err,
        re.M,
    )
    for line, tree in zip(HOSTILE, done.out.splitlines(keepends=True), strict=False):
        assert parse(stdin=line.encode() + b"\n").out == tree


def test_pretty_draws_each_tree_and_an_empty_line_after_it(parse) -> None:
    text = b"the dog sees\n\na cat\n"
    first, blank, second = trees(parse("--quiet", stdin=text).out)
    assert blank is None
    assert first is not None
    assert second is not None
    done = parse("--pretty", "--quiet", stdin=text)
    assert done.out.decode() == f"{first.pretty()}\n\n\n{second.pretty()}\n\n"


def test_an_ensemble_is_not_each_of_its_models(nmt, folder: Path) -> None:
    text = b"the dog sees a house\nshe likes a tree .\n"

    def found(*models: str) -> bytes:
        arguments = [part for model in models for part in ("--model", folder / model)]
        return nmt("parse", *arguments, "--n-best", 1, "--quiet", stdin=text).out

    assert found("ckpts") == found("ckpts", "ckpts")
    assert len({found("ckpts"), found("other"), found("ckpts", "other")}) == 3


# --- what a model is for ------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["parse", "translate"])
def test_a_bundle_that_holds_what_its_task_does_not_want_is_named(nmt, folder: Path, tmp_path: Path, command) -> None:
    shutil.copytree(folder / "ckpts", tmp_path, dirs_exist_ok=True)
    if command == "parse":
        (tmp_path / "tree.json").rename(tmp_path / "target.model")
    else:
        add_info(tmp_path, {"task": "translate"})
    done = nmt(command, "--model", tmp_path, stdin=b"the dog\n")
    what, has = ("a parser", "lacks") if command == "parse" else ("a translator", "holds")
    assert (done.code, done.out) == (1, b"")
    assert f"its bundle.json says that it is {what}, but it {has} tree.json\nhint: " in done.err
