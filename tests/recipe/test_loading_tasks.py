"""What the task decides: recipes of parsers."""

from __future__ import annotations

from typing import Any

import pytest
from recipe_files import PARSER, Write, refusal

from nmt.recipe import load

# --- parsers ------------------------------------------------------------------------------------------------


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
    assert recipe.task.name == "parse"
    assert {key: getattr(getattr(recipe, section), key) for key in values} == values


def test_what_a_parsers_recipe_says_is_kept(write: Write) -> None:
    path = write(PARSER + "  max_ratio: 4.0\nmodel: {tie_embeddings: none}\ndecoding: {beam: 2}\n")
    recipe = load(path, ["decoding.alpha=0.5"])
    assert (recipe.data.max_ratio, recipe.data.max_length) == (4.0, 512)
    assert recipe.model.tie_embeddings == "none"
    assert (recipe.decoding.beam, recipe.decoding.alpha, recipe.decoding.max_extra) == (2, 0.5, 300)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["tokenizer.shared=true"], "tokenizer.shared: must be false with data.target: tree"),
        (["model.tie_embeddings=all"], "model.tie_embeddings: all needs one vocabulary"),
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
        (["data.train=[{trees: a, fields: [a, b]}]"], "data.train.0.fields: goes with hub, .tsv"),
        (["data.train=[{trees: a, file: b.tsv}]"], "data.train.0: needs exactly one of"),
        (["data.valid=[{trees: a, weight: 2}]"], "data.valid.0.weight: is for training sets"),
    ],
)
def test_combinations_that_make_no_parser_are_refused(write: Write, settings: list[str], message: str) -> None:
    refused = refusal(write(PARSER), settings).message
    assert message in refused
    assert refused.startswith(("--set data.", f"--set {settings[-1]}", str(write(PARSER))))
