"""Recipes: defaults, validation, inheritance, overrides, YAML and the JSON Schema."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import ValidationError

from nmt import recipe as recipes
from nmt.errors import UserError
from nmt.recipe import (
    KINDS,
    Model,
    Recipe,
    TaskName,
    TokenizerSettings,
    Training,
    json_schema,
    load,
    override_decoding,
)
from nmt.recipe.files import Loader

RECIPES = Path(__file__).parents[1] / "recipes"

BASE = """\
name: tiny
data:
  source: en
  target: de
  train: [{source: a.en, target: a.de}]
"""  # five lines: what a test adds begins in line 6

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str, name: str = "r.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def refusal(path: Path, overrides: Sequence[str] = ()) -> UserError:
    """The error that loading raises, which must be one line of text."""
    with pytest.raises(UserError) as caught:
        load(path, overrides)
    assert "\n" not in caught.value.message
    assert caught.value.hint
    assert "\n" not in caught.value.hint
    return caught.value


# --- defaults -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tokenizer.algorithm", "bpe"),
        ("tokenizer.vocab_size", 37_000),
        ("tokenizer.shared", True),
        ("model.layers", 6),
        ("model.decoder_depth", 6),
        ("model.d_model", 512),
        ("model.d_ff", 2048),
        ("model.heads", 8),
        ("model.key_width", 64),
        ("model.value_width", 64),
        ("model.activation", "relu"),
        ("model.attention_bias", False),
        ("model.output_bias", False),
        ("model.dropout", 0.1),
        ("model.attention_dropout", 0.0),
        ("model.feed_forward_dropout", 0.0),
        ("model.norm", "post"),
        ("model.norm_epsilon", 1e-6),
        ("model.positions", "sinusoidal"),
        ("model.tie_embeddings", "all"),
        ("training.updates", 100_000),
        ("training.batch_tokens", 25_000),
        ("training.warmup", 4000),
        ("training.learning_rate_scale", 1.0),
        ("training.adam_betas", (0.9, 0.98)),
        ("training.adam_epsilon", 1e-9),
        ("training.label_smoothing", 0.1),
        ("training.clip_norm", None),
        ("training.checkpoint_minutes", 10),
        ("training.keep_last", 20),
        ("decoding.beam", 4),
        ("decoding.alpha", 0.6),
        ("decoding.max_extra", 50),
        ("decoding.max_source", 1024),
        ("decoding.min_length", 0),
        ("decoding.batch_tokens", "auto"),
        ("decoding.precision", "auto"),
        ("decoding.average_last", 5),
    ],
)
def test_defaults_are_those_of_the_paper(write: Write, key: str, value: Any) -> None:
    section, name = key.split(".")
    assert getattr(getattr(load(write(BASE)), section), name) == value


def test_the_wmt14_recipe_spells_out_the_defaults() -> None:
    recipe = load(RECIPES / "wmt14_en_de.yaml")
    assert recipe.model == Model()
    assert recipe.training == Training()
    assert recipe.tokenizer == TokenizerSettings()
    assert recipe.decoding == recipes.Decoding()


def test_widths_of_a_head_can_be_set_on_their_own() -> None:
    model = Model(heads=32, d_k=16, decoder_layers=2)
    assert (model.key_width, model.value_width, model.decoder_depth) == (16, 16, 2)
    assert Model(heads=7, d_k=64, d_v=32).value_width == 32  # heads need not divide d_model then


def test_recipes_are_frozen(write: Write) -> None:
    recipe = load(write(BASE))
    with pytest.raises(ValidationError):
        recipe.training.updates = 3  # type: ignore[misc]


# --- refusals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "key", "value", "hint"),
    [
        ("model: {d_modle: 256}", "model.d_modle", "256", "model.d_model?"),
        ("training: {updats: 5}", "training.updats", "5", "training.updates?"),
        ("modell: {layers: 2}", "modell", "{'layers': 2}", "model?"),
        ("beam: 3", "beam", "3", "decoding.beam?"),  # the right key in the wrong section
        ("model: {dropout: 0.1, batch_tokens: 7}", "model.batch_tokens", "7", "training.batch_tokens"),
        ("zzz: 1", "zzz", "1", "name, data, tokenizer, model, training, decoding"),
    ],
)
def test_an_unknown_key_names_line_key_value_and_the_nearest_key(
    write: Write, line: str, key: str, value: str, hint: str
) -> None:
    path = write(BASE + line + "\n")
    error = refusal(path)
    assert error.message.startswith(f"{path}:6: {key}: unknown key")
    assert value in error.message
    assert hint in error.hint


@pytest.mark.parametrize(
    ("line", "key", "value", "allowed"),
    [
        ("training: {updates: '5'}", "training.updates", "'5'", "valid integer"),
        ("training: {updates: 5.5}", "training.updates", "5.5", "valid integer"),
        ("training: {updates: true}", "training.updates", "True", "valid integer"),
        ("training: {updates: yes}", "training.updates", "'yes'", "valid integer"),
        ("tokenizer: {shared: 1}", "tokenizer.shared", "1", "valid boolean"),
        ("tokenizer: {shared: no}", "tokenizer.shared", "'no'", "valid boolean"),
        ("model: {dropout: a}", "model.dropout", "'a'", "valid number"),
        ("training: [1]", "training", "[1]", "keys with their values"),
        ("training:", "training", "None", "keys with their values"),
        ("training: {adam_betas: [0.9]}", "training.adam_betas.1", "", "must be given"),
    ],
)
def test_a_wrong_type_names_line_key_value_and_what_is_allowed(
    write: Write, line: str, key: str, value: str, allowed: str
) -> None:
    path = write(BASE + line + "\n")
    message = refusal(path).message
    assert message.startswith(f"{path}:6: {key}: ")
    assert value in message
    assert allowed in message


IMPOSSIBLE = [
    ("decoding: {beam: 0}", "decoding.beam", "0", "greater than or equal to 1"),
    ("decoding: {batch_tokens: 0}", "decoding.batch_tokens", "0", "a whole number from 1 to 1000000000, or auto"),
    ("decoding: {batch_tokens: all}", "decoding.batch_tokens", "'all'", "a whole number from 1 to 1000000000, or auto"),
    (
        "decoding: {batch_tokens: 1000000000000}",
        "decoding.batch_tokens",
        "1000000000000",
        "from 1 to 1000000000, or auto",
    ),
    ("decoding: {max_extra: 1000000000}", "decoding.max_extra", "1000000000", "less than or equal to 10000"),
    ("decoding: {max_source: 1000000000}", "decoding.max_source", "1000000000", "less than or equal to 100000"),
    ("decoding: {alpha: 1.0e+300}", "decoding.alpha", "1e+300", "less than or equal to 5"),
    ("decoding: {precision: fp8}", "decoding.precision", "'fp8'", "'auto', 'fp32', 'bf16', 'fp16' or 'int8'"),
    ("decoding: {alpha: -0.1}", "decoding.alpha", "-0.1", "greater than or equal to 0"),
    ("model: {dropout: 1}", "model.dropout", "1", "less than 1"),
    ("model: {norm: mid}", "model.norm", "'mid'", "'post' or 'pre'"),
    ("tokenizer: {algorithm: bp}", "tokenizer.algorithm", "'bp'", "'bpe' or 'unigram'"),
    ("tokenizer: {vocab_size: 260}", "tokenizer.vocab_size", "260", "261"),
    ("training: {warmup: 0}", "training.warmup", "0", "greater than or equal to 1"),
    ("training: {keep_last: 0}", "training.keep_last", "0", "greater than or equal to 1"),
]


@pytest.mark.parametrize(
    ("line", "key", "value", "allowed"),
    [
        *IMPOSSIBLE,
        ("model: {d_model: 511, heads: 7}", "model.d_model", "511", "a multiple of 2 with positions: sinusoidal"),
        (
            "model: {d_model: 6, heads: 2, positions: words}",
            "model.d_model",
            "6",
            "a multiple of 4 with positions: words",
        ),
        ("model: {heads: 7}", "model.heads", "7", "must divide d_model 512"),
        ("model: {heads: 7, d_k: 64}", "model.heads", "7", "unless d_k and d_v are given"),
        ("training: {adam_betas: [0.9, 1.0]}", "training.adam_betas", "[0.9, 1.0]", "below 1"),
        ("training: {device_tokens: 30000}", "training.device_tokens", "30000", "exceed batch_tokens 25000"),
        ("training: {freeze_embeddings: true}", "training.freeze_embeddings", "", "source_embeddings"),
        ("training: {batch_tokens: 256}", "training.batch_tokens", "256", "at least 257"),
        ("decoding: {min_length: 51}", "decoding.min_length", "51", "must not exceed max_extra 50"),
        ("training: {patience: 3}", "training.patience", "", "needs data.valid"),
        ("tokenizer: {shared: false}", "model.tie_embeddings", "all", "use target or none"),
        ("model: {positions: learned, max_positions: 1024}", "model.max_positions", "1024", "at least 1025"),
    ],
)
def test_an_impossible_value_names_key_value_and_what_is_allowed(
    write: Write, line: str, key: str, value: str, allowed: str
) -> None:
    path = write(BASE + line + "\n")
    message = refusal(path).message
    assert f": {key}: " in message
    assert value in message
    assert allowed in message
    # where the key itself is not in the file there is no line to name, but the file always is
    in_file = key.split(".")[1] in line
    assert message.startswith(f"{path}:6: " if in_file else f"{path}: ")


def test_a_number_out_of_bounds_says_what_to_do(write: Write) -> None:
    assert "default" in refusal(write(BASE + "decoding: {max_extra: 1000000000}\n")).hint


def test_no_whole_number_of_a_recipe_is_without_an_upper_limit() -> None:
    """A number without one makes a loop or an allocation without an end."""
    unlimited = []
    for section, schema in json_schema()["$defs"].items():
        for key, about in schema["properties"].items():
            kinds = [kind for kind in (about, *about.get("anyOf", ())) if kind.get("type") == "integer"]
            if not all({"maximum", "exclusiveMaximum"} & kind.keys() for kind in kinds):
                unlimited.append(f"{section}.{key}")
    assert unlimited == []


def test_heads_that_divide_are_suggested(write: Write) -> None:
    assert "4, 8" in refusal(write(BASE + "model: {heads: 7}\n")).hint


@pytest.mark.parametrize(
    ("settings", "hint"),
    [
        (["model.norm=pots"], "did you mean post?"),
        (["decoding.precision=nothing"], "correct the value, or remove the key where it has a default"),
        (["model.d_model=511", "model.heads=1"], "--set model.d_model=512"),
        (["training.batch_tokens=256"], "--set training.batch_tokens=257, or lower data.max_length"),
        (
            ["model.positions=learned"],
            "--set model.max_positions=1025, or lower data.max_length and decoding.max_source",
        ),
        (["decoding.min_length=51"], "--set decoding.min_length=50, or raise decoding.max_extra"),
        (["name.first=x"], "set all of it: --set 'name=VALUE'"),
        (["data={source: en}"], "add data.target to the recipe; recipes/schema.json describes all keys"),
    ],
)
def test_the_hint_gives_the_nearest_setting_that_is_allowed(write: Write, settings: list[str], hint: str) -> None:
    assert refusal(write(BASE), settings).hint == hint


@pytest.mark.parametrize(("key", "value"), [("sample", 100), ("character_coverage", 0.97)])
def test_what_sentencepiece_would_refuse_is_refused_with_its_key(
    write: Write,
    key: str,
    value: float,
) -> None:
    assert f"tokenizer.{key}: must be" in refusal(write(BASE + f"tokenizer: {{{key}: {value}}}\n")).message


@pytest.mark.parametrize("key", ["training.learning_rate_scale", "training.adam_epsilon", "decoding.alpha"])
def test_infinity_is_no_factor(write: Write, key: str) -> None:
    assert key in refusal(write(BASE), [f"{key}=.inf"]).message


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        ("{source: a}", "source and target go together"),
        ("{target: a}", "source and target go together"),
        ("{}", "exactly one of: source and target, file, sacrebleu, hub"),
        ("{source: a, target: b, hub: c}", "exactly one of"),
        ("{source: a, target: b, config: c}", "config: goes with hub"),
        ("{sacrebleu: wmt13, hub: c}", "exactly one of"),
        ("{sacrebleu: wmt13, config: c}", "config: goes with hub"),
        ("{sacrebleu: wmt13, fields: [en, de]}", "fields: goes with file or hub"),
        ("{file: a.txt}", "file: must end in one of .tsv"),
        ("{file: a.tsv, fields: ['0', '1']}", "fields: of a .tsv are column numbers counted from 1"),
        ("{file: a.tsv, fields: ['1', '1０']}", "fields: of a .tsv are column numbers counted from 1"),
        ("{file: a.tsv, fields: [en, de]}", "fields: of a .tsv are column numbers counted from 1"),
        ("{file: a.jsonl, fields: [en]}", "fields: must be 2, the source's and the target's (got ['en'])"),
        ("{file: a.jsonl, fields: [en, de, fr]}", "fields: "),
        ("{file: a.jsonl, fileds: [en, de]}", "fileds: unknown key"),
    ],
)
def test_a_data_set_that_cannot_be_is_refused_with_its_place(write: Write, dataset: str, words: str) -> None:
    path = write(BASE.replace("[{source: a.en, target: a.de}]", f"\n  - {{file: good.tsv}}\n  - {dataset}"))
    message = refusal(path).message
    assert message.startswith(f"{path}:7: data.train.1")
    assert words in message


def test_an_unknown_key_of_a_data_set_hints_at_the_nearest(write: Write) -> None:
    error = refusal(write(BASE.replace("source: a.en", "sorce: a.en")))
    assert error.hint == "did you mean data.train.0.source?"


def test_what_is_missing_is_named(write: Write) -> None:
    assert "data.target: must be given" in refusal(write(BASE.replace("  target: de\n", ""))).message
    assert "name: must be given" in refusal(write("")).message
    assert "data.train" in refusal(write(BASE.replace("[{source: a.en, target: a.de}]", "[]"))).message


def test_names_that_would_leave_their_folder_are_refused(write: Write) -> None:
    for name in ("../x", "a/b", ".hidden", "''", "a b"):
        assert ": name: " in refusal(write(BASE.replace("name: tiny", f"name: {name}"))).message


@pytest.mark.parametrize("key", ["model", "training", "decoding", "tokenizer"])
def test_several_problems_are_counted(write: Write, key: str) -> None:
    assert "(and 1 more)" in refusal(write(BASE + f"{key}: {{oops: 1, alas: 2}}\n")).message


def test_one_data_set_without_brackets_is_told_to_be_a_list(write: Write) -> None:
    error = refusal(write(BASE.replace("[{source: a.en, target: a.de}]", "{source: a.en, target: a.de}")))
    assert "data.train: must be a list (got {" in error.message
    assert error.hint.startswith("write it between [ and ]")


def test_what_should_have_keys_is_told_to(write: Write) -> None:
    error = refusal(write(BASE.replace("[{source: a.en, target: a.de}]", "[a.tsv]")))
    assert "data.train.0: must be keys with their values (got 'a.tsv')" in error.message
    assert error.hint == "write them like {source: train.en, target: train.de}"
    assert refusal(write(BASE + "model: 3\n")).hint == "write them like {key: value}"


@pytest.mark.parametrize(("text", "line"), [("name: x\n\tdata: 3\n", 2), ("name: x\ndata: [\n", 3), ("a: b: c\n", 1)])
def test_what_is_not_yaml_is_named_with_its_line(write: Write, text: str, line: int) -> None:
    path = write(text)
    message = refusal(path).message
    assert message.startswith(f"{path}:{line}: not valid YAML: ")
    assert "string>" not in message


def test_a_missing_recipe_hints_at_those_there(write: Write, tmp_path: Path) -> None:
    write(BASE, "multi30k.yaml")
    error = refusal(tmp_path / "multi3k.yaml")
    assert "multi3k.yaml: no such recipe" in error.message
    assert "multi30k.yaml" in error.hint


# --- parsers ------------------------------------------------------------------------------------------------

PARSER = """\
name: tiny
data:
  source: en
  target: tree
  train: [{trees: a.mrg}]
