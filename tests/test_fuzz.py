"""The targets of `make fuzz`, each on a few inputs, so that they stay what they are; and what becomes of a finding."""

from __future__ import annotations

import model_readers
import pytest
import readers
from target import Target
from targets import TARGETS
from trials import drawn

QUICK = (*readers.TARGETS, *model_readers.TARGETS)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_nothing_is_found_and_not_all_inputs_are_refused(target: Target) -> None:
    accepted: list[bool] = []
    examples = 24 if target in QUICK else 8
    drawn(target, lambda value: accepted.append(target.run(target.read(target.write(value)))), 1, examples)()
    assert any(accepted)
