"""Keys of a recipe: their defaults, and the values that are refused."""

from __future__ import annotations

import pytest
from recipe_files import BASE, IMPOSSIBLE, Write, refusal

from nmt.recipe import Model, json_schema, load

# --- defaults -----------------------------------------------------------------------------------------------


PAPER = {
    "tokenizer": {"algorithm": "bpe", "vocab_size": 37000, "shared": True},
    "model": {"layers": 6, "decoder_depth": 6, "d_model": 512, "d_ff": 2048, "heads": 8, "key_width": 64}
    | {"value_width": 64, "activation": "relu", "attention_bias": False, "output_bias": False, "dropout": 0.1}
    | {"attention_dropout": 0.0, "feed_forward_dropout": 0.0, "norm": "post", "norm_epsilon": 1e-06}
    | {"positions": "sinusoidal", "tie_embeddings": "all"},
    "training": {"updates": 100000, "batch_tokens": 25000, "warmup": 4000, "learning_rate_scale": 1.0}
    | {"adam_betas": (0.9, 0.98), "adam_epsilon": 1e-09, "label_smoothing": 0.1, "clip_norm": None}
    | {"checkpoint_minutes": 10, "keep_last": 20, "average_last": 5},
    "decoding": {"beam": 4, "alpha": 0.6, "max_extra": 50, "max_source": 1024, "min_length": 0}
    | {"batch_tokens": "auto", "precision": "auto"},
}


def test_defaults_are_those_of_the_paper(write: Write) -> None:
    recipe = load(write(BASE))
    for section, values in PAPER.items():
        assert {key: getattr(getattr(recipe, section), key) for key in values} == values


def test_widths_of_a_head_can_be_set_on_their_own() -> None:
    model = Model(heads=32, d_k=16, decoder_layers=2)
    assert (model.key_width, model.value_width, model.decoder_depth) == (16, 16, 2)
    assert Model(heads=7, d_k=64, d_v=32).value_width == 32  # heads need not divide d_model then


# --- refusals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "key", "value", "hint"),
    [
        ("model: {d_modle: 256}", "model.d_modle", "256", "model.d_model?"),
        ("training: {updats: 5}", "training.updats", "5", "training.updates?"),
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
        ("tokenizer: {shared: 1}", "tokenizer.shared", "1", "valid boolean"),
        ("model: {dropout: a}", "model.dropout", "'a'", "valid number"),
        ("training: [1]", "training", "[1]", "keys with their values"),
        ("training: {adam_betas: [0.9]}", "training.adam_betas.1", "", "must be given"),
        *IMPOSSIBLE,
        ("model: {d_model: 511, heads: 7}", "model.d_model", "511", "a multiple of 2 with positions: sinusoidal"),
        (
            "model: {d_model: 6, heads: 2, positions: words}",
            "model.d_model",
            "6",
            "multiple of 4 with positions: words",
        ),
        ("model: {heads: 7}", "model.heads", "7", "must divide d_model 512"),
        ("model: {heads: 7, d_k: 64}", "model.heads", "7", "unless d_k and d_v are given"),
        ("training: {adam_betas: [0.9, 1.0]}", "training.adam_betas", "[0.9, 1.0]", "below 1"),
        ("training: {freeze_embeddings: true}", "training.freeze_embeddings", "", "source_embeddings"),
        ("training: {init_from: x, source_embeddings: v}", "training.source_embeddings", "v", "init_from"),
        ("training: {device_tokens: 30000}", "training.device_tokens", "30000", "exceed batch_tokens 25000"),
        ("tokenizer: {sample: 100}", "tokenizer.sample", "100", "must be"),  # which sentencepiece would refuse
        ("tokenizer: {character_coverage: 0.97}", "tokenizer.character_coverage", "0.97", "must be"),
        ("training: {learning_rate_scale: .inf}", "training.learning_rate_scale", "inf", "must be"),
        ("training: {batch_tokens: 256}", "training.batch_tokens", "256", "at least 257"),
        ("decoding: {min_length: 51}", "decoding.min_length", "51", "must not exceed max_extra 50"),
        ("training: {patience: 3}", "training.patience", "", "needs data.valid"),
        ("tokenizer: {shared: false}", "model.tie_embeddings", "all", "use target or none"),
        ("model: {positions: learned, max_positions: 1024}", "model.max_positions", "1024", "at least 1025"),
    ],
)
def test_a_wrong_type_or_impossible_value_names_key_value_and_what_is_allowed(
    write: Write, line: str, key: str, value: str, allowed: str
) -> None:
    path = write(BASE + line + "\n")
    message = refusal(path).message
    assert f": {key}: " in message
    assert value in message
    assert allowed in message
    # where the key itself is not in the file there is no line to name, but the file always is
    in_file = key.split(".")[:2][-1] in line
    assert message.startswith(f"{path}:6: " if in_file else f"{path}: ")


def test_no_whole_number_of_a_recipe_is_without_an_upper_limit() -> None:
    """A number without one makes a loop or an allocation without an end."""
    unlimited = []
    for section, schema in json_schema()["$defs"].items():
        for key, about in schema["properties"].items():
            kinds = [kind for kind in (about, *about.get("anyOf", ())) if kind.get("type") == "integer"]
            if not all({"maximum", "exclusiveMaximum"} & kind.keys() for kind in kinds):
                unlimited.append(f"{section}.{key}")
    assert unlimited == []


