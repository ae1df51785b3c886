"""Which C library is opened, and when none is."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from nmt.compute import cpu_products, cpu_search, cpu_training_in_c
from nmt.compute import native as loading
from nmt.compute.native import declared, kernels, open_library
from nmt.decoding.beam import SearchEngine
from nmt.model.transformer import Transformer
from nmt.recipe import Decoding, Model


@pytest.fixture(autouse=True)
def _fresh():
    """Each test opens its own library, and leaves none behind."""
    kernels.cache_clear()
    yield
    kernels.cache_clear()


def compile_c(source: str, to: Path) -> Path:
    """A shared library of a C source."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    to.with_suffix(".c").write_text(source)
    command = [compiler, "-shared", "-fPIC", "-o", to, to.with_suffix(".c")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"the C compiler does not work: {done.stderr[-200:]}")
    try:
        ctypes.CDLL(str(to))
    except OSError as error:  # as on a file system that is mounted noexec
        pytest.skip(f"no library can be opened: {error}")
    return to


def pretend(monkeypatch: pytest.MonkeyPatch, compiled: set[str], capability: str) -> None:
    """Libraries `compiled` exist, each as a stand-in, on a processor of this capability."""
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(loading, "find", lambda name: Path(name) if name in compiled else None)
    monkeypatch.setattr(loading, "open_library", lambda path: path.name)


@pytest.mark.parametrize(
    ("compiled", "capability", "expected"),
    [
        ("_base _avx2 _avx512", "AVX512", "_avx512"),
        ("_base _avx2 _avx512", "AVX2", "_avx2"),
        ("_base _avx2 _avx512", "DEFAULT", "_base"),
        ("_base _avx2 _avx512", "NEON", "_base"),
        ("_base _avx2 _avx512", "SVE256", "_base"),
        ("_base _avx2", "AVX512", "_avx2"),
        ("_base", "AVX512", "_base"),
        ("_base _avx512", "AVX2", "_base"),
        ("_avx512", "AVX2", None),
        ("_avx2", "DEFAULT", None),
        ("", "AVX512", None),
    ],
)
def test_the_best_library_that_the_processor_can_run_is_used(monkeypatch, compiled, capability, expected):
    pretend(monkeypatch, set(compiled.split()), capability)
    opened = kernels()
    assert (opened and opened.functions) == expected


def test_a_library_that_cannot_be_used_is_not_replaced_by_a_slower_one(monkeypatch):
    pretend(monkeypatch, {"_base", "_avx2"}, "AVX2")
    monkeypatch.setattr(loading, "open_library", lambda path: None)
    assert kernels() is None


def test_a_damaged_file_is_not_used(tmp_path):
    assert open_library(tmp_path / "missing.so") is None
    (tmp_path / "damaged.so").write_bytes(b"\x7fELF" + bytes(100))
    assert open_library(tmp_path / "damaged.so") is None


@pytest.mark.parametrize(("newer", "missing", "usable"), [(0, 0, True), (0, 1, False), (1, 0, False)])
def test_a_library_of_another_version_or_that_lacks_a_function_is_not_used(tmp_path, newer, missing, usable):
    version, prototypes = declared()
    names = sorted(prototypes.keys() - {"nmt_kernels_version"})[missing:]
    source = f"int nmt_kernels_version(void) {{ return {version + newer}; }}"
    source += "".join(f"void {name}(void) {{}}" for name in names)
    assert (open_library(compile_c(source, tmp_path / "other.so")) is not None) == usable


def test_a_search_says_if_there_is_no_library(monkeypatch):
    pretend(monkeypatch, set(), "AVX512")
    said = []
    SearchEngine([Transformer(Model(layers=1, d_model=8, d_ff=8, heads=2), 11, 11).eval()], Decoding(), say=said.append)
    assert len(said) == 1
    assert "C kernels are missing" in said[0]


def test_sizes_that_python_shares_with_c_are_those_of_the_header():
    defined = dict(re.findall(r"^#define NMT_(\w+) ([^\n/]+)", loading.HEADER.read_text(), re.MULTILINE))
    python = {
        "PLACES_AT_ONCE": cpu_search.PLACES_AT_ONCE,
        "STRIPS": cpu_products.STRIPS,
        "ROWS_SUMMED": cpu_training_in_c.ROWS_SUMMED,
        "MOST_KEYS": cpu_training_in_c.SHORT,
        "MOST_WIDTH": cpu_training_in_c.WIDEST,
    }
    found = {name: re.fullmatch(r"\(?(\d+)(?: << (\d+)\))?", defined[name].strip()) for name in python}
    assert {name: int(each[1]) << int(each[2] or 0) for name, each in found.items()} == python
