"""Fixtures of the tests of training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from reverse_task import sets


@pytest.fixture
def train(nmt: Callable[..., Any], task: Path, request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Trains the reverse task in this process, as `train("training.updates=5", out="ckpts")`; returns its stderr.

    The settings that the tests of a module share are its `SMALL`.
    """

    def run(*settings: str, out: str = "ckpts", code: int = 0) -> str:
        arguments = (*request.module.SMALL, *sets(*settings))
        done = nmt("train", "recipe.yaml", *arguments, "--out", out, "--device", "cpu")
        assert done.code == code, done.err
        return str(done.err)

    return run