@pytest.mark.parametrize(
    ("settings", "hint"),
    [
        (["model.norm=pots"], "did you mean post?"),
        (["data.augment={upper: 0.7, title: 0.4}"], "lower upper or title, such as --set data.augment.title=0.1"),
        (["data.target=tree", "data.train=[{trees: a}]", "data.augment.upper=0.1"], "remove data.augment.upper"),
        (["data.augment.constituents=0.1"], "remove data.augment.constituents"),
        (["model.d_model=511", "model.heads=1"], "--set model.d_model=512"),
        (
            ["training.schedule=linear", "training.updates=1", "training.warmup=1"],
            "--set training.updates=2, or more",
        ),
        (["training.batch_tokens=256"], "--set training.batch_tokens=257, or lower data.max_length"),
        (
            ["model.positions=learned"],
            "--set model.max_positions=1025, or lower data.max_length and decoding.max_source",
        ),
        (["decoding.min_length=51"], "--set decoding.min_length=50, or raise decoding.max_extra"),
        (["name.first=x"], "set all of it: --set 'name=VALUE'"),
        (["data.augment.typo=1"], "did you mean data.augment.typos?"),
        (["data={source: en}"], "add data.target to the recipe; recipes/schema.json describes all keys"),
    ],
)
def test_the_hint_gives_the_nearest_setting_that_is_allowed(write: Write, settings: list[str], hint: str) -> None:
    assert refusal(write(BASE), settings).hint == hint


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        ("{source: a}", "source and target go together"),
        ("{target: a}", "source and target go together"),
        ("{source: a, target: b, trees: c}", "exactly one of"),
        ("{sacrebleu: wmt13, hub: c}", "exactly one of"),
        ("{sacrebleu: wmt13, config: c}", "config: goes with hub"),
        ("{file: a.zip, fields: [en, de]}", "fields: goes with hub, .tsv"),
        ("{file: a.txt}", "file: must end in one of .tsv"),
        ("{file: a.parquet.gz}", "file: must end in one of .tsv"),
        ("{file: a.tsv, fields: ['0', '1']}", "fields: of a .tsv are column numbers counted from 1"),
        ("{file: a.tsv, fields: ['1', '1０']}", "fields: of a .tsv are column numbers counted from 1"),
        (
            "{file: a.jsonl, fields: [en]}",
            "fields: Tuple should have at least 2 items after validation, not 1",
        ),
        ("{file: http://host/a.tsv}", "file: http:// without sha256 may give what somebody else has put in its place"),
        ("{file: ftp://host/a.tsv}", "file: an address must begin with https:// (got ftp://host/a.tsv)"),
        ("{file: https://host/a.txt}", "file: must end in one of .tsv"),
        ("{source: https://host/a.en, target: a.de}", "source: must be a file; only file takes an address"),
        ("{file: a.tsv, sha256: abc}", "sha256: must be 64 hexadecimal digits (got abc)"),
        ("{file: '*.tsv', sha256: abc}", "sha256: goes with file, if that is one file"),
        ("{file: a.jsonl, fileds: [en, de]}", "fileds: unknown key"),
    ],
)
def test_a_data_set_that_cannot_be_is_refused_with_its_place(write: Write, dataset: str, words: str) -> None:
    path = write(BASE.replace("[{source: a.en, target: a.de}]", f"\n  - {{file: good.tsv}}\n  - {dataset}"))
    message = refusal(path).message
    assert message.startswith(f"{path}:7: data.train.1")
    assert words in message


@pytest.mark.parametrize(
    ("dataset", "form"),
    [
        ("{file: 'https://host/a.tsv.gz?raw=1#x'}", ".tsv"),
        ("{file: 'https://host/en%2Dit.txt.zip'}", ".zip"),
        (f"{{file: http://host/a.jsonl, sha256: {64 * 'A'}}}", ".jsonl"),
        ("{file: http://127.0.0.1:8000/a.po}", ".po"),
    ],
)
def test_a_data_set_may_be_named_by_its_address(write: Write, dataset: str, form: str) -> None:
    (found,) = load(write(BASE.replace("{source: a.en, target: a.de}", dataset))).data.train
    assert (found.format, found.may_be_several) == (form, False)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("a.json", "write one JSON object on each line, and end the name in .jsonl"),
        ("a.json.gz", "write one JSON object on each line, and end the name in .jsonl"),
        ("a.tsv.tar.gz", "extract its files, and name them: tar -xf a.tsv.tar.gz"),
        ("a.tgz", "extract its files, and name them: tar -xf a.tgz"),
    ],
)
def test_a_file_of_a_near_format_has_a_hint_of_its_own(write: Write, name: str, hint: str) -> None:
    assert refusal(write(BASE.replace("{source: a.en, target: a.de}", f"{{file: {name}}}"))).hint == hint


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ("encoder, decoder, embeddings", "freeze: leaves nothing to train (got encoder, decoder, embeddings)"),
        ("encoder, encoder", "freeze: names a part twice (got encoder, encoder)"),
    ],
)
def test_parts_to_freeze_are_given_once_and_leave_one_to_train(write: Write, parts: str, problem: str) -> None:
    path = write(BASE)
    found = refusal(path, ["training.init_from=x", f"training.freeze=[{parts}]"])
    assert problem in found.message


def test_what_is_missing_is_named(write: Write) -> None:
    assert "data.target: must be given" in refusal(write(BASE.replace("  target: de\n", ""))).message
    assert "name: must be given" in refusal(write("")).message
    assert "data.train" in refusal(write(BASE.replace("[{source: a.en, target: a.de}]", "[]"))).message


def test_names_that_would_leave_their_folder_are_refused(write: Write) -> None:
    for name in ("../x", "a/b", ".hidden", "''", "a b"):
        assert ": name: " in refusal(write(BASE.replace("name: tiny", f"name: {name}"))).message


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
