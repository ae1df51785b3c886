"""Models that are made for a recipe, and weights that are not theirs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from random_bundle import random_bundle, tokenizer_of_words

from nmt.checkpoint.reading import load_weights, new_model
from nmt.system.errors import UserError


def test_the_first_weight_that_is_missing_or_unknown_is_named(tmp_path: Path) -> None:
    bundle = random_bundle(tmp_path / "bundle")
    model, weights = bundle.model(torch.device("cpu")), bundle.weights()
    first, second, *rest = sorted(weights)
    with pytest.raises(UserError) as caught:
        load_weights(model, {name: weights[name] for name in rest}, Path("here"))
    missing, shape = list(weights[first].shape), list(weights[second].shape)
    assert caught.value.message == f"here: weight {first} has shape none, but {missing} by the recipe"
    with pytest.raises(UserError) as caught:
        load_weights(model, weights | {"b": weights[second], "a": weights[second]}, Path("here"))
    assert caught.value.message == f"here: weight a has shape {shape}, but none by the recipe"


def test_a_model_that_counts_words_knows_what_begins_one(tmp_path: Path) -> None:
    recipe, tokenizer = random_bundle(tmp_path / "bundle").recipe, tokenizer_of_words(True)
    config = recipe.model.model_copy(update={"positions": "words"})
    model = new_model(recipe.model_copy(update={"model": config}), tokenizer)
    assert model._starts is not None
    assert tuple(side.tolist() for side in model._starts) == (tokenizer.source.starts(), tokenizer.target.starts())
    assert new_model(recipe, tokenizer)._starts is None
