"""Keys of a recipe: their defaults, and the values that are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from recipe_files import BASE, IMPOSSIBLE, RECIPES, Write, refusal

from nmt import recipe as recipes
from nmt.errors import UserError
from nmt.recipe import (
    Model,
    TokenizerSettings,
    Training,
    json_schema,
    load,
)

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


# --- hostile recipes ----------------------------------------------------------------------------------------


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
