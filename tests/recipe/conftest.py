"""A fixture shared by the tests of recipes."""

from __future__ import annotations

from pathlib import Path

import pytest
from recipe_files import Write


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str, name: str = "r.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write