"""


@pytest.mark.parametrize(
    ("section", "values"),
    [
        ("data", {"max_length": 512, "max_ratio": 20.0, "functional_tags": False, "traces": False}),
        ("tokenizer", {"shared": False, "vocab_size": 37_000}),
        ("model", {"tie_embeddings": "target", "d_model": 512}),
        ("decoding", {"beam": 21, "alpha": 0.3, "max_extra": 300, "max_source": 1024}),
    ],
)
def test_trees_as_target_are_all_that_a_parser_changes(write: Write, section: str, values: dict[str, Any]) -> None:
    recipe = load(write(PARSER))
    assert recipe.task == "parse"
    assert {key: getattr(getattr(recipe, section), key) for key in values} == values


def test_a_translator_keeps_its_defaults(write: Write) -> None:
    recipe = load(write(BASE))
    assert recipe.task == "translate"
    assert (recipe.tokenizer.shared, recipe.decoding.beam, recipe.data.max_length) == (True, 4, 256)


def test_what_a_parsers_recipe_says_is_kept(write: Write) -> None:
    path = write(PARSER + "  max_ratio: 4.0\nmodel: {tie_embeddings: none}\ndecoding: {beam: 2}\n")
    recipe = load(path, ["decoding.alpha=0.5"])
    assert (recipe.data.max_ratio, recipe.data.max_length) == (4.0, 512)
    assert recipe.model.tie_embeddings == "none"
    assert (recipe.decoding.beam, recipe.decoding.alpha, recipe.decoding.max_extra) == (2, 0.5, 300)


def test_a_resolved_parser_loads_back_to_an_equal_one(write: Write) -> None:
    recipe = load(write(PARSER + "  functional_tags: true\ndecoding: {beam: 3}\n"))
    assert load(write(recipe.to_yaml(), "again.yaml")) == recipe


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["tokenizer.shared=true"], "tokenizer.shared: must be false with data.target: tree"),
        (["model.tie_embeddings=all"], "model.tie_embeddings: all needs one vocabulary"),
        (["training.target_embeddings=x"], "training.target_embeddings: must be null with data.target: tree"),
        (["decoding.min_length=3"], "decoding.min_length: must be 0 with data.target: tree"),
        (["decoding.split=none"], 'decoding.split: must be "auto" with data.target: tree'),
        (["decoding.no_repeat=3"], "decoding.no_repeat: must be null with data.target: tree"),
        (["decoding.top_p=0.5"], "decoding.top_p: must be 1.0 with data.target: tree, since trees are not drawn"),
        (["data.target=de"], "data.train.0.trees: needs data.target: tree, which makes a parser (got de)"),
        (["data.valid=[{file: a.tsv}]"], "data.valid.0: must be trees, {trees: NAME}, since data.target is tree"),
        (
            ["data.target=de", "data.train=[{file: a.tsv}]", "data.traces=true"],
            "data.traces: is for trees, and needs data.target: tree (got de)",
        ),
        (["data.train=[{trees: a, fields: [a, b]}]"], "data.train.0.fields: goes with file or hub"),
        (["data.train=[{trees: a, file: b.tsv}]"], "data.train.0: needs exactly one of"),
        (["data.valid=[{trees: a, weight: 2}]"], "data.valid.0.weight: is for training sets"),
    ],
)
def test_combinations_that_make_no_parser_are_refused(write: Write, settings: list[str], message: str) -> None:
    refused = refusal(write(PARSER), settings).message
    assert message in refused
    assert refused.startswith(("--set data.", f"--set {settings[-1]}", str(write(PARSER))))


# --- the table of tasks --------------------------------------------------------------------------------------


def test_every_task_has_a_row() -> None:
    assert set(KINDS) == set(get_args(TaskName))


def test_the_rows_name_only_keys_that_recipes_have() -> None:
    sections = {name: field.annotation for name, field in Recipe.model_fields.items()}
    for kind in KINDS.values():
        defaults = [f"{section}.{key}" for section, values in kind.defaults.items() for key in values]
        for key in (*defaults, *kind.fixed):
            section, name = key.split(".")
            assert name in sections[section].model_fields, key


# --- language models ----------------------------------------------------------------------------------------

LANGUAGE_MODEL = """\
name: tiny
data:
  target: en
  train: [{target: a.en}]
