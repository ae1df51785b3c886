"""One recipe extends another one, `--set` changes single keys, and the JSON Schema is that of the types."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from recipe_files import BASE, PARSER, RECIPES, Write, refusal

from nmt import recipe as recipes
from nmt.recipe import json_schema, load, override_decoding
from nmt.system.errors import UserError

# --- extends ------------------------------------------------------------------------------------------------


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


def test_of_the_two_intervals_between_checkpoints_the_one_given_last_counts(write: Write) -> None:
    write(BASE + "training: {checkpoint_updates: 500}\n", "base.yaml")
    path = write("extends: base.yaml\ntraining: {checkpoint_minutes: 3}\n")
    assert load(path).training.checkpoint_updates is None
    assert load(path, ["training.checkpoint_updates=7"]).training.checkpoint_updates == 7
    shorter = load(write("extends: base.yaml\ntraining: {minutes: 30}\n"))
    assert (shorter.training.checkpoint_updates, shorter.training.checkpoint_minutes) == (500, 2)


@pytest.mark.parametrize(
    ("overrides", "updates", "minutes"),
    [
        ("minutes=null", 500, None),
        ("updates=7 minutes=null", 7, None),
        ("minutes=null updates=7", 7, None),
        ("minutes=2", None, 2),
        ("updates=7 minutes=2", None, 2),
        ("minutes=2 updates=7", 7, 2),  # updates count
        ("minutes=2 updates=null", None, 2),
        ("updates=null minutes=null", None, None),  # saves at the end alone
        ("updates=7 minutes=2 minutes=null", 7, None),
        ("updates=7 minutes=2 updates=null", None, 2),
    ],
)
def test_null_is_no_interval_between_checkpoints(
    write: Write, overrides: str, updates: int | None, minutes: float | None
) -> None:
    path = write(BASE + "training: {checkpoint_updates: 500}\n")
    training = load(path, [f"training.checkpoint_{override}" for override in overrides.split()]).training
    assert (training.checkpoint_updates, training.checkpoint_minutes) == (updates, minutes)


def test_a_base_keeps_its_interval_where_the_other_is_null(write: Write) -> None:
    write(BASE + "training: {checkpoint_updates: 500}\n", "base.yaml")
    path = write("extends: base.yaml\ntraining: {checkpoint_minutes: null}\n")
    assert load(path).training.checkpoint_updates == 500
    assert load(path, ["training={checkpoint_minutes: 3, updates: 9}"]).training.checkpoint_updates is None
    assert refusal(path, ["training.checkpoint_minutes=3", "training=3"]).message.startswith("--set training=3: ")


def test_a_base_without_data_of_its_own_is_not_a_recipe_by_itself(write: Write) -> None:
    write("name: base\ndata: 3\nmodel: {layers: 2}\n", "base.yaml")
    recipe, base = recipes.load_with_base(write(BASE.replace("name: tiny", "name: tiny\nextends: base.yaml")))
    assert (recipe.model.layers, base) == (2, None)


def test_inheriting_from_oneself_is_refused(write: Write) -> None:
    assert "extends itself" in refusal(write("extends: r.yaml\n")).message
    write("extends: r.yaml\n", "other.yaml")
    assert "extends itself" in refusal(write("extends: other.yaml\n")).message


def test_a_missing_or_nameless_base_is_refused(write: Write) -> None:
    assert "nope.yaml: no such recipe" in refusal(write("extends: nope.yaml\n")).message
    path = write(BASE + "extends: 3\n")
    assert refusal(path).message == f"{path}:6: extends: must be a file name (got 3)"


def test_the_name_of_a_shipped_recipe_stands_for_it_where_there_is_no_such_file(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "table3").mkdir()
    assert load("table3/c_layers2") == load(RECIPES / "table3" / "c_layers2.yaml")
    assert load(write("extends: laptop\nname: mine\n")).data.train == load(RECIPES / "laptop.yaml").data.train
    write(BASE, "laptop")
    assert load("laptop").name == "tiny"
    assert load(write("extends: laptop\n")).name == "tiny"
    (tmp_path / "gum").mkdir()  # a folder, such as one of data, is no recipe
    assert load("gum").name == "gum"


def test_the_error_for_an_unknown_name_lists_what_there_is(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hint = refusal(Path("laptopp")).hint
    assert {path.stem for path in RECIPES.glob("*.yaml")} == set(hint.rpartition(": ")[2].split(", "))
    assert "table3/base, table3/big, " in refusal(Path("table3/bas")).hint
    write(BASE, "mine.yaml")
    assert refusal(Path("mime.yaml")).hint == "name a recipe that is in .: mine.yaml"
    assert "such as mine.yaml, or a recipe that comes with nmt: " in refusal(Path("laptopp")).hint


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
        ("data: {augment: {upper: 0.1}}", "tiny"),
        ("data: {augment: {upper: 0.1}, max_length: 100}", "row"),
        ("data: {train: [{source: b.en, target: b.de}]}", "row"),
        ("tokenizer: {vocab_size: 300}", "row"),
        ("tokenizer: {vocab_size: 300}\ndata: {name: mine}", "mine"),
    ],
)
def test_prepared_data_is_shared_unless_data_or_tokenizer_change(write: Write, change: str, data_name: str) -> None:
    write(BASE, "base.yaml")
    assert load(write(f"extends: base.yaml\nname: row\n{change}\n")).data.name == data_name


# --- overrides ----------------------------------------------------------------------------------------------


def test_overrides_are_yaml_and_the_last_one_wins(write: Write) -> None:
    settings = ["training.updates=3", "training.updates=2000", "training.clip_norm = 1e-1", "tokenizer.shared=false"]
    settings += ["training.checkpoint_minutes=null", "model.tie_embeddings=none", "data.source=no", "data.root=a=b"]
    recipe = load(write(BASE), [*settings, "data.train=[{source: x.en, target: x.de}, {file: y.tsv}]"])
    training = recipe.training
    assert (training.updates, training.clip_norm, training.checkpoint_minutes) == (2000, 0.1, None)
    assert (recipe.tokenizer.shared, recipe.model.tie_embeddings) == (False, "none")
    assert (recipe.data.source, recipe.data.root) == ("no", "a=b")
    assert [dataset.source or dataset.file for dataset in recipe.data.train] == ["x.en", "y.tsv"]


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


def test_a_model_may_have_keys_that_decoding_had_and_a_recipe_is_told_where_they_are(write: Write) -> None:
    path = write(BASE + "decoding: {beam: 7, all: false, average_last: 3}\n")
    model = load(path, alone=True)
    assert (model.decoding.beam, model.training.average_last) == (7, 5)
    one = refusal(write(BASE + "decoding: {average_last: 3}\n"))
    assert "decoding.average_last: unknown key" in one.message
    assert one.hint == "did you mean training.average_last?"
    other = refusal(write(BASE), ["decoding.all=true"])
    assert "decoding.all: unknown key" in other.message
    assert "--all" in other.hint


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


# --- the JSON Schema ----------------------------------------------------------------------------------------


def test_the_schema_file_is_generated_from_the_types() -> None:
    assert json.loads((RECIPES / "schema.json").read_text(encoding="utf-8")) == json_schema()


@pytest.mark.parametrize("path", sorted(RECIPES.rglob("*.yaml")), ids=lambda path: path.name)
def test_every_recipe_of_the_project_loads(path: Path) -> None:
    assert load(path).name
