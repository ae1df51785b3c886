"""The functions of the C libraries, for tests of each."""

from __future__ import annotations

from ctypes import CDLL

import pytest
from compiled import compiled

from nmt.compute.native import INSTRUCTION_SETS


@pytest.fixture(params=list(INSTRUCTION_SETS))
def functions(request: pytest.FixtureRequest) -> CDLL:
    """The functions of each library that was compiled and that this processor can run."""
    return compiled(request.param)