"""


def test_a_recipe_without_a_source_is_a_language_models(write: Write) -> None:
    recipe = load(write(LANGUAGE_MODEL))
    assert recipe.task == "language_model"
    assert (recipe.data.languages, recipe.kind.unit) == (("en",), "lines")
    assert load(write(recipe.to_yaml(), "again.yaml")) == recipe


def test_a_recipe_without_its_source_is_that_of_a_language_model(write: Write) -> None:
    write(BASE.replace("{source: a.en, target: a.de}", "{hub: wmt/wmt14, config: de-en}"), "base.yaml")
    path = write("extends: base.yaml\nname: lm\ndata: {source: null}\n")
    assert load(path).task == load(path.parent / "base.yaml", ["data.source=null"]).task == "language_model"
    assert load(path).data.name == "lm"


def test_a_language_models_limits_are_those_of_its_side(write: Write) -> None:
    settings = ["model.positions=learned", "model.max_positions=257"]
    assert load(write(LANGUAGE_MODEL), settings).model.max_positions == 257
    refused = refusal(write(LANGUAGE_MODEL), ["model.positions=learned", "model.max_positions=256"]).message
    assert "model.max_positions: must be at least 257 for data.max_length 256 with one end symbol (got 256)" in refused


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            ["data.train=[{source: a, target: b}]"],
            "data.train.0.source: needs data.source; without it a language model",
        ),
        (["data.valid=[{sacrebleu: wmt13}]"], "data.valid.0.sacrebleu: needs data.source; without it"),
        (["data.train=[{file: a.tsv}]"], "data.train.0.fields: must name the column of the target without data.source"),
        (["data.train=[{file: a.jsonl, fields: [a, b]}]"], "fields: must be 1, the target's, without data.source"),
        (["data.train=[{trees: a}]"], "data.train.0.trees: needs data.target: tree"),
        (["data.train=[{trees: a}]", "data.target=tree"], "data.source: must be given with data.target: tree"),
        (["tokenizer.shared=false", "model.tie_embeddings=none"], "tokenizer.shared: must be true without data.source"),
        (["training.source_embeddings=x"], "training.source_embeddings: must be null without data.source"),
        (["data.source=de"], "data.train.0: source and target go together"),
    ],
)
def test_combinations_that_make_no_language_model_are_refused(write: Write, settings: list[str], message: str) -> None:
    assert message in refusal(write(LANGUAGE_MODEL), settings).message


def test_a_parser_that_extends_a_translator_is_told_what_does_not_fit(write: Write) -> None:
    base = write(BASE + "tokenizer: {shared: true}\n", "base.yaml")
    path = write("extends: base.yaml\ndata: {target: tree, train: [{trees: a.mrg}]}\n")
    assert refusal(path).message.startswith(f"{base}:6: tokenizer.shared: must be false")
    assert load(path, ["tokenizer.shared=false"]).model.tie_embeddings == "target"


def test_the_papers_parsers_are_as_the_paper_says() -> None:
    wsj, semi = load(RECIPES / "wsj.yaml"), load(RECIPES / "wsj_semi.yaml")
    for recipe, vocabulary in ((wsj, 16_000), (semi, 32_000)):
        assert recipe.tokenizer.vocab_size == vocabulary
        assert (recipe.model.layers, recipe.model.d_model) == (4, 1024)
        assert (recipe.decoding.beam, recipe.decoding.alpha, recipe.decoding.max_extra) == (21, 0.3, 300)
        assert recipe.model.attention_dropout > 0
        assert [dataset.trees for dataset in (*recipe.data.valid, *recipe.data.test)] == ["22", "23"]
    sections = [name for n in range(25) if any(fnmatch(name := f"{n:02}", str(d.trees)) for d in wsj.data.train)]
    assert sections == [f"{n:02}" for n in range(2, 22)]
    assert [dataset.weight for dataset in semi.data.train] == [10, 10, 10, 1]
    assert semi.data.name == "wsj_semi"


# --- YAML ---------------------------------------------------------------------------------------------------


def test_scalars_are_those_of_yaml_1_2(write: Write) -> None:
    recipe = load(
        write(
            "name: y\ndata: {source: no, target: on, root: 12:30, train: [{source: yes, target: off}]}\n"
            "training: {adam_epsilon: 1e-8, updates: 1_000, clip_norm: 5}\n"
        )
    )
    assert (recipe.name, recipe.data.source, recipe.data.target, recipe.data.root) == (
        "y",
        "no",
        "on",
        "12:30",
    )
    assert (recipe.data.train[0].source, recipe.data.train[0].target) == ("yes", "off")
    assert recipe.training.adam_epsilon == 1e-8
    assert recipe.training.updates == 1000
    assert recipe.training.clip_norm == 5.0


@pytest.mark.parametrize("text", ["1e-9", "1E-9", "1.0e-9", "+1e-9", ".000000001", "0.000000001"])
def test_numbers_may_be_written_in_any_way(write: Write, text: str) -> None:
    assert load(write(BASE), [f"training.adam_epsilon={text}"]).training.adam_epsilon == 1e-9


def test_duplicate_keys_are_refused(write: Write) -> None:
    path = write(BASE + "model: {layers: 2}\ntraining: {updates: 5}\nmodel: {layers: 3}\n")
    assert refusal(path).message == f"{path}:8: model: is already in line 6"
    path = write(BASE + "model:\n  layers: 2\n  layers: 2\n")
    assert refusal(path).message == f"{path}:8: model.layers: is already in line 7"


@pytest.mark.parametrize(
    "text",
    [
        "name: [",
        "- a\n- b",
        "just text",
        "name: \x01",
        "? [a]\n: b",
        "name: !!python/object/apply:os.getcwd []",
        "training: {updates: !!int abc}",
        "training: {warmup: !!float abc}",
        "training: {warmup: !!int ''}",
        "training: {report: !!bool maybe}",
        "name: !!timestamp 9999-12-31T23:59:59-23:00",
        "model: &m {layers: *m}",
    ],
)
def test_what_is_no_recipe_at_all_is_refused_with_its_file(write: Write, text: str) -> None:
    path = write(text)
    assert str(path) in refusal(path).message


def test_a_file_that_is_not_utf8_is_refused_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_bytes(b"name: \xff\n")
    assert "r.yaml: cannot be read" in refusal(tmp_path / "r.yaml").message


def test_a_saved_recipe_reads_back_equal(write: Write) -> None:
    recipe = load(
        write(BASE + "model: {dropout: 0.3, d_k: 16}\ntraining: {adam_epsilon: 1e-12}\n"),
        ["data.valid=[{file: b.tsv, fields: ['2', '3']}]", "data.root=Größe und Straße", "data.max_ratio=3"],
    )
    assert load(write(recipe.to_yaml(), "saved.yaml")) == recipe


@pytest.mark.parametrize(
    "name",
    ["1e9", "09", "1_0", "0x1f", "0o7", "no", "null", "True", "12", "1.5", "2020-01-01", "1.", "NaN", "y"],
)
def test_a_name_that_looks_like_another_type_survives_saving(write: Write, name: str) -> None:
    recipe = load(write(BASE.replace("tiny", f"'{name}'")))
    assert recipe.name == name
    assert load(write(recipe.to_yaml(), "saved.yaml")) == recipe


def test_a_saved_recipe_has_every_key(write: Write) -> None:
    saved = yaml.safe_load(load(write(BASE)).to_yaml())
    assert list(saved) == list(Recipe.model_fields)
    assert set(saved["training"]) == set(Training.model_fields)
    assert set(saved["model"]) == set(Model.model_fields)


# --- extends ------------------------------------------------------------------------------------------------


def test_a_recipe_inherits_and_changes_single_keys(write: Write) -> None:
    write(BASE + "model: {layers: 2, d_ff: 64}\n", "base.yaml")
    recipe = load(write("extends: base.yaml\nname: row\nmodel: {layers: 3}\n"))
    assert (recipe.name, recipe.model.layers, recipe.model.d_ff) == ("row", 3, 64)
    assert recipe.data.train[0].source == "a.en"


def test_a_list_replaces_that_of_the_base(write: Write) -> None:
    write(BASE.replace("[{", "[{source: z.en, target: z.de}, {"), "base.yaml")
    recipe = load(write("extends: base.yaml\ndata: {train: [{source: b.en, target: b.de}]}\n"))
    assert [dataset.source for dataset in recipe.data.train] == ["b.en"]


def test_inheritance_goes_over_two_levels_and_folders(write: Write, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    write(BASE + "model: {layers: 2, d_ff: 64, heads: 2}\n", "base.yaml")
    write("extends: ../base.yaml\nname: middle\nmodel: {layers: 3, d_ff: 32}\n", "sub/middle.yaml")
    recipe = load(write("extends: sub/middle.yaml\nname: leaf\nmodel: {layers: 4}\n"))
    assert (recipe.name, recipe.model.layers, recipe.model.d_ff, recipe.model.heads) == ("leaf", 4, 32, 2)


def test_inheriting_from_oneself_is_refused(write: Write) -> None:
    assert "extends itself" in refusal(write("extends: r.yaml\n")).message
    write("extends: r.yaml\n", "other.yaml")
    assert "extends itself" in refusal(write("extends: other.yaml\n")).message


def test_a_missing_or_nameless_base_is_refused(write: Write) -> None:
    assert "nope.yaml: no such recipe" in refusal(write("extends: nope.yaml\n")).message
    path = write(BASE + "extends: 3\n")
    assert refusal(path).message == f"{path}:6: extends: must be a file name (got 3)"


def test_an_error_names_the_file_that_the_value_stands_in(write: Write) -> None:
    base = write(BASE + "decoding: {beam: 0}\n", "base.yaml")
    path = write("extends: base.yaml\n\nmodel: {layers: 2}\n")
    assert refusal(path).message.startswith(f"{base}:6: decoding.beam")
    write(BASE + "decoding: {beam: 4}\n", "base.yaml")
    path = write("extends: base.yaml\n\ndecoding: {beam: 0}\n")
    assert refusal(path).message.startswith(f"{path}:3: decoding.beam")


@pytest.mark.parametrize(
    ("change", "data_name"),
    [
        ("model: {layers: 3}", "tiny"),
        ("training: {updates: 7}", "tiny"),
        ("data: {max_length: 100}", "row"),
        ("data: {train: [{source: b.en, target: b.de}]}", "row"),
        ("tokenizer: {vocab_size: 300}", "row"),
        ("tokenizer: {vocab_size: 300}\ndata: {name: mine}", "mine"),
    ],
)
def test_prepared_data_is_shared_unless_data_or_tokenizer_change(
    write: Write,
    change: str,
    data_name: str,
) -> None:
    write(BASE, "base.yaml")
    assert load(write(f"extends: base.yaml\nname: row\n{change}\n")).data.name == data_name


def test_prepared_data_is_shared_over_two_levels(write: Write) -> None:
    write(BASE, "base.yaml")
    write("extends: base.yaml\nname: middle\nmodel: {layers: 3}\n", "middle.yaml")
    write("extends: base.yaml\nname: other\ntokenizer: {vocab_size: 300}\n", "other.yaml")
    assert load(write("extends: middle.yaml\nname: leaf\n")).data.name == "tiny"
    assert load(write("extends: other.yaml\nname: leaf\n")).data.name == "other"
    assert load(write("extends: other.yaml\nname: leaf\ntokenizer: {vocab_size: 400}\n")).data.name == "leaf"


def test_a_base_without_data_can_be_completed(write: Write) -> None:
    write("model: {layers: 2}\n", "base.yaml")
    recipe = load(write("extends: base.yaml\n" + BASE))
    assert (recipe.model.layers, recipe.data.name) == (2, "tiny")


# --- overrides ----------------------------------------------------------------------------------------------


def test_overrides_are_yaml_and_the_last_one_wins(write: Write) -> None:
    recipe = load(
        write(BASE),
        [
            "training.updates=3",
            "training.updates=2000",
            "training.clip_norm = 1e-1",
            "training.checkpoint_minutes=null",
            "tokenizer.shared=false",
            "model.tie_embeddings=none",
            "data.source=no",
            "data.train=[{source: x.en, target: x.de}, {file: y.tsv}]",
            "data.root=a=b",
        ],
    )
    assert recipe.training.updates == 2000
    assert recipe.training.clip_norm == 0.1
    assert recipe.training.checkpoint_minutes is None
    assert recipe.tokenizer.shared is False
    assert recipe.model.tie_embeddings == "none"
    assert recipe.data.source == "no"
    assert [d.source or d.file for d in recipe.data.train] == ["x.en", "y.tsv"]
    assert recipe.data.root == "a=b"


def test_an_override_is_named_where_its_value_is_wrong(write: Write) -> None:
    error = refusal(write(BASE), ["decoding.beam=0"])
    assert error.message.startswith("--set decoding.beam=0: decoding.beam: ")
    error = refusal(write(BASE), ["trainig.updates=5"])
    assert error.message.startswith("--set trainig.updates=5: trainig")
    assert error.hint == "did you mean training?"


def test_an_overridden_list_is_named_instead_of_the_line_it_replaces(write: Write) -> None:
    override = "data.train=[{source: x.en, target: x.de}, {sorce: y}]"
    path = write(BASE.replace("[{", "[{source: z.en, target: z.de}, {"))
    message = refusal(path, [override]).message
    assert message.startswith(f"--set {override}: data.train.1.sorce")
    assert str(path) not in message


@pytest.mark.parametrize(
    "override",
    ["updates", "training.updates", "=5", ".updates=5", "training..updates=5", "training.updates=[",
     "name.x=1", "data.train.0.source=a", "training.updates=!!int a"],
)  # fmt: skip
def test_an_override_that_cannot_be_read_is_refused(write: Write, override: str) -> None:
    assert refusal(write(BASE), [override]).message.startswith(f"--set {override}: ")


def test_prepared_data_follows_an_overridden_name(write: Write) -> None:
    assert load(write(BASE), ["name=other"]).data.name == "other"
    assert load(write(BASE), ["name=other", "data.name=mine"]).data.name == "mine"


def test_decoding_settings_can_be_overridden_alone(write: Write) -> None:
    recipe = load(write(BASE + "decoding: {beam: 7}\n"))
    changed = override_decoding(recipe, ["decoding.alpha=1.0", "max_extra=3"])
    assert changed == recipes.Decoding(beam=7, alpha=1.0, max_extra=3)


@pytest.mark.parametrize(
    ("override", "words", "hint"),
    [
        ("training.updates=5", "only keys of decoding", "decoding.beam"),
        ("decoding.beem=5", "decoding.beem: unknown key", "decoding.beam?"),
        ("beem=5", "decoding.beem: unknown key", "decoding.beam?"),
        ("beam=0", "decoding.beam: must be greater", ""),
        ("beam", "must be section.key=value", ""),
    ],
)
def test_other_overrides_of_decoding_are_refused(write: Write, override: str, words: str, hint: str) -> None:
    with pytest.raises(UserError) as caught:
        override_decoding(load(write(BASE)), [override])
    assert words in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("key", "value", "allowed", "reason"),
    [
        ("decoding.split", '"none"', '"auto"', "a tree is over one sentence"),
        ("decoding.split", '"length"', '"auto"', "a tree is over one sentence"),
        ("decoding.min_length", "3", "0", "the words of a sentence determine how long its tree can be"),
    ],
)
def test_what_a_parsers_recipe_may_not_say_no_override_may_say(
    write: Write, key: str, value: str, allowed: str, reason: str
) -> None:
    recipe = load(write(PARSER))
    for override in (f"{key}={value}", f"{key.removeprefix('decoding.')}={value}"):
        with pytest.raises(UserError) as caught:
            override_decoding(recipe, ["beam=2", override])
        said = f"--set {key}={value}: {key}: must be {allowed} with data.target: tree, since {reason} (got {value})"
        assert (caught.value.message, caught.value.hint) == (said, f"--set {key}={allowed}")
    assert override_decoding(recipe, ["beam=2", f"{key}={allowed}"]).beam == 2


def test_relative_data_files_stand_below_the_root(write: Write) -> None:
    data = load(write(BASE), ["data.root=corpora"]).data
    assert data.path("a.en") == Path("corpora/a.en")
    assert data.path("/abs/a.en") == Path("/abs/a.en")
    assert data.path("~/a.en") == Path.home() / "a.en"
    assert load(write(BASE)).data.path("a.en") == Path("a.en")


# --- JSON Schema --------------------------------------------------------------------------------------------

TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
CHECKS: dict[str, Callable[[Any, Any], bool]] = {
    "enum": lambda value, allowed: value in allowed,
    "const": lambda value, only: value == only,
    "minimum": lambda value, limit: value >= limit,
    "maximum": lambda value, limit: value <= limit,
    "exclusiveMinimum": lambda value, limit: value > limit,
    "exclusiveMaximum": lambda value, limit: value < limit,
    "minItems": lambda value, limit: len(value) >= limit,
    "maxItems": lambda value, limit: len(value) <= limit,
    "pattern": lambda value, pattern: re.search(pattern, value) is not None,
}
SILENT = {"title", "description", "default", "$defs", "properties", "additionalProperties", "type", "items"}


def conforms(value: Any, schema: dict[str, Any], root: dict[str, Any]) -> bool:
    """The part of JSON Schema that ours uses; an unknown keyword fails the test instead of passing unseen."""
    if "$ref" in schema:
        return conforms(value, root["$defs"][schema["$ref"].rsplit("/", 1)[1]], root)
    if "anyOf" in schema:
        return any(conforms(value, option, root) for option in schema["anyOf"])
    assert set(schema) <= SILENT | set(CHECKS) | {"prefixItems"}, schema
    kind = schema["type"]
    if not isinstance(value, TYPES[kind]) or (isinstance(value, bool) and kind != "boolean"):
        return False
    if not all(check(value, schema[key]) for key, check in CHECKS.items() if key in schema):
        return False
    if kind == "object":
        known = schema["properties"]
        assert schema["additionalProperties"] is False
        return all(key in known and conforms(child, known[key], root) for key, child in value.items())
    if kind == "array" and "prefixItems" in schema:
        return all(conforms(v, s, root) for v, s in zip(value, schema["prefixItems"], strict=False))
    return kind != "array" or all(conforms(child, schema["items"], root) for child in value)


def test_the_schema_file_is_generated_from_the_types() -> None:
    assert json.loads((RECIPES / "schema.json").read_text(encoding="utf-8")) == json_schema()


@pytest.mark.parametrize("path", sorted(RECIPES.rglob("*.yaml")), ids=lambda path: path.name)
def test_every_recipe_of_the_project_loads_and_fits_the_schema(path: Path) -> None:
    raw = yaml.load(path.read_text(encoding="utf-8"), Loader=Loader)
    assert conforms(raw, json_schema(), json_schema())
    resolved = load(path).model_dump(mode="json")
    assert conforms(resolved, json_schema(), json_schema())


@pytest.mark.parametrize("line", [line for line, *_ in IMPOSSIBLE] + [
    "modell: {layers: 2}", "model: {d_modle: 2}", "training: {updates: '5'}", "training: {updates: true}",
    "data: {train: []}", "data: {train: [{sorce: a}]}", "data: {train: [{file: a.tsv, fields: ['1', '2', '3']}]}",
    "name: a/b", "extends: 3", "training: {adam_betas: [0.9, 0.98, 0.99]}",
])  # fmt: skip
def test_the_schema_rejects_what_loading_refuses(line: str) -> None:
    assert not conforms(yaml.safe_load(line), json_schema(), json_schema())


@pytest.mark.parametrize("line", ["extends: base.yaml", "{}", "model: {d_k: null}", "data: {max_length: 9}"])
def test_the_schema_accepts_what_a_base_completes(line: str) -> None:
    assert conforms(yaml.safe_load(line), json_schema(), json_schema())


def test_the_schema_describes_every_key() -> None:
    schema = json_schema()
    assert {"Data", "Dataset", "TokenizerSettings", "Model", "Training", "Decoding"} <= set(schema["$defs"])
    for section in schema["$defs"].values():
        for name, field in section["properties"].items():
            assert field.get("description"), f"{section['title']}.{name}"


# --- weights of training sets -------------------------------------------------------------------------------


def test_a_training_set_may_have_a_weight(write: Write) -> None:
    recipe = load(write(BASE), ["data.train=[{file: a.tsv, weight: 2}, {file: b.tsv, weight: 0.5}, {file: c.tsv}]"])
    assert [dataset.weight for dataset in recipe.data.train] == [2.0, 0.5, 1.0]


@pytest.mark.parametrize("weight", ["0", "-1", "1001", "a", ".inf", "true"])
def test_a_weight_is_a_positive_number_of_bounded_size(write: Write, weight: str) -> None:
    message = refusal(write(BASE), [f"data.train=[{{file: a.tsv, weight: {weight}}}]"]).message
    assert "data.train.0.weight: must be " in message


@pytest.mark.parametrize("split", ["valid", "test"])
def test_only_training_sets_have_weights(write: Write, split: str) -> None:
    path = write(f"{BASE}  {split}:\n    - {{file: a.tsv, weight: 1.0}}\n    - {{file: b.tsv, weight: 2}}\n")
    message = refusal(path).message
    assert message.startswith(f"{path}:8: data.{split}.1.weight: is for training sets")
    assert "(got 2)" in message


def test_aliases_of_aliases_are_counted_as_what_they_stand_for(tmp_path: Path) -> None:
    lines = ["name: a", "a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]  # 10¹² values
    path = tmp_path / "bomb.yaml"
    path.write_text("\n".join(lines))
    with pytest.raises(UserError, match=r"bomb\.yaml: more than 10,000 values"):
        load(path)


MERGED = ["a: &a {x: 1, y: 2}"]
MERGED += [f"{new}: &{new} {{!!merge <<: [*{old}, *{old}, *{old}]}}" for old, new in pairwise("abcdefghijklmnopqrst")]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("\n".join(MERGED), ":2: not valid YAML: recipes have no tags, such as tag:yaml.org,2002:merge"),  # 3¹⁹ values
        (f"a: [{'1,' * 20_000}]", ":1: not valid YAML: more than 20,000 keys and values"),
        (f"#{'-' * 1_000_000}", ": has more than 1,000,000 characters"),
    ],
    ids=["merged mappings", "values", "characters"],
)
def test_a_recipe_cannot_be_endless(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "bomb.yaml"
    path.write_text(text)
    assert refusal(path).message == f"{path}{problem}"


# --- hostile recipes ----------------------------------------------------------------------------------------


def test_links_to_themselves_are_named(nmt, tmp_path: Path) -> None:
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    (tmp_path / "recipe.yaml").write_text("extends: loop.yaml\n")
    for name in ("loop.yaml", "recipe.yaml"):
        done = nmt("train", tmp_path / name)
        problem = "loop.yaml: cannot be read: Too many levels of symbolic links"
        assert (done.code, done.err) == (1, f"error: {tmp_path}/{problem}\nhint: name a recipe that you may read\n")


def test_a_recipe_may_be_a_pipe_but_not_what_it_extends(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "recipe.yaml").write_text("extends: pipe\n")
    with pytest.raises(UserError, match="pipe: is not a regular file") as caught:
        load(tmp_path / "recipe.yaml")
    assert caught.value.hint
    read, write = os.pipe()
    os.write(write, (RECIPES / "demo.yaml").read_bytes())
    os.close(write)
    assert load(f"/dev/fd/{read}") == load(RECIPES / "demo.yaml")
    os.close(read)


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


@pytest.mark.parametrize(
    "key",
    ["model.layers", "model.decoder_layers", "model.d_model", "model.d_ff", "model.heads", "model.d_k", "model.d_v",
     "model.max_positions", "model.attention_window", "training.valid_beam", "decoding.beam", "decoding.max_extra",
     "decoding.max_source", "decoding.batch_tokens", "tokenizer.vocab_size"],
)  # fmt: skip
@pytest.mark.parametrize("value", [10**10, 10**30])
def test_sizes_beyond_any_use_are_refused_at_once(key: str, value: int) -> None:
    with pytest.raises(UserError, match=f"{key}.*: must be"):
        load(RECIPES / "demo.yaml", [f"{key}={value}"])
