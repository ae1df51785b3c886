"""Recipes as YAML: what is read, what is written, and hostile files."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
from recipe_files import BASE, RECIPES, Write, refusal

from nmt.recipe import load

# --- YAML ---------------------------------------------------------------------------------------------------


def test_scalars_are_those_of_yaml_1_2(write: Write) -> None:
    recipe = load(
        write(
            "name: y\ndata: {source: no, target: on, root: 12:30, train: [{source: yes, target: off}]}\n"
            "training: {adam_epsilon: 1e-8, updates: 1_000, clip_norm: 5}\n"
        )
    )
    assert (recipe.name, recipe.data.source, recipe.data.target, recipe.data.root) == ("y", "no", "on", "12:30")
    assert (recipe.data.train[0].source, recipe.data.train[0].target) == ("yes", "off")
    assert recipe.training.adam_epsilon == 1e-8
    assert recipe.training.updates == 1000
    assert recipe.training.clip_norm == 5.0


def test_duplicate_keys_are_refused(write: Write) -> None:
    path = write(BASE + "model: {layers: 2}\ntraining: {updates: 5}\nmodel: {layers: 3}\n")
    assert refusal(path).message == f"{path}:8: model: is already in line 6"
    path = write(BASE + "model:\n  layers: 2\n  layers: 2\n")
    assert refusal(path).message == f"{path}:8: model.layers: is already in line 7"


NOT_YAML = ["name: [", "name: !!python/object/apply:os.getcwd []", "training: {updates: !!int abc}", "a: b: c\n"]
NOT_YAML += ["training: {report: !!bool maybe}", "name: !!timestamp 9999-12-31T23:59:59-23:00"]


@pytest.mark.parametrize(
    ("text", "where"),
    [
        *((text, ":1: not valid YAML: ") for text in NOT_YAML),
        ("name: x\n\tdata: 3\n", ":2: not valid YAML: "),
        ("name: x\ndata: [\n", ":3: not valid YAML: "),
        *((text, ":") for text in ("- a\n- b", "name: \x01", "? [a]\n: b", "model: &m {layers: *m}")),
    ],
)
def test_what_is_no_recipe_at_all_is_refused_with_its_file(write: Write, text: str, where: str) -> None:
    path = write(text)
    message = refusal(path).message
    assert message.startswith(f"{path}{where}")
    assert "string>" not in message or where == ":"


def test_a_file_that_is_not_utf8_is_refused_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_bytes(b"name: \xff\n")
    assert refusal(tmp_path / "r.yaml").message.endswith("r.yaml: is not text in UTF-8: byte 7")


def test_a_tab_as_indentation_is_named_in_the_hint(write: Write) -> None:
    assert "spaces" in refusal(write("name: x\ndata:\n\tsource: a\n")).hint


def test_a_comma_in_a_number_begins_another_key(write: Write) -> None:
    path = write(BASE + "model: {layers: 1,000, heads: 2}\n")
    error = refusal(path)
    assert error.message == f"{path}:6: model: a key must be a name (got 0.0)"
    assert "1000, not 1,000" in error.hint


@pytest.mark.parametrize(
    ("given", "hint"),
    [("1e5", "write it as 100000,"), ('"10"', "write it as 10,"), ("10.5", "correct"), ("true", "correct")],
)
def test_a_whole_number_is_written_in_digits(write: Write, given: str, hint: str) -> None:
    assert refusal(write(BASE + f"training: {{updates: {given}}}\n")).hint.startswith(hint)


@pytest.mark.parametrize("given", ["p.tsv", "[p.tsv]"])
def test_a_file_of_pairs_without_brackets_is_shown_with_them(write: Write, given: str) -> None:
    error = refusal(write(f"name: x\ndata: {{source: a, target: b, train: {given}}}\n"))
    assert "{file: p.tsv}" in error.hint


def test_a_base_that_is_missing_is_named_with_the_line_that_asks_for_it(write: Write) -> None:
    path = write("extends: basis.yaml\n" + BASE)
    assert refusal(path).message == f"{path}:1: extends: {path.parent / 'basis.yaml'}: no such recipe"


def test_a_saved_recipe_reads_back_equal(write: Write) -> None:
    recipe = load(
        write(BASE + "model: {dropout: 0.3, d_k: 16}\ntraining: {adam_epsilon: 1e-12}\n"),
        ["data.valid=[{file: b.tsv, fields: ['2', '3']}]", "data.root=Größe und Straße", "data.max_ratio=3"],
    )
    assert load(write(recipe.to_yaml(), "saved.yaml")) == recipe


@pytest.mark.parametrize(
    "name", ["1e9", "09", "1_0", "0x1f", "0o7", "no", "null", "True", "12", "1.5", "2020-01-01", "1.", "NaN", "y"]
)
def test_a_name_that_looks_like_another_type_survives_saving(write: Write, name: str) -> None:
    recipe = load(write(BASE.replace("tiny", f"'{name}'")))
    assert recipe.name == name
    assert load(write(recipe.to_yaml(), "saved.yaml")) == recipe


# --- hostile recipes ----------------------------------------------------------------------------------------

ALIASES = ["name: a", "a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
ALIASES += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]  # 10¹² values
MERGED = ["a: &a {x: 1, y: 2}"]
MERGED += [f"{new}: &{new} {{!!merge <<: [*{old}, *{old}, *{old}]}}" for old, new in pairwise("abcdefghijklmnopqrst")]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("\n".join(ALIASES), ": nested too deeply, or more than 10,000 values"),
        ("\n".join(MERGED), ":2: not valid YAML: recipes have no tags, such as tag:yaml.org,2002:merge"),  # 3¹⁹ values
        (f"#{'-' * 1_000_000}", ": has more than 1,000,000 characters"),
    ],
    ids=["aliases", "merged mappings", "characters"],
)
def test_a_recipe_cannot_be_endless(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "bomb.yaml"
    path.write_text(text)
    assert refusal(path).message.startswith(f"{path}{problem}")


@pytest.mark.parametrize(
    "setting",
    [f"model={'[' * 3000}", f"model={'[' * 3000}{']' * 3000}", f"model={'{a: ' * 100}1{'}' * 100}",
     ".".join("a" * 3000) + "=1", ".".join("a" * 3000) + "=", "model=&a [*a]"],
    ids=["open", "brackets", "mappings", "keys", "keys without a value", "alias"],
)  # fmt: skip
def test_settings_that_are_nested_too_deeply_are_refused(nmt, setting: str) -> None:
    done = nmt("train", RECIPES / "demo.yaml", "--set", setting)
    assert done.code == 1
    assert re.fullmatch(r"error: --set .{,210}: [^\n]*(nested too deeply|not valid YAML)[^\n]*\nhint: .+\n", done.err)
