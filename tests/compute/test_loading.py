"""Which C library is opened, and when none is."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from nmt.compute import native as loading
from nmt.compute.header import HEADER, constant, declared, structure
from nmt.compute.native import kernels, open_library
from nmt.model.transformer import Transformer
from nmt.recipe import Decoding, Model
from nmt.search.beam import SearchEngine


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
    version = constant("KERNELS_VERSION")
    names = sorted(declared().prototypes.keys() - {"nmt_kernels_version"})[missing:]
    source = f"int nmt_kernels_version(void) {{ return {version + newer}; }}"
    source += "".join(f"void {name}(void) {{}}" for name in names)
    assert (open_library(compile_c(source, tmp_path / "other.so")) is not None) == usable


def test_a_search_says_if_there_is_no_library(monkeypatch):
    pretend(monkeypatch, set(), "AVX512")
    said = []
    SearchEngine([Transformer(Model(layers=1, d_model=8, d_ff=8, heads=2), 11, 11).eval()], Decoding(), say=said.append)
    assert len(said) == 1
    assert "C kernels are missing" in said[0]


def test_members_of_structures_lie_where_c_has_them(tmp_path):
    expected = {}
    for name, members in declared().members.items():
        expected[f"sizeof({name})"] = ctypes.sizeof(sized(name))
        for member, _ in members:
            expected[f"offsetof({name}, {member})"] = getattr(sized(name), member).offset
    includes = f'#include <stddef.h>\n#include "{HEADER}"\n'
    source = f"{includes}long sizes[] = {{{', '.join(expected)}}};"
    library = ctypes.CDLL(str(compile_c(source, tmp_path / "sizes.so")))
    found = (ctypes.c_long * len(expected)).in_dll(library, "sizes")
    assert dict(zip(expected, found, strict=True)) == expected
    assert len(expected) > 60


def sized(name: str) -> type[ctypes.Structure]:
    return structure(name, 0) if name in declared().flexible else structure(name)


def test_constants_are_those_of_the_header():
    assert constant("STRIPS") == 1 << 20
    assert constant("PLACES_AT_ONCE") == 4


def test_a_member_that_the_header_does_not_name_is_refused():
    with pytest.raises(AttributeError, match="wayt"):
        structure("nmt_norm")(wayt=1)
