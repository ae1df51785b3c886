"""Manifests: one flipped byte is found, and a file without a hash is taken as it is."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from pydantic import BaseModel

from nmt.system.errors import UserError
from nmt.system.integrity import check_files, checked, intact, read_manifest, replace_manifest, write_manifest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory of two files and their manifest."""
    (tmp_path / "weights").write_bytes(bytes(1000))
    (tmp_path / "words").write_bytes(b"one two")
    write_manifest(tmp_path / "bundle.json", {"format": 1, "score": 0.1, "name": "größer \u2028"})
    return tmp_path


def flip(path: Path, at: int) -> None:
    """Flips the lowest bit of one byte, a second after the file was written."""
    content, later = bytearray(path.read_bytes()), path.stat().st_mtime_ns + 10**9
    content[at] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(later, later))  # many kernels stamp files by a clock that ticks every 4 to 10 ms


@pytest.mark.parametrize("at", [0, 500, 999])
def test_one_flipped_byte_is_found_and_named(folder: Path, at: int) -> None:
    intact(folder / "weights")  # what was checked before is checked again after a change
    flip(folder / "weights", at)
    for check in (lambda: intact(folder / "weights"), lambda: check_files(folder / "bundle.json")):
        with pytest.raises(UserError, match="weights: damaged: its content is not what was written") as caught:
            check()
        assert caught.value.hint


def test_a_file_replaced_by_one_of_the_same_size_and_time_is_read_again(folder: Path) -> None:
    path, new = folder / "weights", folder.with_name("new")
    intact(path)
    new.write_bytes(b"x" * 1000)
    os.utime(new, ns=(0, path.stat().st_mtime_ns))
    new.rename(path)
    with pytest.raises(UserError, match="weights: damaged"):
        intact(path)


def test_every_flipped_byte_of_a_manifest_is_found(folder: Path) -> None:
    path = folder / "bundle.json"
    whole = path.read_bytes()
    key = whole.index(b'"hashes"')
    for at in range(len(whole) - 1):
        if at in range(key + 1, key + 7):
            continue  # it would be a manifest whose hashes somebody has deleted
        flip(path, at)
        with pytest.raises(UserError, match=r"bundle\.json: damaged"):
            read_manifest(path)
        path.write_bytes(whole)


def test_a_manifest_may_change_and_keeps_the_hashes_of_files(folder: Path) -> None:
    path = folder / "bundle.json"
    replace_manifest(path, read_manifest(path) | {"score": 2})
    assert read_manifest(path)["score"] == 2
    check_files(path)
    flip(folder / "words", 0)
    with pytest.raises(UserError, match="words: damaged"):
        check_files(path)


def test_files_without_hashes_are_taken_as_they_are(folder: Path) -> None:
    path = folder / "bundle.json"
    path.write_text(json.dumps({"format": 1}))
    flip(folder / "words", 0)
    check_files(path)
    assert intact(folder / "words").read_bytes() == b"nne two"
    replace_manifest(path, read_manifest(path) | {"score": 2})
    assert read_manifest(path) == {"format": 1, "score": 2}


def test_what_is_missing_or_no_regular_file_is_named_without_opening_it(folder: Path) -> None:
    for name, replace in (("words", os.mkfifo), ("weights", os.mkdir), ("bundle.json", os.mkfifo)):
        path = folder / name
        path.unlink()
        with pytest.raises(UserError, match=f"{name}: cannot be read: No such file") as caught:
            check_files(folder / "bundle.json")
        assert caught.value.hint
        replace(path)
        with pytest.raises(UserError, match=f"{name}: is not a regular file") as caught:
            check_files(folder / "bundle.json")
        assert caught.value.hint
        if name != "bundle.json":
            os.rename(path, folder.parent / f"{folder.name}-{name}")
            path.write_bytes({"words": b"one two", "weights": bytes(1000)}[name])


def test_of_several_wrong_values_the_first_is_named() -> None:
    class Counts(BaseModel):
        lines: int
        tokens: int

    with pytest.raises(UserError, match=r"counts\.json: damaged: lines: must be a valid integer"):
        checked(Counts, {"lines": [], "tokens": []}, "counts.json")
