"""Weights that are not those of the model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from random_bundle import random_bundle

from nmt.bundle.reading import load_weights
from nmt.errors import UserError


def test_the_first_weight_that_is_missing_or_unknown_is_named(tmp_path: Path) -> None:
    bundle = random_bundle(tmp_path / "bundle")
    model, weights = bundle.model(torch.device("cpu")), bundle.weights()
    first, second, *rest = sorted(weights)
    with pytest.raises(UserError) as caught:
        load_weights(model, {name: weights[name] for name in rest}, Path("here"))
    assert caught.value.message == f"here: lacks the weight {first}"
    with pytest.raises(UserError) as caught:
        load_weights(model, weights | {"b": weights[second], "a": weights[second]}, Path("here"))
    assert caught.value.message == "here: has the unknown weight a"
