"""The scripts that generate the data of `make demo`, as modules and as programs."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recipe_files import RECIPES


def load_script(name: str) -> Any:
    """The script `recipes/NAME.py` as a module."""
    spec = importlib.util.spec_from_file_location(name, RECIPES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def run_script(name: str, folder: Path, sizes: Mapping[str, int], seed: int, hash_seed: int) -> dict[str, str]:
    """The files that the script writes, by name; `sizes` are sentences per split."""
    options = [text for split, size in sizes.items() for text in (f"--{split}", str(size))]
    command = [sys.executable, str(RECIPES / f"{name}.py"), str(folder), *options, "--seed", str(seed)]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONHASHSEED": str(hash_seed)})
    return {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}
