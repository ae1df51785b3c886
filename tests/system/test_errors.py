"""Errors are a line each, and what they quote of files cannot steer the terminal."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from nmt.checkpoint.writing import add_info
from nmt.system.errors import printable

STEERING = "\x1b[2J\x07\r\x7f\x9b31m\u2028\u202e\u2066\u200f\n\x00"


@pytest.mark.parametrize("character", [*map(chr, (*range(0x20), *range(0x7F, 0xA0))), *STEERING[-6:]])
def test_control_characters_are_escaped(character: str) -> None:
    shown = printable(f"a{character}b")
    assert shown.isprintable()
    assert shown.startswith("a\\")
    assert shown.encode().decode("unicode_escape") == f"a{character}b"


@pytest.mark.parametrize(
    "content",
    ['"\\e[2J\\u202e": 1\n', 'name: "\\e[2J\\n\\u2028"\n', 'model: {"la\\e]0;x\\ayers": 3}\n', "name: \x1b[2J\n"],
    ids=["section", "value", "key", "yaml"],
)
def test_a_recipe_cannot_steer_the_terminal(nmt, tmp_path: Path, content: str) -> None:
    (tmp_path / "recipe.yaml").write_text(content)
    err = nmt("preprocess", tmp_path / "recipe.yaml").err
    assert "\n" in err
    assert err.replace("\n", "").isprintable(), ascii(err)
    assert err.count("error: ") == 1


def test_a_bundle_cannot_steer_the_terminal(nmt, reverse_run: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        shutil.copytree(reverse_run / "ckpts/averaged", tmp_path / name)
    add_info(
        tmp_path / "a",
        {"scores": {"chrf": 1.0}, "signatures": {"chrf": STEERING}, "cost": {"devices": {STEERING: 1.0}}},
    )
    done = nmt("score", "--runs", tmp_path / "a")
    assert (done.code, done.err) == (0, f"model: {tmp_path / 'a'}\n")
    assert done.out.decode().replace("\n", "").isprintable()
    shutil.copytree(reverse_run / "ckpts", tmp_path / "run")
    for step, run in ((600, f"x{STEERING}"), (800, "y")):
        add_info(tmp_path / f"run/step-{step:08d}", {"run": run})
    done = nmt("average", tmp_path / "run")
    assert done.code == 1
    assert [line.split(": ")[0] for line in done.err.split("\n")] == ["error", "hint", ""], done.err
    assert done.err.replace("\n", "").isprintable(), ascii(done.err)
