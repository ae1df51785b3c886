"""Hashes that detect damage.

A directory's manifest (`bundle.json` of a bundle or `fingerprint.json` of prepared data) holds under `hashes` the
xxh3_64 of every other file and of its own contents. Files are verified when read. This detects accidents such as bit
rot or an incomplete copy, not attackers, who could also change the hashes. To edit a file by hand, delete `hashes`:
nothing is verified then.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import xxhash
from pydantic import BaseModel, Field, ValidationError

from nmt.system.errors import UserError
from nmt.system.files import digest, read_json, read_whole, regular, remedy, replace_json, stamp, write_json

MANIFESTS = ("bundle.json", "fingerprint.json")  # contain their directory's hashes
HASHES = "hashes"
M = TypeVar("M", bound=BaseModel)

FileName = Annotated[str, Field(pattern=r"^[^/]*$")]  # an untrusted manifest must not name files elsewhere


class _Manifest(BaseModel):
    """Validated part of a manifest."""

    hashes: dict[FileName, str] = {}


_unchanged: set[tuple[Path, str, tuple[int, ...]]] = set()  # files verified by this process: path, hash and stamp


def write_manifest(path: Path, values: Mapping[str, Any]) -> None:
    """Write a manifest: `values` with the hashes of all files in its directory and of its own contents."""
    hashes = {file.name: hash_file(file) for file in sorted(path.parent.iterdir()) if file != path}
    write_json(path, _sealed(path, {**values, HASHES: hashes}))


def replace_manifest(path: Path, values: Mapping[str, Any]) -> None:
    """Atomically replace a manifest, keeping the file hashes in `values`."""
    replace_json(path, _sealed(path, values))


def _sealed(path: Path, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `values` with the hash of the manifest's own contents, if it has hashes."""
    if HASHES not in values:
        return values
    return {**values, HASHES: {**values[HASHES], path.name: _hash_values(path, values)}}


def checked(kind: type[M], given: object, name: str | Path, hint: str | None = None) -> M:
    """Validate JSON, as bytes or parsed, as a model of type `kind`; raise UserError with the first problem.

    `name` is the file's name; `hint` defaults to its `remedy`.
    """
    try:
        if isinstance(given, bytes):
            return kind.model_validate_json(given)
        return kind.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
    where = "".join(f"{part}: " for part in first["loc"])[:200]
    problem = first["msg"].replace("Input should", "must")
    if first["type"] == "model_type":
        problem = "is not a JSON object"
    raise UserError(f"{name}: damaged: {where}{problem}", hint or remedy(Path(name)))


def read_manifest(path: Path) -> dict[str, Any]:
    """Read a JSON object and verify its own hash, if any; raise UserError if it is missing or damaged."""
    values = read_json(path)
    hashes = checked(_Manifest, values, path).hashes
    if HASHES in values and hashes.get(path.name) != _hash_values(path, values):
        raise _damaged(path)
    return dict(values)


def intact(path: Path) -> Path:
    """Verify a file against its hash in the directory's manifest, if any; return `path`.

    Raise UserError if it is damaged, missing or not a regular file. A process hashes a file once unless it changes.
    """
    now = stamp(regular(path))
    expected = _expected(path.parent)
    if path.name in expected:
        known = (path.absolute(), str(expected[path.name]), tuple(now))
        if known not in _unchanged and hash_file(path) != expected[path.name]:
            raise _damaged(path)
        _unchanged.add(known)
    return path


def _expected(folder: Path) -> dict[str, Any]:
    """Return the hashes in a directory's manifest, by name; none without a manifest."""
    for name in MANIFESTS:
        if os.path.lexists(folder / name):
            return _hashes(folder / name)
    return {}


def content(path: Path) -> bytes:
    """Read and verify a file's bytes; raise UserError as `read_whole` and `intact` do."""
    found = read_whole(path)  # before hashing, since this limits the size
    intact(path)
    return found


def known_files(folder: Path) -> set[str]:
    """Return the names of files that are in a directory or listed by its manifest."""
    if not folder.is_dir():
        return set()
    names = {path.name for path in folder.iterdir()}
    for manifest in names.intersection(MANIFESTS):
        names.update(_hashes(folder / manifest))
    return names


def check_files(manifest: Path) -> None:
    """Verify all files listed by a manifest; raise UserError naming the first that is missing or damaged."""
    for name in _hashes(manifest):
        if name != manifest.name:
            intact(manifest.parent / name)


def hash_file(path: Path) -> str:
    """Return the xxh3_64 of a file's contents, in hexadecimal."""
    return digest(path, xxhash.xxh3_64, remedy(path))


def _hashes(manifest: Path) -> dict[str, Any]:
    return dict(read_manifest(manifest).get(HASHES, {}))


def _hash_values(path: Path, values: Mapping[str, Any]) -> str:
    """Hash a manifest's values except this hash itself, regardless of whitespace and key order."""
    others = {name: value for name, value in values[HASHES].items() if name != path.name}
    return xxhash.xxh3_64_hexdigest(json.dumps({**values, HASHES: others}, sort_keys=True).encode())


def _damaged(path: Path) -> UserError:
    hint = remedy(path)
    if path.suffix in (".json", ".yaml"):
        hint += "; or, if somebody edited it, delete `hashes` from the .json file that has them"
    return UserError(f"{path}: damaged: its content is not what was written", hint)
